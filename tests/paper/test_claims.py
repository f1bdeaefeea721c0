"""Numbers behind claims that tables do not show."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedskip.engine.local import Local
from fedskip.paper.claims import early_sheet, reach_sheet, slot_scores, slots_sheet, uneven_sheet
from fedskip.paper.columns import Column, columns
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet
from studies import curve, recorded, run


def kept(tmp_path: Path) -> tuple[list[Column], list[Results]]:
    """FEMNIST with two seeds; FedSkip-3 merges twice, MOON never gets where FedAvg gets at seed 1."""
    curves = {"fedavg": {9: 0.1, 20: 0.3, 190: 0.5, 200: 0.4}, "fedskip(period=3)": {15: 0.2, 60: 0.5}}
    curves |= {"moon": {5: 0.45}}
    labels = {"fedavg": "FedAvg", "fedskip(period=3)": "FedSkip-3", "moon": "MOON"}
    rows, runs = [], []
    for text, scores in curves.items():
        for seed in (0, 1):
            found = curve(labels[text], seed, scores)
            rows += [
                row | {"drift_mean": 2.0 * row["round"], "drift_broadcast": 3.0 * row["round"]}
                for row in found
            ]
            tail = {"mean_tail": 0.45, "best": max(scores.values()), "rounds": 200}
            runs.append(run(labels[text], seed, 0.4) | tail)
    results = recorded(
        tmp_path, runs, rows=rows, data={"name": "femnist"}, partition={"kind": "natural"}, clients=180,
        model={"name": "cnn-femnist"}, cohort=10, rounds=200, methods=list(curves),
        local=vars(Local(small_clients="short")),
    )  # fmt: skip
    return list(columns().values()), [results]


def plain(sheet: Sheet) -> list[list[str]]:
    return [[cell.plain for cell in row] for row in sheet.rows]


def test_early_rounds(tmp_path: Path) -> None:
    """At the last merge up to then; a dash before the first."""
    assert plain(early_sheet(*kept(tmp_path))) == [
        ["femnist (2 of 3 seeds)", "FedAvg", "10.00", "30.00", "30.00"],
        ["", "FedSkip-3", "–", "20.00", "20.00"],
    ]


def test_a_run_that_ended_counts_no_further(tmp_path: Path) -> None:
    """One that broke in round 20 counts in round 10 and not later; nor does one of 30 rounds in round 50."""
    some, [results] = kept(tmp_path)
    for row in results.summary.where(method="FedAvg", seed=1):
        row |= {"diverged": True, "rounds": 9, "broke_round": 20}
    for row in results.summary.where(method="FedSkip-3", seed=0):
        row["rounds"] = 30
    for row in results.history.where(method="FedSkip-3", seed=0):
        row["test_accuracy"] = 0.9
    assert plain(early_sheet(some, [results])) == [
        [
            "femnist (30 to 200 of 200 rounds, 2 of 3 seeds)",
            "FedAvg",
            "10.00",
            "30.00 (1 of 2 diverged)",
            "30.00 (1 of 2 diverged)",
        ],
        ["", "FedSkip-3", "–", "55.00", "20.00 (1 of 2 shorter)"],
    ]


def test_accuracy_and_drift_of_the_last_rounds(tmp_path: Path) -> None:
    assert plain(uneven_sheet(*kept(tmp_path))) == [["femnist", "2 of 3", "45.00 ± 0.00", "390.0", "585.0"]]


def test_what_diverged_counts_in_no_mean(tmp_path: Path) -> None:
    """It broke in the very last round: its drift, and its slots, were measured."""
    some, [results] = kept(tmp_path)
    for row in results.history:
        row["slot_accuracy"] = 0.3
        row["drift_mean"] += 100 * row["seed"]
    for row in results.summary.where(method="FedAvg", seed=1):
        row |= {"diverged": True, "broke_round": 200}
    assert plain(uneven_sheet(some, [results])) == [
        ["femnist (1 of 2 diverged)", "2 of 3", "45.00", "390.0", "585.0"]
    ]
    assert slot_scores(results, "FedAvg") == {0: pytest.approx(0.3), 1: None}
    assert plain(slots_sheet([columns()["table3/femnist"]], [results]))[0] == [
        "femnist (2 of 3 seeds)", "FedAvg (1 of 2 diverged)", "30.00", "", "45.00",
    ]  # fmt: skip


def test_merges_until_fedavgs_best(tmp_path: Path) -> None:
    [row] = plain(reach_sheet(*kept(tmp_path)))
    assert row == ["femnist (2 of 3 seeds)", "3", "2", "–", "–", "–", "3 (FedAvg)", "FedSkip-3"]


def test_a_column_in_which_nobody_gets_there(tmp_path: Path) -> None:
    """FedAvg diverged at every seed: there is nothing to reach."""
    some, [results] = kept(tmp_path)
    for row in results.summary:
        row |= {"diverged": row["method"] == "FedAvg", "rounds": 20}
    assert plain(reach_sheet(some, [results])) == [["femnist (20 of 200 rounds, 2 of 3 seeds)", *["–"] * 7]]


def test_slots_before_a_merge(tmp_path: Path) -> None:
    """MOON was stopped, which the column says."""
    _, [results] = kept(tmp_path)
    for row in results.history:
        row["slot_accuracy"] = 0.3 if row["method"] == "FedAvg" else 0.2 + 0.1 * row["seed"]
    for row in results.history.where(method="FedSkip-3"):
        row["round"] += 140  # into the last tenth
    for row in results.summary.where(method="MOON"):
        row["rounds"] = 20
    assert plain(slots_sheet([columns()["table3/femnist"]], [results])) == [
        ["femnist (20 to 200 of 200 rounds, 2 of 3 seeds)", "FedAvg", "30.00 ± 0.00", "", "45.00 ± 0.00"],
        ["", "FedSkip-3", "25.00 ± 7.07", "-5.00 (-68.53 to +58.53)", "45.00 ± 0.00"],
    ]
