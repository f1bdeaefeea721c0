"""Tables as text: the closing table on numbers that can be checked by hand, and the forms people paste."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from fedskip.records.table import Row
from fedskip.report.findings import Findings
from fedskip.report.results import Metric
from fedskip.report.tables import DIVERGED_HELP as HELP
from fedskip.report.tables import TextTable, caption, closing_table
from fedskip.report.tables import divergence_notes as notes
from studies import by_metric, curve, recorded, run
from terminal import shown

BOLD = "\x1b[1;32m"
TABLE = TextTable(
    "demo", ["method", "best"], 1, [["My_1 & co|", "50.00 ± 1.00"], [], ["central", "–"]], {(0, 1)}
)
Show = Callable[..., str]


@pytest.fixture
def table(tmp_path: Path) -> Show:
    """Prints the closing table of some runs; `color` keeps what makes a number bold."""

    def show(
        runs: list[Row], settings: Any = ("a",), color: bool = False, width: int = 120,
        rows: Any = (), **keys: Any,
    ) -> str:  # fmt: skip
        system = "standard" if color else None
        to = Console(file=io.StringIO(), width=width, force_terminal=color, color_system=system)  # type: ignore[arg-type]
        for part in Findings(recorded(tmp_path, runs, settings, rows, **keys)).closing_parts():
            to.print(part)
        return to.file.getvalue()  # type: ignore[attr-defined]

    return show


def line(text: str, start: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.strip().startswith(start))


# --- the closing table ---------------------------------------------------------------------------------


def test_mean_and_deviation_over_seeds(table: Show) -> None:
    text = table([run("FedAvg", seed, last) for seed, last in enumerate((0.5, 0.6, 0.7))])
    assert line(text, "FedAvg") == ["FedAvg", *["60.00", "±", "10.00"] * 3, "122", "kB", "5"]
    assert "3 seeds (0, 1, 2); 1,001 test samples" in " ".join(text.split())
    alone = table([run("FedAvg", 3, 0.5)])
    assert "±" not in alone
    assert "seed 3;" in alone


def test_columns_appear_where_they_have_something_to_say(table: Show) -> None:
    text = table([run("FedAvg", 0, 0.5)])
    assert "extra merge" not in text
    assert "diverged" not in text
    text = table([run("FedAvg", 0, 0.5), run("FedSkip-3", 0, 0.4, final=0.45)])
    assert line(text, "FedSkip-3")[1:5] == ["40.00", "40.00", "40.00", "45.00"]
    assert line(text, "FedAvg")[4] == "–"
    text = table([run("FedAvg", 0, 0.5), run("FedAvg", 1, None, diverged=True)])
    assert line(text, "FedAvg")[1:] == ["50.00", "50.00", "50.00", "122", "kB", "5", "1", "of", "2"]


def test_the_best_are_marked_with_five_seeds(table: Show) -> None:
    """MOON leads; FedNova differs by chance, FedAvg by more than that, and a run of SCAFFOLD diverged."""
    scores = {
        "MOON": (0.70, 0.72, 0.74, 0.72, 0.72),
        "FedNova": (0.71, 0.70, 0.74, 0.73, 0.71),
        "FedAvg": (0.60, 0.621, 0.642, 0.62, 0.622),
    }
    runs = [run(label, s, score) for label, of in scores.items() for s, score in enumerate(of)]
    runs += [run("SCAFFOLD", seed, 0.9, diverged=seed == 1) for seed in range(5)]
    text = table(runs, color=True)
    marked = [f"{BOLD}{shown}" in text for shown in ("72.00", "71.80", "62.10", "90.00")]
    assert marked == [True, True, False, False]
    few = table([one for one in runs if one["seed"] < 4], color=True)
    assert BOLD not in few
    assert "Fewer than five seeds (4 here)" in " ".join(few.split())


def test_a_reference_takes_no_part(table: Show) -> None:
    runs = [run(m, s, score) for m, score in (("FedAvg", 0.5), ("MOON", 0.6)) for s in range(5)]
    runs.append(run("FedAvg", 0, 0.9, setting="centralised"))
    text = table(runs, ["centralised", "a"], color=True)
    assert [f"{BOLD}{shown}" in text for shown in ("60.00", "50.00", "90.00")] == [
        True,
        False,
        False,
    ]
    plain = table(runs, ["centralised", "a"])
    assert plain.index("MOON") < plain.index("centralised (FedAvg)")
    assert line(plain, "centralised") == ["centralised", "(FedAvg)", "90.00", "90.00", "90.00"]


def test_several_settings(table: Show) -> None:
    text = table([run("FedAvg", 0, 0.5), run("FedAvg", 0, 0.6, setting="bb")], ["a", "bb"])
    assert line(text, "a ")[:3] == ["a", "FedAvg", "50.00"]
    assert line(text, "bb")[:3] == ["bb", "FedAvg", "60.00"]
    assert "test samples: a 1,001, bb 1,002" in text


def test_other_metrics_are_no_percentages(table: Show, tmp_path: Path) -> None:
    text = table([run("FedAvg", 0, -0.25)], metric="minus_squared_error")
    assert line(text, "FedAvg")[1] == "-0.25"
    assert "Test minus squared error," in text
    runs = [run(m, s, score) for m, score in (("FedAvg", 4.0), ("MOON", 3.0)) for s in range(5)]
    results = recorded(tmp_path, runs)
    shown = closing_table(by_metric(results, Metric("rmse", higher=False)))
    assert {row for row, _ in shown.best} == {1}, "lower is better"
    assert "the best evaluation of a run" in shown.note
    assert "%" not in shown.note.replace("10%", "").replace("10 %", "").replace("95 %", "")


def test_a_test_set_seen_in_part(table: Show) -> None:
    text = table([run("FedAvg", 0, 0.5) | {"full_test": 0.48}], eval_samples=100)
    assert "1,001 test samples, 100 of them" in text
    assert line(text, "FedAvg")[1:5] == ["50.00", "50.00", "50.00", "48.00"]
    for more in ({}, {"eval_samples": 5000}):
        text = table([run("FedAvg", 0, 0.5) | {"full_test": 0.5}], **more)
        assert "full test" not in text


def test_the_round_of_last_where_it_is_not_the_last(table: Show) -> None:
    rows = curve("FedAvg", 0, {1: 0.4, 5: 0.5}) + curve("FedSkip-3", 0, {3: 0.6})
    text = table([run("FedAvg", 0, 0.5), run("FedSkip-3", 0, 0.6)], rows=rows)
    assert line(text, "FedAvg")[1:3] == ["50.00", "50.00"]
    assert line(text, "FedSkip-3")[1:4] == ["60.00", "(3)", "60.00"]


def test_a_reduced_study_says_so(tmp_path: Path) -> None:
    keys = {"rows": curve("FedAvg", 0, {1: 0.5}), "rounds": 5}
    shorter = {"record": {"full_rounds": 200}}
    runs = [run("FedAvg", 0, 0.5)]
    results = recorded(tmp_path, runs, note="not the paper's model", **keys, **shorter)
    assert results.remarks == ["reduced: 5 of 200 rounds", "not the paper's model"]
    assert caption(results).endswith("; reduced: 5 of 200 rounds; not the paper's model.")
    assert "reduced: 5 of 200 rounds" in results.plot.curves().texts[0].get_text()
    assert recorded(tmp_path, runs, rounds=200, **shorter).remarks == [], "it was made longer"
    few = recorded(tmp_path, runs, seeds=[0], record={"full_rounds": 200, "full_seeds": 3}, **keys)
    assert few.remarks == ["reduced: 5 of 200 rounds, 1 of 3 seeds"]
    half = replace(few, settings=[replace(few.settings[0], precision="bf16")])
    assert half.remarks[-1] == "in bf16"


# --- on a terminal -------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_columns_are_split_and_no_digit_is_cut(table: Show, width: int) -> None:
    labels = ["FedAvg", "SCAFFOLD+skip-10(init=random)"]
    runs = [run(label, seed, 0.5 + seed / 10, final=0.123) for label in labels for seed in (0, 1)]
    text = table(runs, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("55.00 ± 7.07") == 6
    assert text.count("12.30 ± 0.00") == 2
    assert text.count("122 kB") == 2
    assert "…" not in text


def test_columns_that_fit_stay_together() -> None:
    wide = TextTable("demo", ["name", "a", "b", "c"], 1, [["x" * 10, *["y" * 10] * 3]])
    assert wide.split(80) == [[0, 1, 2, 3]]
    assert wide.split(40) == [[0, 1, 2], [0, 3]]
    assert wide.split(5) == [[0, 1], [0, 2], [0, 3]]
    assert TextTable("", ["a", "b"], 1, []).split(80) == [[0, 1]]


@pytest.mark.parametrize("width", range(30, 90, 7))
def test_a_name_that_fits_is_not_squeezed(width: int) -> None:
    wide = TextTable("", ["name", *"abcdef"], 1, [["a long name", *[f"{n}" * 9 for n in range(6)]]])
    console = Console(width=width, file=io.StringIO())
    console.print(wide)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("a long name") == len(wide.split(width))
    assert all(f"{n}" * 9 in text for n in range(6))


# --- for papers and pages ------------------------------------------------------------------------------


def test_markdown() -> None:
    assert TABLE.markdown().splitlines() == [
        "| method | best |", "| --- | ---: |", "| My_1 & co\\| | **50.00 ± 1.00** |", "| central | – |",
    ]  # fmt: skip
    assert replace(TABLE, note="A note.").markdown() == f"{TABLE.markdown()}\nA note.\n"


def test_latex_is_escaped_and_has_rules() -> None:
    lines = replace(TABLE, note="100 % of it, -1.5 in FedSkip-5").latex("main").splitlines()
    assert r"\caption{demo. 100 \% of it, $-$1.5 in FedSkip-5}" in lines
    assert r"\label{tab:main}" in lines
    assert r"My\_1 \& co| & \textbf{50.00 $\pm$ 1.00} \\" in lines
    assert lines.index(r"\midrule", lines.index(r"\midrule") + 1) == len(lines) - 5
    assert r"central & -- \\" in lines
    odd = TextTable("", ["[a]", "b"], 1, [["[x<y]", "1"]])
    assert r"{[}x$<$y] & 1 \\" in odd.latex(), "a bracket after a line's end would be its argument"


def test_html() -> None:
    assert "<th>My_1 &amp; co|</th><td class=best>50.00 ± 1.00</td>" in TABLE.html()


def test_settings_with_other_seeds_are_named(tmp_path: Path) -> None:
    results = recorded(tmp_path, [run("FedAvg", 0, 0.5), run("FedAvg", 1, 0.6)])
    assert "over 2 seeds (0, 1)" in caption(results)
    other = results.summary.iloc[:1].assign(setting="b")
    both = replace(results, summary=pd.concat([results.summary, other]))
    assert "over seeds (toy 0, 1; b 0)" in caption(both).replace(results.settings[0].name, "toy")


def test_methods_with_other_seeds_are_named(tmp_path: Path) -> None:
    runs = [run("FedAvg", 0, 0.5), run("FedAvg", 1, 0.6), run("MOON", 1, 0.6)]
    assert "over seeds (a FedAvg 0, 1; a MOON 1)" in caption(recorded(tmp_path, runs))


def test_the_samples_of_a_federation_are_not_known_before_its_end(tmp_path: Path) -> None:
    results = recorded(tmp_path, [run("FedAvg", 0, 0.5)])
    results.settings[0].divisions.clear()
    assert "; the test samples of all clients; " in caption(results)


# --- runs that diverged, and visits that were set aside ----------------------------------------------


def test_nothing_is_said_where_all_went_well(tmp_path: Path) -> None:
    fine = [run("FedAvg", 0, 0.5), run("MOON", 0, 0.5) | {"set_aside": 0}]
    assert [*notes(recorded(tmp_path, fine))] == []


def test_a_few_runs_that_diverged_are_named_and_the_others_counted(tmp_path: Path) -> None:
    runs = [run("MOON", seed, None, diverged=True) for seed in range(5)]
    for seed, row in enumerate(runs):
        row |= {"broke_round": 2, "broke_client": 7, "broke_slot": seed}
    [note] = notes(recorded(tmp_path, runs))
    assert note.startswith(
        "Diverged: a.MOON.s0 in round 2, in slot 0 at client 7; a.MOON.s1 in round 2, "
    )
    assert note.endswith(f"; and 2 more. {HELP}")


def test_studies_of_before_know_no_slot(tmp_path: Path) -> None:
    old = run("MOON", 0, None, diverged=True) | {"broke_round": 2, "broke_client": 7}
    assert "a.MOON.s0 in round 2, at client 7. " in next(notes(recorded(tmp_path, [old])))


def test_visits_that_were_set_aside_are_counted_by_method(tmp_path: Path) -> None:
    runs = [run("FedAvg", seed, 0.5) | {"set_aside": 1 + seed, "rounds": 5} for seed in range(2)]
    runs.append(run("MOON", 0, 0.5) | {"set_aside": 0})
    results = recorded(tmp_path, runs, cohort=10)
    said = "Visits set aside, as they ended in NaN or infinity: FedAvg 3 of 100."
    assert [*notes(results)] == [said]
    assert said in shown(Findings(results).closing_parts())
