"""Runs that diverged, and on whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedskip.federation.server import draw_cohort
from fedskip.methods import FedAvg
from fedskip.paper.clients import dealt
from fedskip.paper.diverged import came_from, diverged, diverged_sheet
from fedskip.records.table import Table
from fedskip.report.results import Results

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "synthetic"


def test_when_and_on_which_client(tmp_path: Path) -> None:
    """SYNTHETIC can be dealt again anywhere. One run broke on client 3, of another nobody knows where."""
    study = Results.read(FOLDER)
    rows = [dict(row) for row in study.summary]
    broke = {"a": {"broke_round": 17, "broke_client": 3}, "b": {"rounds": 40}}
    for row in rows:
        if row["method"] == "SCAFFOLD" and row["seed"] < 2:
            row |= {"diverged": True} | broke["ab"[row["seed"]]]
    lost = replace(study, summary=Table([*study.summary.columns, "broke_round", "broke_client"], rows))
    diverged([lost], tmp_path)
    found = Table.read(tmp_path / "diverged.csv")
    assert found.column("setting") == ["table3/synthetic"] * 2, "sigmoid/synthetic has the same runs"
    one, other = found
    division = dealt(next(s for s in study.settings if s.name == "synthetic"), 0)
    assert division is not None
    assert (one["broke_round"], one["size"]) == (17, division.clients.sizes[3])
    assert (one["classes"], one["largest_class"]) == (1, 1.0)
    assert (other["last_round"], other["size"]) == (40, None)
    [row] = diverged_sheet([lost], tmp_path / "diverged.csv").rows
    cells = [cell.plain for cell in row]
    assert cells[:4] == ["table3/synthetic", "SCAFFOLD", "2 of 3", "17; after 40"]
    assert cells[4] == f"3 ({one['size']} samples, mean 244; all of one class); not noted"
    assert cells[5] == "–; –", "a model that is merged in every round comes from nobody"


def test_a_run_in_two_folders_stands_there_once(tmp_path: Path) -> None:
    """The same of other methods: their runs are others."""
    study = Results.read(FOLDER)
    rows = [row | {"diverged": row["method"] == "SCAFFOLD" and row["seed"] < 2} for row in study.summary]
    lost = replace(study, summary=Table(study.summary.columns, rows))
    diverged([lost, replace(lost, out=tmp_path / "again")], tmp_path)
    found = Table.read(tmp_path / "diverged.csv")
    assert [(row["setting"], row["seed"]) for row in found] == [
        ("table3/synthetic", 0),
        ("table3/synthetic", 1),
    ]


def test_a_model_that_skips_came_from_another_client() -> None:
    """FedSkip-3 merges after round 15: round 17 is the second visit of a model, round 16 its first."""
    study = Results.read(FOLDER)
    setting = next(s for s in study.settings if s.name == "synthetic")
    then, now = (draw_cohort("uniform", 0, round - 1, 212, 10) for round in (16, 17))
    run = {"seed": 0, "broke_round": 17, "broke_client": int(now[4])}
    assert came_from(run, setting, FedAvg(period=3)) == then[4]
    assert came_from(run, setting, FedAvg()) is None
    assert (
        came_from(run | {"broke_round": 16, "broke_client": int(then[4])}, setting, FedAvg(period=3)) is None
    )
    assert came_from({"seed": 0, "broke_client": None}, setting, FedAvg(period=3)) is None
    pinned = replace(setting, keys=setting.keys | {"partition_seed": 0})
    then, now = (draw_cohort("uniform", 9, round - 1, 212, 10) for round in (16, 17))
    assert came_from(run | {"seed": 9, "broke_client": int(now[2])}, pinned, FedAvg(period=3)) == then[2]
