"""What follows from the tables of a study."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedskip.input.errors import InputError
from fedskip.records.table import Table
from fedskip.report.results import Results
from fedskip.report.units import Metric
from fedskip.report.verdict import in_words
from studies import curve, numbered, recorded, run, study

SCORES = {"FedAvg": (0.50, 0.60, 0.70), "MOON": (0.52, 0.62, 0.72), "FedSkip-5": (0.49, 0.66, 0.71)}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    runs = [run(label, seed, score) for label, of in SCORES.items() for seed, score in enumerate(of)]
    return recorded(tmp_path, runs)


def test_compare(results: Results) -> None:
    fedavg, moon, skip = results.compare()
    assert [row["method"] for row in results.compare()] == list(SCORES)
    assert (fedavg["verdict"], fedavg["difference"], fedavg["wins"], fedavg["losses"]) == (
        "baseline",
        0.0,
        0,
        0,
    )
    assert (moon["verdict"], moon["wins"], moon["losses"], moon["seeds"]) == ("better", 3, 0, 3)
    assert (moon["mean"], moon["difference"]) == (pytest.approx(0.62), pytest.approx(0.02))
    assert (skip["verdict"], skip["wins"], skip["losses"]) == ("not told apart", 2, 1)
    assert skip["low"] < 0 < skip["high"]
    assert [row["rank"] for row in (fedavg, moon, skip)] == [
        pytest.approx(8 / 3), pytest.approx(4 / 3), pytest.approx(6 / 3)
    ]  # fmt: skip
    wide = results.compare(level=0.99)[2]
    assert wide["low"] < skip["low"] < skip["high"] < wide["high"]
    drawn = results.compare(bootstrap=True)[2]
    assert (drawn["low"], drawn["high"]) != (skip["low"], skip["high"])


def test_the_baseline_is_found_as_people_write_it(results: Results) -> None:
    for name in ("FedSkip-5", "fedskip-5", "fedskip(period=5)"):
        assert results.compare(name)[2]["verdict"] == "baseline"
    with pytest.raises(InputError, match=r"baseline is not known, got 'FedAgv'. Did you mean 'FedAvg'"):
        results.compare("FedAgv")
    with pytest.raises(InputError, match="baseline is not known, got 'FedSkip-7'"):
        results.compare("fedskip(period=7)")
    with pytest.raises(InputError, match="score is not known, got 'tail'"):
        results.compare(score="tail")
    with pytest.raises(InputError, match=r"level must be between 0 and 1, got 95"):
        results.compare(level=95)


def test_one_seed_tells_nothing(tmp_path: Path) -> None:
    results = recorded(tmp_path, [run("FedAvg", 0, 0.5), run("MOON", 0, 0.9)])
    row = results.compare()[1]
    assert (row["verdict"], row["low"], row["high"]) == ("one seed tells nothing", None, None)
    assert results.leaders("a") == ["MOON"]


def test_a_run_that_diverged_has_lost(tmp_path: Path) -> None:
    runs = [run("FedAvg", seed, 0.5) for seed in range(3)]
    runs += [run("SCAFFOLD", seed, 0.9, diverged=seed > 0) for seed in range(3)]
    row = recorded(tmp_path, runs).compare()[1]
    assert (row["seeds"], row["wins"], row["losses"], row["rank"]) == (1, 1, 2, pytest.approx(5 / 3))
    assert row["verdict"] == "diverged at 2 of 3 seeds", "however good the others are"
    assert recorded(tmp_path, runs).leaders("a") == ["FedAvg"]
    assert recorded(tmp_path, runs).table()[1]["diverged"] == 2
    runs[1]["diverged"] = runs[2]["diverged"] = True
    row = recorded(tmp_path, runs).compare()[1]
    assert row["verdict"] == "diverged at 2 of 3 seeds", "also where the baseline did"
    runs[4]["diverged"] = False
    assert recorded(tmp_path, runs).compare()[1]["verdict"] == "diverged at 1 of 3 seeds"


def test_a_run_that_has_not_merged_yet_did_not_diverge(tmp_path: Path) -> None:
    results = study(tmp_path / "s", methods="fedavg, fedskip(period=5)", rounds=3).run()
    assert results.compare()[1]["verdict"] == "has no score at 2 of 2 seeds"
    assert "FedSkip-5 has no score at 2 of 2 seeds" in in_words(results)[0]


def test_several_settings_and_a_reference(tmp_path: Path) -> None:
    runs = [
        run(label, seed, 0.5 + (label == best) / 10, setting=setting)
        for setting, best in (("a", "MOON"), ("b", "FedAvg"))
        for label in ("FedAvg", "MOON")
        for seed in (0, 1)
    ] + [run("FedAvg", 0, 0.99, setting="centralised")]
    found = recorded(tmp_path, runs, ["a", "b", "centralised"]).compare()
    assert [(row["setting"], row["method"]) for row in found] == [
        (setting, label) for setting in ("a", "b", "(all)") for label in ("FedAvg", "MOON")
    ]
    assert found[-1] | {} == dict.fromkeys(found.columns) | {
        "setting": "(all)", "method": "MOON", "seeds": 4, "wins": 2, "losses": 2, "rank": 1.5,
    }  # fmt: skip


def test_to_target(tmp_path: Path) -> None:
    """At seed 1 FedSkip never gets where FedAvg got, and its first seed is there after one merge."""
    rows = [
        *curve("FedAvg", 0, {1: 0.3, 2: 0.5, 3: 0.4}), *curve("FedAvg", 1, {1: 0.3, 2: 0.4, 3: 0.6}),
        *curve("FedSkip-3", 0, {3: 0.5}), *curve("FedSkip-3", 1, {3: 0.59}),
    ]  # fmt: skip
    runs = [run("FedAvg", 0, 0.5), run("FedAvg", 1, 0.6), run("FedSkip-3", 0, 0.5), run("FedSkip-3", 1, 0.59)]
    results = recorded(tmp_path, runs, rows=rows)
    fedavg, skip = results.to_target("fedavg")
    assert (fedavg["reached"], fedavg["rounds"], fedavg["merges"], fedavg["bytes"]) == (2, 2.5, 2.5, 275.0)
    assert fedavg["rounds_std"] == pytest.approx(0.5**0.5)
    assert (skip["seeds"], skip["reached"], skip["rounds"], skip["merges"]) == (2, 1, 3.0, 1.0)
    assert skip["rounds_std"] is None
    assert [row["reached"] for row in results.to_target(0.59)] == [1, 1]
    assert [row["rounds"] for row in results.to_target(0.99)] == [None, None]
    assert results.to_target().rows == results.to_target("FedAvg").rows
    set_ = recorded(tmp_path, runs, rows=rows, target=0.59)
    assert set_.to_target().rows == results.to_target(0.59).rows, "the setting's own"
    with pytest.raises(InputError, match=r"target must be from 0 to 1, got 59\. Write 0\.68 for 68 %"):
        results.to_target(59)


def test_the_table_as_data(results: Results) -> None:
    table = results.table()
    assert table.column("method") == list(SCORES)
    assert table[0]["mean_tail"] == pytest.approx(0.6)
    assert table[0]["mean_tail_std"] == pytest.approx(0.1)
    assert (table[0]["seeds"], table[0]["merges"], table[0]["final"]) == (3, 5.0, None)


def test_what_is_not_finite_is_no_score(tmp_path: Path) -> None:
    runs = [run("FedAvg", s, 0.5) for s in range(3)] + [run("MOON", s, float("nan")) for s in range(3)]
    results = recorded(tmp_path, runs)
    assert results.scores("a", "MOON") == {0: None, 1: None, 2: None}
    assert results.leaders("a") == ["FedAvg"]
    assert results.compare()[1]["rank"] == 2.0
    assert results.table()[1]["last"] is None


def test_methods_with_other_seeds_are_ranked_on_those_that_all_have(tmp_path: Path) -> None:
    runs = [run("FedAvg", s, 0.5) for s in range(3)] + [run("MOON", 0, 0.6)]
    results = recorded(tmp_path, runs)
    assert [row["rank"] for row in results.compare()] == [2.0, 1.0]
    assert results.leaders("a") == ["FedAvg"], "one seed of another takes nothing from three"
    apart = recorded(tmp_path, [run("FedAvg", 0, 0.5), run("MOON", 1, 0.6)]).compare()
    assert [row["rank"] for row in apart] == [None, None]
    assert apart[1]["verdict"] == "no seed to compare"


def test_a_score_that_was_not_measured_is_refused(results: Results) -> None:
    with pytest.raises(InputError, match="score was not measured in this study, got 'best_val'"):
        results.compare(score="best_val")
    with pytest.raises(InputError, match="target is not known, got 'nope'"):
        results.to_target("nope")
    with pytest.raises(InputError, match="score is not known, got 'nope'"):
        results.leaders("a", "nope")


def test_a_method_of_a_grid_is_found_as_studies_write_it(tmp_path: Path) -> None:
    results = recorded(tmp_path, [run("MOON(mu=1.0)", 0, 0.5), run("MOON(mu=5.0)", 0, 0.6)])
    assert results.find("moon(mu=1)") == results.find("moon") == "MOON(mu=1.0)"
    assert results.baseline == "MOON(mu=1.0)"


def test_seeds_without_a_target_do_not_count(tmp_path: Path) -> None:
    runs = [run("FedAvg", s, 0.5, diverged=s == 1) for s in (0, 1)] + [run("MOON", s, 0.6) for s in (0, 1)]
    rows = [row for s in (0, 1) for row in curve("MOON", s, {1: 0.6})]
    assert recorded(tmp_path, runs, rows=rows).to_target()[1]["seeds"] == 1


def test_shown_as_its_closing_table(results: Results) -> None:
    text = repr(results)
    lines = [line.split() for line in text.splitlines()]
    assert ["FedAvg", *["60.00", "±", "10.00"] * 3, "122", "kB", "5"] in lines
    assert [
        "MOON",
        *["62.00", "±", "10.00*"] * 3,
        "122",
        "kB",
        "5",
    ] in lines
    assert "Star: not told apart from the highest" in text
    assert text.endswith(f"\n{results.out}")
    assert max(map(len, text.splitlines())) <= 120
    assert "\x1b" not in text


def test_shown_in_a_notebook(results: Results) -> None:
    shown = replace(results, name="<b>&")._repr_html_()
    assert "<b>&lt;b&gt;&amp;</b><table>" in shown
    assert "<td style=font-weight:bold>62.00 ± 10.00</td>" in shown
    assert "<td>60.00 ± 10.00</td>" in shown
    assert not re.search("<script|color|class", shown)


def test_read_takes_a_text(results: Results) -> None:
    with pytest.raises(InputError, match="holds no study"):
        Results.read(str(results.out))


# --- further metrics -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Results:
    keys = {"methods": "fedavg, fedskip(period=2)", "rounds": 4, "seeds": 2, "validation": 0.2}
    metric = ["accuracy", "macro_f1", "perplexity"]
    return study(tmp_path_factory.mktemp("several") / "s", metric=metric, **keys).run()


def test_a_study_can_be_looked_at_by_a_further_metric(several: Results) -> None:
    assert several.further == ["macro_f1", "perplexity"]
    by = several.by("perplexity")
    assert by.further == []
    assert by.settings[0].metric == Metric("perplexity", higher=False)
    for row in by.summary:
        mine = several.history.where(run=row["run"])
        column = mine.column("x_perplexity")
        assert (row["last"], row["best"]) == (column[-1], min(column))
        accuracies = mine.column("val_accuracy")
        assert row["best_val"] == column[accuracies.index(max(accuracies))]  # chosen by the headline
        assert row["final"] is row["full_test"] is None
    better = by.compare(score="last")[1]
    assert better["wins"] == sum(
        by.scores("toy", "FedSkip-2", "last")[s] < by.scores("toy", "FedAvg", "last")[s] for s in (0, 1)
    )
    assert several.by("accuracy").summary.rows == several.summary.rows
    with pytest.raises(InputError, match=r"metric is not known, got 'perplexty'\. Did you mean 'perplexity'"):
        several.by("perplexty")


def test_a_further_metric_of_a_run_that_ended_early_is_of_its_own_tail(tmp_path: Path) -> None:
    keys = {"methods": "fedavg", "rounds": 60, "seeds": 1, "validation": 0.2, "stop": {"patience": 10}}
    results = study(tmp_path / "s", metric=["accuracy", "macro_f1"], **keys).run()
    [run] = results.summary
    assert run["ended"]
    tail = [row["x_macro_f1"] for row in results.history if row["round"] > 0.9 * run["rounds"]]
    assert results.by("macro_f1").summary[0]["mean_tail"] == pytest.approx(sum(tail) / len(tail))


def test_further_metrics_are_in_tables_figures_and_the_page(several: Results) -> None:
    row = several.table()[0]
    known = [run["x_macro_f1"] for run in several.summary if run["method"] == row["method"]]
    assert row["x_macro_f1"] == pytest.approx(sum(known) / 2)
    axes = several.plot.curves(y="x_macro_f1")
    assert axes.get_ylabel() == "test macro F1 (%)"
    assert several.by("perplexity").plot.curves().get_ylabel() == "test perplexity"
    assert {"toy.x_macro_f1.svg", "toy.x_perplexity.svg"} <= {
        f.name for f in (several.out / "figures").iterdir()
    }
    page = (several.out / "report.html").read_text()
    assert f"<h2>{several.name}, by macro F1 in %</h2>" in page
    assert f"<h2>{several.name}, by perplexity</h2>" in page
    assert "scored by test accuracy, macro F1 and perplexity on" in page
    assert '"x_perplexity":{"name":"test perplexity"' in page


def test_without_its_history_a_study_still_has_the_last(several: Results) -> None:
    bare = replace(several, history=Table(several.history.columns, []))
    assert bare.by("macro_f1").summary.column("last") == several.summary.column("x_macro_f1")


def test_regression_has_neither_accuracy_nor_per_cent_on_its_page(tmp_path: Path) -> None:
    keys = {"methods": "fedavg, fedprox", "rounds": 2, "seeds": 2, "client_accuracy": True}
    study(tmp_path / "s", data=numbered(), model="linear", loss="squared_error", metric="r2", **keys).run()
    hidden = r"(?s)<script.*?</script>|<style.*?</style>|data:image[^\"]*|<details>.*?</details>"
    page = re.sub(hidden, "", (tmp_path / "s" / "report.html").read_text())
    assert "accuracy" not in page
    assert "R²" in page
    assert "%" not in re.sub("95%|10%", "", page)
    for file in (tmp_path / "s" / "figures").glob("*.svg"):
        text = file.read_text()
        assert "<!-- test accuracy" not in text, file.name
        assert "(%)" not in text or "clients" in file.name, file.name
