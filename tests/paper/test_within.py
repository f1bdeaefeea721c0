"""Runs that were made longer, as they stood before."""

from __future__ import annotations

from pathlib import Path

from fedskip.paper.within import within
from studies import curve, recorded, run


def test_scores_are_those_of_the_first_rounds(tmp_path: Path) -> None:
    rows = curve("FedAvg", 0, {5: 0.3, 10: 0.4, 14: 0.6, 20: 0.9})
    study = recorded(tmp_path, [run("FedAvg", 0, 0.9) | {"rounds": 20}], rows=rows, rounds=20)
    cut = within(study, 10)
    [row] = cut.summary
    assert (row["last"], row["best"], row["best_round"], row["mean_tail"]) == (0.4, 0.4, 10, 0.4)
    assert (row["rounds"], row["merges"], row["bytes_total"]) == (10, 2, 1100)
    assert cut.history.column("round") == [5, 10]
    assert cut.settings[0].rounds == 10
    further = within(study, 10, 1.5)
    assert further.history.column("round") == [5, 10, 14]
    assert (further.summary[0]["best"], further.summary[0]["rounds"]) == (0.4, 15), "scores are not moved"


def test_what_broke_later_had_not_broken(tmp_path: Path) -> None:
    broke = {"diverged": True, "rounds": 12, "broke_round": 13, "broke_client": 3}
    rows = curve("FedAvg", 0, {10: 0.4, 12: 0.1}) + curve("FedAvg", 1, {4: 0.2})
    runs = [run("FedAvg", 0, 0.1) | broke, run("FedAvg", 1, 0.2) | broke | {"rounds": 4, "broke_round": None}]
    cut = within(recorded(tmp_path, runs, rows=rows, rounds=20), 10)
    assert cut.summary.column("diverged") == [False, True]
    assert cut.summary.column("broke_client") == [None, 3]


def test_what_cannot_be_cut_stays(tmp_path: Path) -> None:
    made = [run("FedAvg", 0, 0.9) | {"rounds": 20}]
    bare = recorded(tmp_path, made, rounds=20)
    assert within(bare, 10) is bare
    short = recorded(tmp_path, made, rows=curve("FedAvg", 0, {5: 0.3}), rounds=10)
    assert within(short, 10) is short
