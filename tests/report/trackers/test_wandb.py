"""Weights & Biases, offline: its own reader finds every number of the history once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import wandb

from fedskip.report.trackers.wandb import WandB
from studies import numbers, study, weights
from tracked import FEW, flat, history, kill, stopped, summaries, without_clock

OWN = {"_step", "_runtime", "_timestamp"}  # what W&B adds


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield
    wandb.teardown()


def records(folder):
    """What a folder of W&B holds, as W&B itself reads it."""
    command = [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", folder]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in shown.splitlines()]


def read(out):
    """The rows, the last summary and what else there is, by run."""
    heard, ends, about = {}, {}, {}
    for folder in (out / "wandb").glob("offline-run-*"):
        found = records(folder)
        [run] = [record["run"] for record in found if record["type"] == "run"]
        assert run["display_name"] not in heard, "one folder for a run"
        items = [record["history"] for record in found if record["type"] == "history"]
        rows = [
            (row["step"]["num"], {k: v for k, v in row["item"].items() if k not in OWN})
            for row in items
        ]
        heard[run["display_name"]], about[run["display_name"]] = flat(rows), run
        ends[run["display_name"]] = summary = {}
        for record in found:
            summary |= record.get("summary", {}).get("update", {})
        about[run["display_name"]]["code"] = [
            r["exit"].get("exit_code", 0) for r in found if "exit" in r
        ]
    return heard, ends, about


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_numbers_summary_and_config(tmp_path, processes, capfd):
    """Also where the study forks: nothing hangs, and no child says anything twice."""
    settings = [{"name": "one"}, {"name": "two", "cohort": 2}]
    made = study(tmp_path / "s", **FEW, settings=settings, processes=processes)
    results = made.run(trackers=[WandB()])
    heard, ends, about = read(tmp_path / "s")
    assert heard == history(tmp_path / "s")
    for run, summary in summaries(results).items():
        assert summary.items() <= ends[run].items()
    run = about["two.FedSkip-2.s0"]
    assert (run["project"], run["run_group"], run["job_type"], run["code"]) == (
        "fedskip",
        "s",
        "two",
        [0],
    )
    config = run["config"]["update"]
    assert {
        "method": "FedSkip-2",
        "seed": 0,
        "cohort": 2,
        "local.batch": 4,
    }.items() <= config.items()
    assert capfd.readouterr() == ("", "")


def test_bits_are_the_same(tmp_path):
    study(tmp_path / "without", **FEW).run()
    study(tmp_path / "with", **FEW).run(trackers=[WandB()])
    assert numbers(tmp_path / "with") == numbers(tmp_path / "without")
    assert weights(tmp_path / "with") == weights(tmp_path / "without")


@pytest.mark.slow
def test_killed_between_a_row_and_its_checkpoint(tmp_path):
    kill(tmp_path / "s", "wandb")
    first = {folder.name[-16:] for folder in (tmp_path / "s" / "wandb").glob("offline-run-*")}
    results = study(tmp_path / "s", **FEW, processes=1).resume(trackers=[WandB()])
    assert {
        folder.name[-16:] for folder in (tmp_path / "s" / "wandb").glob("offline-run-*")
    } == first
    heard, ends, _ = read(tmp_path / "s")
    assert without_clock(heard) == without_clock(history(tmp_path / "s"))
    assert ends["toy.FedAvg.s0"]["best"] == summaries(results)["toy.FedAvg.s0"]["best"]


def test_a_study_that_is_stopped_leaves_whole_runs(tmp_path):
    with stopped(1), pytest.raises(KeyboardInterrupt):
        study(tmp_path / "s", **FEW, processes=1).run(trackers=[WandB()])
    heard, _, about = read(tmp_path / "s")
    assert heard["toy.FedAvg.s0"].keys() >= {1}
    assert about["toy.FedAvg.s0"]["code"] == [1]


def test_a_server_gets_what_it_lacks(tmp_path, monkeypatch):
    """As W&B's `resume` says it: without a server, a stand-in."""
    asked, logged = [], []

    class Run:
        starting_step = 5  # it has rounds 1 to 4

        def __init__(self):
            self.summary = {}

        def log(self, row, step, commit):
            logged.append(step)

        def finish(self, exit_code):
            pass

    def init(**arguments):
        asked.append((arguments["id"], arguments["mode"], arguments["resume"]))
        return Run()

    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(wandb, "init", init)
    study(tmp_path / "s", **FEW | {"methods": "fedavg"}).run(trackers=[WandB()])
    assert logged == [5, 6, 7]
    study(tmp_path / "s", **FEW | {"methods": "fedavg"}).resume(rounds=8, trackers=[WandB()])
    assert logged[3:] == [5, 6, 7, 8]
    assert asked[0] == asked[1]
    assert asked[0][1:] == ("online", "allow")
