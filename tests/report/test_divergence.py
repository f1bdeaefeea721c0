"""Runs that diverged, and visits that were set aside, in words."""

from __future__ import annotations

from pathlib import Path

from fedskip.report.findings import Findings
from fedskip.report.tables import DIVERGED_HELP as HELP
from fedskip.report.tables import divergence_notes as notes
from studies import recorded, run
from terminal import shown


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
