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


def test_rounds_of_a_run_that_broke_later_are_those_before_it_did(tmp_path: Path) -> None:
    """It merged last in round 9 and broke in round 14: of 10 rounds all were made, of 15 thirteen."""
    broke = {"diverged": True, "rounds": 9, "broke_round": 14, "broke_slot": 2}
    study = recorded(tmp_path, [run("FedAvg", 0, 0.1) | broke], rows=curve("FedAvg", 0, {9: 0.4}), rounds=20)
    assert [within(study, 10, beyond).summary[0]["rounds"] for beyond in (1.0, 1.5)] == [10, 13]
    assert within(study, 10).summary[0]["broke_slot"] is None


def test_one_that_broke_in_the_last_round_had_broken(tmp_path: Path) -> None:
    broke = {"diverged": True, "rounds": 9, "broke_round": 10}
    rows = curve("FedAvg", 0, {9: 0.4})
    cut = within(recorded(tmp_path, [run("FedAvg", 0, 0.1) | broke], rows=rows, rounds=20), 10)
    assert (cut.summary[0]["diverged"], cut.summary[0]["rounds"]) == (True, 9)


def test_what_nobody_measured_then_is_not_known(tmp_path: Path) -> None:
    later = {"rounds": 20, "final": 0.9, "full_test": 0.9, "worst_clients": 0.8}
    made = [run("FedAvg", 0, 0.9) | later]
    [row] = within(recorded(tmp_path, made, rows=curve("FedAvg", 0, {5: 0.3}), rounds=20), 10).summary
    assert [row[name] for name in ("final", "full_test", "worst_clients")] == [None] * 3


def test_what_cannot_be_cut_stays(tmp_path: Path) -> None:
    made = [run("FedAvg", 0, 0.9) | {"rounds": 20}]
    bare = recorded(tmp_path, made, rounds=20)
    assert within(bare, 10) is bare
    short = recorded(tmp_path, made, rows=curve("FedAvg", 0, {5: 0.3}), rounds=10)
    assert within(short, 10) is short
