"""Results as DataFrames: comparisons, targets, tables, further metrics."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedskip.errors import InputError
from fedskip.report.results import Metric, Results
from studies import by_metric, curve, numbered, recorded, run, study

SCORES = {"FedAvg": (0.50, 0.60, 0.70), "MOON": (0.52, 0.62, 0.72), "FedSkip-5": (0.49, 0.66, 0.71)}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    runs = [
        run(label, seed, score) for label, of in SCORES.items() for seed, score in enumerate(of)
    ]
    return recorded(tmp_path, runs)


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return frame.to_dict("records")


def verdicts(results: Results, *given: Any, **how: Any) -> list[str]:
    return results.compare(*given, **how)["verdict"].tolist()


def test_compare(results: Results) -> None:
    fedavg, moon, skip = rows(results.compare())
    assert results.compare()["method"].tolist() == list(SCORES)
    names = ("verdict", "difference", "wins", "losses")
    assert [fedavg[name] for name in names] == ["baseline", 0.0, 0, 0]
    assert (moon["verdict"], moon["wins"], moon["losses"], moon["n"]) == ("better", 3, 0, 3)
    assert (moon["mean"], moon["difference"]) == (pytest.approx(0.62), pytest.approx(0.02))
    assert (skip["verdict"], skip["wins"]) == ("no significant difference", 2)
    assert skip["low"] < 0 < skip["high"]
    assert [row["rank"] for row in (fedavg, moon, skip)] == pytest.approx([8 / 3, 4 / 3, 6 / 3])
    wide = rows(results.compare(level=0.99))[2]
    assert wide["low"] < skip["low"] < skip["high"] < wide["high"]
    drawn = rows(results.compare(bootstrap=True))[2]
    assert (drawn["low"], drawn["high"]) != (skip["low"], skip["high"])


def test_the_baseline_is_found_as_people_write_it(results: Results) -> None:
    for name in ("FedSkip-5", "fedskip-5", "fedskip(period=5)"):
        assert verdicts(results, name)[2] == "baseline"
    for given, match in (
        ({"baseline": "FedAgv"}, "baseline .* 'FedAgv'. Did you mean 'FedAvg'"),
        ({"baseline": "fedskip(period=7)"}, "baseline .* 'FedSkip-7'"),
        ({"score": "tail"}, "score .* 'tail'"),
        ({"score": "best_val"}, "score was not measured .* 'best_val'"),
        ({"level": 95}, "level must be between 0 and 1, got 95"),
    ):
        with pytest.raises(InputError, match=match):
            results.compare(**given)


def test_one_seed_is_not_enough(tmp_path: Path) -> None:
    results = recorded(tmp_path, [run("FedAvg", 0, 0.5), run("MOON", 0, 0.9)])
    row = rows(results.compare())[1]
    assert row["verdict"] == "one seed is not enough"
    assert math.isnan(row["low"])
    assert results.leaders("a") == ["MOON"]


def test_a_run_that_diverged_has_lost(tmp_path: Path) -> None:
    runs = [run("FedAvg", seed, 0.5) for seed in range(3)]
    runs += [run("SCAFFOLD", seed, 0.9, diverged=seed > 0) for seed in range(3)]
    results = recorded(tmp_path, runs)
    row = rows(results.compare())[1]
    assert (row["n"], row["wins"], row["losses"], row["rank"]) == (1, 1, 2, pytest.approx(5 / 3))
    assert row["verdict"] == "diverged at 2 of 3 seeds", "however good the others are"
    assert results.leaders("a") == ["FedAvg"]
    assert results.table["diverged"].tolist() == [0, 2]
    runs[1]["diverged"] = runs[2]["diverged"] = True
    assert verdicts(recorded(tmp_path, runs))[1] == "diverged at 2 of 3 seeds", "FedAvg did, too"
    runs[4]["diverged"] = False
    assert verdicts(recorded(tmp_path, runs))[1] == "diverged at 1 of 3 seeds"


def test_a_run_that_has_not_merged_yet_did_not_diverge(tmp_path: Path) -> None:
    runs = [run("FedAvg", s, 0.5) for s in (0, 1)] + [run("FedSkip-5", s, None) for s in (0, 1)]
    assert verdicts(recorded(tmp_path, runs))[1] == "has no score at 2 of 2 seeds"


def test_several_settings_and_a_reference(tmp_path: Path) -> None:
    runs = [
        run(label, seed, 0.5 + (label == best) / 10, setting=setting)
        for setting, best in (("a", "MOON"), ("b", "FedAvg"))
        for label in ("FedAvg", "MOON")
        for seed in (0, 1)
    ] + [run("FedAvg", 0, 0.99, setting="centralised")]
    found = recorded(tmp_path, runs, ["a", "b", "centralised"]).compare()
    assert [*zip(found["setting"], found["method"], strict=True)] == [
        (setting, label) for setting in ("a", "b", "(all)") for label in ("FedAvg", "MOON")
    ]
    last = rows(found)[-1]
    assert {name: last[name] for name in ("n", "wins", "losses", "rank", "verdict")} == {
        "n": 4, "wins": 2, "losses": 2, "rank": 1.5, "verdict": "",
    }  # fmt: skip
    assert math.isnan(last["difference"])


def test_to_target(tmp_path: Path) -> None:
    """At seed 1 FedSkip never gets where FedAvg got, and its first seed is there after one merge."""
    history = [
        *curve("FedAvg", 0, {1: 0.3, 2: 0.5, 3: 0.4}), *curve("FedAvg", 1, {1: 0.3, 2: 0.4, 3: 0.6}),
        *curve("FedSkip-3", 0, {3: 0.5}), *curve("FedSkip-3", 1, {3: 0.59}),
    ]  # fmt: skip
    scores = {"FedAvg": (0.5, 0.6), "FedSkip-3": (0.5, 0.59)}
    runs = [
        run(label, seed, score) for label, of in scores.items() for seed, score in enumerate(of)
    ]
    results = recorded(tmp_path, runs, rows=history)
    fedavg, skip = rows(results.to_target("fedavg"))
    costs = ("reached", "rounds", "merges", "bytes")
    assert [fedavg[name] for name in costs] == [2, 2.5, 2.5, 275.0]
    assert fedavg["rounds_std"] == pytest.approx(0.5**0.5)
    assert (skip["seeds"], skip["reached"], skip["rounds"], skip["merges"]) == (2, 1, 3.0, 1.0)
    assert math.isnan(skip["rounds_std"])
    assert results.to_target(0.59)["reached"].tolist() == [1, 1]
    assert results.to_target(0.99)["rounds"].isna().all()
    assert results.to_target().equals(results.to_target("FedAvg"))
    own = recorded(tmp_path, runs, rows=history, target=0.59)
    assert own.to_target().equals(results.to_target(0.59)), "the setting's own"
    for target, match in ((59, "target must be from 0 to 1, got 59"), ("nope", "target .* 'nope'")):
        with pytest.raises(InputError, match=match):
            results.to_target(target)


def test_a_run_without_a_merge_has_not_reached_the_target(tmp_path: Path) -> None:
    """It counts, unlike one whose history was not kept."""
    runs = [run("FedAvg", s, 0.5) for s in (0, 1)]
    runs += [run("FedSkip-9", s, None) | {"merges": merges} for s, merges in ((0, 0), (1, 3))]
    history = [row for s in (0, 1) for row in curve("FedAvg", s, {1: 0.5})]
    row = rows(recorded(tmp_path, runs, rows=history).to_target("FedAvg"))[1]
    assert (row["method"], row["reached"], row["seeds"]) == ("FedSkip-9", 0, 1)
    lost = recorded(tmp_path, [run("FedAvg", 0, None, diverged=True), run("MOON", 0, 0.6)])
    assert lost.to_target(0.5)["seeds"].tolist() == [1, 0], "one that diverged never got there"


def test_seeds_without_a_target_do_not_count(tmp_path: Path) -> None:
    runs = [run("FedAvg", s, 0.5, diverged=s == 1) for s in (0, 1)]
    runs += [run("MOON", s, 0.6) for s in (0, 1)]
    history = [row for s in (0, 1) for row in curve("MOON", s, {1: 0.6})]
    assert recorded(tmp_path, runs, rows=history).to_target()["seeds"].tolist()[1] == 1


def test_a_target_from_above(tmp_path: Path) -> None:
    history = [
        *curve("FedAvg", 0, {1: 9.0, 2: 7.0, 3: 5.0}),
        *curve("MOON", 0, {1: 8.0, 2: 4.0, 3: 6.0}),
    ]
    runs = [run("FedAvg", 0, 5.0), run("MOON", 0, 4.0)]
    results = recorded(tmp_path, runs, rows=history, target=6.0)
    results = by_metric(results, Metric("rmse", higher=False))
    assert results.to_target()["rounds"].tolist() == [3, 2]
    assert results.to_target(1.0)["reached"].tolist() == [0, 0]


def test_comparisons_and_targets_print_units_and_keep_numbers(tmp_path: Path) -> None:
    long = "Mine(" + ", ".join(f"option{i}={i}" for i in range(9)) + ")"
    scores = {"FedAvg": (0.5, 0.6), long: (0.52, 0.6202)}
    runs = [run(m, s, score) for m, of in scores.items() for s, score in enumerate(of)]
    rows = [row for r in runs for row in curve(r["method"], r["seed"], {40_000: r["last"]})]
    results = recorded(tmp_path, runs, rows=rows)
    compared, targets = results.compare(), results.to_target(0.55)
    for text in (repr(compared), compared._repr_html_()):
        assert [words in text for words in (long, "57.0 %", "+2.0 points", "verdict")] == [True] * 4
        assert "..." not in text
    assert compared["mean"][1] == pytest.approx(0.5701)
    assert [words in repr(targets) for words in ("55.0 %", "4.4 MB", "–")] == [True] * 3
    assert type(compared[compared["wins"] > 0]) is pd.DataFrame
    lower = by_metric(results, Metric("rmse", higher=False))
    assert "%" not in repr(lower.compare()), "no share"


def test_a_setting_has_a_title_as_people_write_it(tmp_path: Path) -> None:
    def title(name: str, **keys: Any) -> str:
        return recorded(tmp_path, [], [name], **keys).settings[0].title

    dirichlet = {"kind": "dirichlet", "beta": 0.5}
    cifar = {"data": {"name": "cifar10"}, "partition": dirichlet}
    assert title("cifar10", **cifar) == "CIFAR-10, 20 clients, β = 0.5"
    assert title("CIFAR", **cifar) == "CIFAR: CIFAR-10, 20 clients, β = 0.5"
    mine = {"data": "python:mine.hearts", "partition": "iid"}
    assert title("a", **mine) == "a, 20 clients, IID"


def test_the_table_as_data(results: Results) -> None:
    table = results.table
    assert table["method"].tolist() == list(SCORES)
    assert table["mean_tail"][0] == pytest.approx(0.6)
    assert table["mean_tail_std"][0] == pytest.approx(0.1)
    assert (table["seeds"][0], table["merges"][0]) == (3, 5.0)
    assert table["merged"].isna().all()


def test_tables_are_exported_as_pandas_users_expect(results: Results) -> None:
    assert results.table.to_csv(index=False).startswith("setting,method,seeds,diverged,last,")
    assert "FedSkip-5" in results.summary.to_latex()
    pytest.importorskip("tabulate")
    assert "| FedAvg" in results.table.to_markdown()


def test_what_is_not_finite_is_no_score(tmp_path: Path) -> None:
    runs = [run("FedAvg", s, 0.5) for s in range(3)]
    runs += [run("MOON", s, score) for s, score in enumerate((math.nan, math.inf, None))]
    results = recorded(tmp_path, runs)
    assert results.scores("a", "MOON").isna().tolist() == [True] * 3
    assert results.leaders("a") == ["FedAvg"]
    assert results.compare()["rank"][1] == 2.0
    assert math.isnan(results.table["last"][1])


def test_methods_with_other_seeds_are_ranked_on_those_that_all_have(tmp_path: Path) -> None:
    runs = [run("FedAvg", s, 0.5) for s in range(3)] + [run("MOON", 0, 0.6)]
    results = recorded(tmp_path, runs)
    assert results.compare()["rank"].tolist() == [2.0, 1.0]
    assert results.leaders("a") == ["FedAvg"], "one seed of another takes nothing from three"
    apart = recorded(tmp_path, [run("FedAvg", 0, 0.5), run("MOON", 1, 0.6)]).compare()
    assert apart["rank"].isna().all()
    assert apart["verdict"][1] == "no seed in common"


def test_equal_scores_share_their_rank_and_no_score_comes_last(tmp_path: Path) -> None:
    scores = {"FedAvg": 0.5, "MOON": 0.5, "FedDyn": None, "FedNova": 0.7, "SCAFFOLD": None}
    runs = [run(label, 0, score) for label, score in scores.items()]
    assert recorded(tmp_path, runs).compare()["rank"].tolist() == [2.5, 2.5, 4.5, 1.0, 4.5]


def test_a_method_of_a_grid_is_found_as_studies_write_it(tmp_path: Path) -> None:
    results = recorded(tmp_path, [run("MOON(mu=1.0)", 0, 0.5), run("MOON(mu=5.0)", 0, 0.6)])
    assert results.find("moon(mu=1)") == results.find("moon") == "MOON(mu=1.0)"
    assert results.baseline == "MOON(mu=1.0)"
    with pytest.raises(InputError, match=r"score .* 'nope'"):
        results.leaders("a", "nope")


def test_where_lower_is_better(tmp_path: Path) -> None:
    scores = {"FedAvg": (12.0, 12.5), "MOON": (10.0, 10.5), "FedNova": (14.0, 14.5)}
    runs = [run(label, s, score) for label, of in scores.items() for s, score in enumerate(of)]
    results = recorded(tmp_path, runs)
    results = by_metric(results, Metric("perplexity", higher=False))
    assert results.leaders("a") == ["MOON"]
    assert verdicts(results) == ["baseline", "better", "worse"]
    assert results.compare()["difference"].tolist() == [0, -2, 2]
    assert results.compare()["rank"].tolist() == [2, 1, 3]


def test_printed_as_its_closing_table(tmp_path: Path) -> None:
    scores = {"FedAvg": (0.5, 0.6, 0.7, 0.5, 0.7), "MOON": (0.52, 0.62, 0.72, 0.52, 0.72)}
    runs = [run(label, s, score) for label, of in scores.items() for s, score in enumerate(of)]
    results = recorded(tmp_path, runs)
    text = repr(results)
    lines = [line.split() for line in text.splitlines()]
    assert ["FedAvg", *["60.00", "±", "10.00"] * 3, "122", "kB", "5"] in lines
    assert ["MOON", *["62.00", "±", "10.00*"] * 3, "122", "kB", "5"] in lines
    assert "Star:" in text
    assert text.endswith(f"\n{results.out}")
    assert max(map(len, text.splitlines())) <= 120
    assert "\x1b" not in text
    shown = replace(results, name="<b>&")._repr_html_()
    assert "<b>&lt;b&gt;&amp;</b><table>" in shown
    assert "<td style=font-weight:bold>62.00 ± 10.00</td>" in shown
    assert "<td>60.00 ± 10.00</td>" in shown
    assert not re.search("<script|color", shown)


# --- further metrics -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Results:
    keys = {"methods": "fedavg, fedskip(period=2)", "rounds": 4, "seeds": 2, "validation": 0.2}
    metric = ["accuracy", "macro_f1", "perplexity"]
    return study(tmp_path_factory.mktemp("several") / "s", metric=metric, **keys).run()


def test_a_study_can_be_looked_at_by_a_further_metric(several: Results) -> None:
    assert several.further_metrics == ["macro_f1", "perplexity"]
    by = several.by("perplexity")
    assert by.further_metrics == []
    assert by.settings[0].metric == Metric("perplexity", higher=False)
    for row in rows(by.summary):
        mine = several.history[several.history["run"] == row["run"]]
        column = mine["x_perplexity"].tolist()
        assert (row["last"], row["best"]) == (column[-1], min(column))
        validated = mine["val_accuracy"].tolist()
        assert row["best_val"] == column[validated.index(max(validated))], "chosen by the headline"
        assert all(map(math.isnan, (row["merged"], row["full_test"], row["worst_clients"])))
    wins = by.compare(score="last")["wins"][1]
    lower = by.scores("toy", "FedSkip-2", "last") < by.scores("toy", "FedAvg", "last")
    assert wins == lower.sum()
    assert several.by("accuracy").summary.equals(several.summary)
    assert Results.read(several.out, "perplexity").summary.equals(by.summary)
    with pytest.raises(InputError, match=r"metric .* 'perplexty'. Did you mean 'perplexity'"):
        several.by("perplexty")


def test_a_further_metric_of_a_run_that_ended_early_is_of_its_own_tail(tmp_path: Path) -> None:
    keys = {
        "methods": "fedavg",
        "rounds": 60,
        "seeds": 1,
        "validation": 0.2,
        "stop": {"patience": 10},
    }
    results = study(tmp_path / "s", metric=["accuracy", "macro_f1"], **keys).run()
    [run] = rows(results.summary)
    assert run["ended"]
    tail = results.history["x_macro_f1"][results.history["round"] > 0.9 * run["rounds"]]
    assert results.by("macro_f1").summary["mean_tail"][0] == pytest.approx(tail.mean())


def test_further_metrics_are_in_tables_figures_and_the_page(several: Results) -> None:
    runs = several.summary[several.summary["method"] == "FedAvg"]
    assert several.table["x_macro_f1"][0] == pytest.approx(runs["x_macro_f1"].mean())
    axes = several.plot.curves(y="x_macro_f1")
    assert axes.get_ylabel() == "test macro F1 (%)"
    assert several.by("perplexity").plot.curves().get_ylabel() == "test perplexity"
    assert {"toy.x_macro_f1.svg", "toy.x_perplexity.svg"} <= {
        f.name for f in (several.out / "figures").iterdir()
    }
    page = (several.out / "report.html").read_text()
    assert f"<h2>{several.name}, by macro F1 in %</h2>" in page
    assert f"<h2>{several.name}, by perplexity</h2>" in page
    assert "<td>accuracy, macro F1 and perplexity, on" in page
    assert '"x_perplexity":{"name":"test perplexity"' in page


def test_without_its_history_a_study_still_has_the_last(several: Results) -> None:
    bare = replace(several, history=several.history.iloc[:0])
    last = bare.by("macro_f1").summary["last"]
    assert last.tolist() == several.summary["x_macro_f1"].tolist()


def test_regression_has_neither_accuracy_nor_per_cent_on_its_page(tmp_path: Path) -> None:
    keys = {"methods": "fedavg, fedprox", "rounds": 2, "seeds": 2, "client_accuracy": True}
    study(
        tmp_path / "s", data=numbered(), model="linear", loss="squared_error", metric="r2", **keys
    ).run()
    hidden = r"(?s)<script.*?</script>|<style.*?</style>|data:image[^\"]*|<details>.*?</details>"
    page = re.sub(hidden, "", (tmp_path / "s" / "report.html").read_text())
    assert "accuracy" not in page
    assert "R²" in page
    assert "%" not in re.sub("95 ?%|10 ?%", "", page)
    for file in (tmp_path / "s" / "figures").glob("*.svg"):
        text = file.read_text()
        assert "<!-- test accuracy" not in text, file.name
        assert "(%)" not in text or "clients" in file.name, file.name
