"""Differences from a baseline, in a table and in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedskip.report.units import Metric
from fedskip.report.verdict import compared, in_words
from studies import recorded, run

SCORES = {"FedAvg": (0.50, 0.60), "MOON": (0.52, 0.62), "FedNova": (0.40, 0.50), "FedDyn": (0.4, 0.9)}


def test_words_follow_from_the_table(tmp_path: Path) -> None:
    runs = [run(label, seed, score) for label, of in SCORES.items() for seed, score in enumerate(of)]
    results = recorded(tmp_path, runs)
    rows = [[cell.plain for cell in row] for row in compared(results).rows]
    assert rows[0] == ["FedAvg", "–", "–", "–", "–", "2.50", "baseline"]
    assert rows[1] == ["MOON", "+2.00", "+2.00 to +2.00", "2", "0", "1.50", "better"]
    assert in_words(results) == [
        "Highest by tail (mean over the last 10% of the rounds) is FedDyn with 65.00 ± 35.36, "
        "not told apart from MOON, FedAvg and FedNova. Against the baseline: "
        "MOON (+2.00 points) is better than FedAvg; FedNova (-10.00 points) is worse "
        "than FedAvg; FedDyn is not told apart from FedAvg. "
        "(95% intervals of differences seed by seed, 2 seeds; 3 comparisons, none corrected for.) "
        "Two seeds tell little: run more before you rely on this."
    ]
    assert compared(results, "moon").title == "tail, against MOON"


def test_without_fedavg_the_first_is_the_baseline(tmp_path: Path) -> None:
    results = recorded(tmp_path, [run("MOON", 0, 0.5), run("FedDyn", 0, 0.6)])
    assert compared(results).rows[0][-1].plain == "baseline"
    assert in_words(results) == [
        "Highest by tail (mean over the last 10% of the rounds) is FedDyn with 60.00. "
        "Against the baseline: one seed does not tell a difference from MOON from chance."
    ]


def test_a_setting_without_the_baseline_is_named(tmp_path: Path) -> None:
    runs = [run(m, s, 0.5 + s / 10, setting="a") for m in ("FedAvg", "MOON") for s in range(3)]
    results = recorded(tmp_path, [*runs, run("MOON", 0, 0.5, setting="b")], ["a", "b"])
    assert in_words(results)[1] == "b: nothing is compared, as FedAvg was not run."


def test_where_lower_is_better(tmp_path: Path) -> None:
    scores = {"FedAvg": (12.0, 12.5), "MOON": (10.0, 10.5), "FedNova": (14.0, 14.5)}
    runs = [run(label, seed, score) for label, of in scores.items() for seed, score in enumerate(of)]
    results = recorded(tmp_path, runs)
    [setting] = results.settings
    results = replace(results, settings=(replace(setting, known=(Metric("perplexity", higher=False),)),))
    assert results.leaders("a") == ["MOON"]
    sheet = compared(results)
    rows = [[cell.plain for cell in row] for row in sheet.rows]
    assert rows[1] == ["MOON", "-2", "-2 to -2", "2", "0", "1.00", "better"]
    assert rows[2][-1] == "worse"
    assert "Differences in test perplexity from FedAvg" in sheet.note
    assert "1 is the lowest" in sheet.note
    [words] = in_words(results)
    assert words.startswith(
        "Lowest by tail (mean over the last 10% of the rounds) is MOON with 10.25 ± 0.35. "
    )
    assert "MOON (-2) is better than FedAvg; FedNova (+2) is worse than FedAvg" in words
    assert "point" not in words
    assert "%" not in words.replace("95%", "").replace("10%", "")
