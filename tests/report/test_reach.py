"""What it takes to reach a target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedskip.input.errors import InputError
from fedskip.records.table import Table
from fedskip.report.reach import in_words, reachable, reached
from fedskip.report.results import Results
from fedskip.report.units import Metric
from fedskip.report.verdict import compared
from studies import curve, recorded, run


def made(tmp_path: Path, **keys: object) -> Results:
    """FedSkip-3 is there first, MOON with the fewest merges, FedNova never."""
    curves = {"FedAvg": {1: 0.3, 2: 0.4, 3: 0.4, 4: 0.5}, "FedSkip-3": {1: 0.1, 2: 0.5}}
    curves |= {"MOON": {3: 0.6}, "FedNova": {4: 0.4}}
    rows = [row for label, scores in curves.items() for seed in (0, 1) for row in curve(label, seed, scores)]
    runs = [run(label, seed, max(scores.values())) for label, scores in curves.items() for seed in (0, 1)]
    return recorded(tmp_path, runs, rows=rows, **keys)


def test_the_table(tmp_path: Path) -> None:
    sheet = reached(made(tmp_path))
    assert sheet.title == "To reach FedAvg's best"
    assert [[cell.plain for cell in row] for row in sheet.rows] == [
        ["FedAvg", "2 of 2", "4 ± 0", "4 ± 0", "440 B ± 0 B"],
        ["FedSkip-3", "2 of 2", "2 ± 0", "2 ± 0", "220 B ± 0 B"],
        ["MOON", "2 of 2", "3 ± 0", "1 ± 0", "330 B ± 0 B"],
        ["FedNova", "0 of 2", "–", "–", "–"],
    ]
    assert (
        reached(made(tmp_path), 0.4).title == reached(made(tmp_path, target=0.4)).title == "To reach 40.00 %"
    )


def test_a_reduced_study_says_so_in_every_table(tmp_path: Path) -> None:
    results = made(tmp_path, of_rounds=200, note="not the paper's model")
    said = "Reduced: 5 of 200 rounds. Not the paper's model."
    assert all(sheet.note.endswith(said) for sheet in (reached(results), compared(results)))
    [setting] = results.settings
    half = replace(results, settings=(replace(setting, precision="bf16"),))
    assert half.marks == ["reduced: 5 of 200 rounds", "not the paper's model", "in bf16"]


def test_a_run_without_a_merge_has_not_got_there(tmp_path: Path) -> None:
    """Rather than not to count, as one whose history was not kept."""
    results = made(tmp_path)
    short = [run("FedSkip-9", seed, None) | {"merges": merges} for seed, merges in ((0, 0), (1, 3))]
    results = replace(results, summary=Table(results.summary.columns, [*results.summary, *short]))
    [*_, row] = results.to_target("FedAvg")
    assert (row["method"], row["reached"], row["seeds"]) == ("FedSkip-9", 0, 1)


def test_in_words(tmp_path: Path) -> None:
    assert in_words(made(tmp_path)) == [
        "FedAvg's best is reached soonest by FedSkip-3: 2 rounds, 2 merges, 220 B; "
        "with the fewest merges by MOON: 3 rounds, 1 merge, 330 B. FedAvg itself: 4 rounds, 4 merges, 440 B."
    ]
    assert in_words(made(tmp_path), "MOON") == ["No other method reaches MOON's best at every seed."]
    assert in_words(made(tmp_path), 0.99) == [], "nobody gets there"


def test_settings_with_targets_of_their_own(tmp_path: Path) -> None:
    rows = [
        row
        for name in "ab"
        for m in ("FedAvg", "MOON")
        for row in curve(m, 0, {1: 0.3, 2: 0.5}, setting=name)
    ]
    runs = [run(m, 0, 0.5, setting=name) for name in "ab" for m in ("FedAvg", "MOON")]
    results = recorded(tmp_path, runs, ["a", "b"], rows)
    results.settings[1].keys["target"] = 0.3
    sheet = reached(results)
    assert (sheet.title, sheet.headers[:3]) == ("To reach the target", ["setting", "method", "target"])
    assert [row[2].plain for row in sheet.rows] == ["FedAvg's best"] * 2 + ["30.00 %"] * 2
    assert in_words(results)[1].startswith("b: 30.00 % is reached soonest by FedAvg: 1 round,")


def test_without_a_history_nothing_is_said(tmp_path: Path) -> None:
    """Not even that nobody gets there."""
    results = recorded(tmp_path, [run("FedAvg", 0, 0.5), run("MOON", 0, 0.6)])
    assert not reachable(results)
    assert results.to_target().column("seeds") == [0, 0]
    assert in_words(results) == []
    with pytest.raises(InputError, match="y has no numbers in this history, got 'test_accuracy'"):
        results.plot.curves()
    assert reachable(made(tmp_path))
    lost = recorded(tmp_path, [run("FedAvg", 0, None, diverged=True), run("MOON", 0, 0.6)])
    assert lost.to_target(0.5).column("seeds") == [1, 0], "one that diverged at once never got there"


def test_a_target_from_above(tmp_path: Path) -> None:
    rows = [*curve("FedAvg", 0, {1: 9.0, 2: 7.0, 3: 5.0}), *curve("MOON", 0, {1: 8.0, 2: 4.0, 3: 6.0})]
    results = recorded(tmp_path, [run("FedAvg", 0, 5.0), run("MOON", 0, 4.0)], rows=rows, target=6.0)
    known = (Metric("rmse", higher=False),)
    results = replace(results, settings=tuple(replace(one, known=known) for one in results.settings))
    assert results.to_target().column("rounds") == [3, 2]
    assert reached(results).title == "To reach 6"
    assert results.to_target(1.0).column("reached") == [0, 0]
