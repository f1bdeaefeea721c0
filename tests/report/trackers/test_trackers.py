"""Trackers get all of a study, once, in order; they are found by name, and cannot harm it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path
from threading import Event

import pytest

from fedskip import InputError
from fedskip.report import trackers
from fedskip.report.trackers import (
    Start,
    Tracker,
    TrackerList,
    finite_numbers,
    importing,
    make_tracker,
)
from fedskip.report.trackers.tensorboard import TensorBoard
from fedskip.study import Interrupted
from studies import as_table, numbers, study, weights
from tracked import FEW, stopped, without_clock
from tracked import history as expected


class Listens(Tracker):
    def __init__(self):
        self.heard, self.ended, self.closed = {}, None, 0

    def on_start(self, start):
        self.started = start
        self.on_rows(start.rows)

    def on_rows(self, rows):
        for row in rows:
            rounds = self.heard.setdefault(row["run"], {})
            assert row["round"] > max(rounds, default=0)
            rounds[row["round"]] = {k: v for k, v in row.items() if isinstance(v, int | float)}

    def on_end(self, results):
        self.ended = results

    def close(self):
        self.closed += 1


def heard(listener):
    """Without what says which row it is."""
    return {
        run: {
            r: {k: v for k, v in row.items() if k not in ("seed", "round")}
            for r, row in rows.items()
        }
        for run, rows in listener.heard.items()
    }


@pytest.mark.parametrize("processes", [1, 2])
def test_all_rows_in_order(tmp_path, processes):
    listener = Listens()
    settings = [{"name": "one"}, {"name": "two", "cohort": 2}]
    results = study(tmp_path / "s", **FEW, settings=settings, processes=processes).run(
        trackers=[listener]
    )
    assert heard(listener) == expected(tmp_path / "s")
    assert listener.ended is results
    assert listener.closed == 1


def test_one_that_was_stopped_is_closed_and_goes_on_where_it_was(tmp_path):
    first, second = Listens(), Listens()
    with stopped(4, lambda: signal.raise_signal(signal.SIGINT)), pytest.raises(Interrupted):
        study(tmp_path / "s", **FEW).run(trackers=[first])
    assert (first.ended, first.closed) == (None, 1)
    study(tmp_path / "s", **FEW).resume(trackers=[second])
    assert {row["round"] for row in second.started.rows} == {1, 2, 3, 4, 5, 6}
    assert second.started.runs == first.started.runs
    assert without_clock(heard(second)) == without_clock(expected(tmp_path / "s"))
    study(tmp_path / "s", **FEW).resume(rounds=9, trackers=[third := Listens()])
    assert third.started.runs[0].keys["rounds"] == 9
    assert without_clock(heard(third)) == without_clock(expected(tmp_path / "s"))


def test_it_is_no_part_of_a_study(tmp_path):
    """Another one may listen later; files and digests stay as they are."""
    study(tmp_path / "one", rounds=2).run(trackers=[Listens()])
    study(tmp_path / "two", rounds=2).run()
    assert (tmp_path / "one/study.yaml").read_bytes() == (tmp_path / "two/study.yaml").read_bytes()
    assert {path.name for path in (tmp_path / "one").iterdir()} == {
        path.name for path in (tmp_path / "two").iterdir()
    }


def test_a_run_that_diverged(tmp_path, caplog):
    """It has no row, and a summary without scores: no tracker stumbles over it."""
    keys = FEW | {"methods": "fedprox(mu=1e30)", "local": {"batch": 4, "epochs": 1, "lr": 1e30}}
    listener = Listens()
    results = study(tmp_path / "s", **keys).run(
        trackers=[listener, "tensorboard", "wandb", "mlflow"]
    )
    assert [row["diverged"] for row in as_table(results.summary)] == [True]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert (listener.heard, listener.ended) == ({}, results)


# --- the data that they get --------------------------------------------------------------------------


class Keeps(Tracker):
    def on_start(self, start):
        self.start = start


def begun(out, **keys):
    tracker = Keeps()
    return tracker, study(out, rounds=1, **keys).run(trackers=[tracker])


def test_every_run_with_its_keys(tmp_path):
    settings = [{"name": "one"}, {"name": "two", "cohort": 2}]
    tracker, results = begun(tmp_path / "s", methods="fedprox(mu=[0.1,1])", settings=settings)
    start = tracker.start
    assert (start.name, start.out, list(start.rows)) == ("study", tmp_path / "s", [])
    about = [(run.name, run.setting, run.method, run.seed) for run in start.runs]
    assert about == [
        (r["run"], r["setting"], r["method"], r["seed"]) for r in as_table(results.summary)
    ]
    assert len(start.runs) == 8
    keys = start.runs[-1].keys
    expected = {
        "setting": "two",
        "method": "FedProx(mu=1.0)",
        "method.mu": 1.0,
        "method.period": 1,
        "seed": 1,
    }
    expected |= {"cohort": 2, "local.batch": 4, "partition.kind": "natural", "rounds": 1}
    assert expected.items() <= keys.items()
    assert not keys.keys() & {"name", "methods", "seeds"}
    assert all(isinstance(value, bool | int | float | str) for value in keys.values())


def test_a_folder_keeps_its_id(tmp_path):
    one, other = (Start("s", tmp_path / name, [], []) for name in "ab")
    assert one.id != other.id
    assert Start("s", tmp_path / "a", [], []).id == one.id


def test_numbers_are_finite_and_measured():
    row = {
        "setting": "a",
        "run": "a.s3",
        "period": "5",
        "seed": 3,
        "round": 4,
        "merges": 2,
        "diverged": True,
    }
    row |= {"test_loss": float("inf"), "val_accuracy": None, "train_loss": 0.5}
    assert finite_numbers(row) == {"merges": 2, "diverged": True, "train_loss": 0.5}


def test_a_library_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError) as error:
        TensorBoard()
    assert str(error.value).startswith("tensorboard is not installed")
    assert 'pip install "fedskip[tensorboard]"' in str(error.value)
    with (
        pytest.raises(InputError, match=r"mlflow cannot be imported \(it is broken\)"),
        importing("mlflow"),
    ):
        raise ImportError("it is broken")


def test_rows_of_runs_that_are_no_more_are_left_out(tmp_path):
    """The history may hold methods that were taken out of the study."""
    made = study(tmp_path / "s", methods="fedavg", seeds=1)
    rows = [{"run": "toy.FedAvg.s0", "round": 1}, {"run": "toy.MOON.s0", "round": 1}]
    start = Start.of(
        made.out, made.spec, [draft.resolved({}) for draft in made.spec.settings], rows
    )
    assert start.rows == rows[:1]


# --- found by name, called together ------------------------------------------------------------------


HOOKS = ["on_start", "on_rows", "on_end", "close"]
OWN = """
import fedskip

class Fine(fedskip.Tracker):
    pass

class Asks(fedskip.Tracker):
    def __init__(self, where):
        self.where = where

number = 3
"""


class Notes(Tracker):
    """Notes which hooks were called."""

    def __init__(self, fails="", error=ValueError):
        self.heard, self.fails, self.error = [], fails, error

    def _hear(self, hook, told=None):
        self.heard.append(hook)
        if hook == self.fails:
            raise self.error("no room left\nsecond line")
        if hook == "on_rows":
            told[0].clear()  # theirs to change

    def on_start(self, start):
        self._hear("on_start")

    def on_rows(self, rows):
        self._hear("on_rows", rows)

    def on_end(self, results):
        self._hear("on_end")

    def close(self):
        self._hear("close")


def test_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_trackers.py").write_text(OWN)
    assert isinstance(make_tracker("tensorboard"), TensorBoard)
    assert type(make_tracker("own_trackers:Fine")).__name__ == "Fine"
    both = TrackerList(["tensorboard", Notes()])
    assert [type(one).__name__ for one in both.trackers] == ["TensorBoard", "Notes"]
    assert len(TrackerList("tensorboard").trackers) == len(TrackerList(Notes()).trackers) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensorbord", "--track is not known, got 'tensorbord'. Did you mean 'tensorboard'?"),
        (
            "nowhere:Fine",
            "--track nowhere:Fine: nowhere cannot be imported: No module named 'nowhere'.",
        ),
        (
            "own_trackers:Fein",
            "--track own_trackers:Fein: own_trackers has no 'Fein'. Check the name",
        ),
        (
            "own_trackers:number",
            "--track own_trackers:number must be a subclass of fedskip.Tracker, got 3.",
        ),
        ("own_trackers:Asks", "--track own_trackers:Asks cannot be made: TypeError: "),
        (
            "wandb",
            '--track wandb: is not installed. Install it with `pip install "fedskip[wandb]"`',
        ),
        (
            "mlflow",
            '--track mlflow: is not installed. Install it with `pip install "fedskip[mlflow]"`',
        ),
    ],
)
def test_bad_names(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_trackers.py").write_text(OWN)
    for library in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError) as error:
        make_tracker(name, "--track")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "wrong", [[TensorBoard], [3], "tensorbord", ["tensorboard", TensorBoard()]]
)
def test_what_is_no_tracker_is_refused_before_anything_is_written(tmp_path, wrong):
    with pytest.raises(InputError, match="trackers"):
        study(tmp_path / "s").run(trackers=wrong)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("hook", HOOKS)
def test_one_that_fails_is_named_once_and_the_study_goes_on(tmp_path, hook, caplog):
    failing, other = Notes(hook), Notes()
    with caplog.at_level(logging.WARNING):
        results = study(tmp_path / "s", methods="fedavg", rounds=3, seeds=1).run(
            trackers=[failing, other]
        )
    assert results.finished
    assert [record.getMessage() for record in caplog.records] == [
        f"Notes failed in {hook} (ValueError: no room left); the study goes on without it"
    ]
    assert failing.heard.count(hook) == 1
    assert failing.heard[-1] == "close"
    assert other.heard == ["on_start", "on_rows", "on_rows", "on_rows", "on_end", "close"]


class Sleeps(Tracker):
    """Does not come back from a hook until it is woken; it may interrupt the study first."""

    def __init__(self, hook, interrupts=False):
        self.hook, self.interrupts, self.awake, self.heard = hook, interrupts, Event(), []

    def _hear(self, hook):
        self.heard.append(hook)
        if hook == self.hook:
            if self.interrupts:
                os.kill(os.getpid(), signal.SIGINT)
            self.awake.wait(30)

    def on_start(self, start):
        self._hear("on_start")

    def on_rows(self, rows):
        self._hear("on_rows")

    def on_end(self, results):
        self._hear("on_end")

    def close(self):
        self._hear("close")


@pytest.fixture
def in_a_hurry(monkeypatch):
    for name, seconds in {"LIMIT": 0.3, "PER_RUN": 0, "WAIT": 0.1, "LOOK": 0.05}.items():
        monkeypatch.setattr(trackers, name, seconds)


@pytest.mark.parametrize("hook", HOOKS)
def test_one_that_does_not_come_back_is_dropped(tmp_path, in_a_hurry, hook, caplog):
    sleeping, other = Sleeps(hook), Notes()
    began = time.monotonic()
    results = study(tmp_path / "s", methods="fedavg", rounds=3, seeds=1).run(
        trackers=[sleeping, other]
    )
    assert results.finished
    assert time.monotonic() - began < 20
    late = f"Sleeps has not come back from {hook} for 0.3 s; the study goes on without it"
    assert [m for m in caplog.messages if "waiting" not in m] == [late]
    assert other.heard == ["on_start", "on_rows", "on_rows", "on_rows", "on_end", "close"]
    sleeping.awake.set()


def test_ctrl_c_does_not_wait_for_a_tracker(tmp_path, in_a_hurry):
    sleeping, other = Sleeps("on_start", interrupts=True), Notes()
    with pytest.raises(Interrupted):
        study(tmp_path / "s", rounds=3, processes=1).run(trackers=[sleeping, other])
    assert (other.heard[0], other.heard[-1]) == ("on_start", "close")
    assert "on_end" not in other.heard


def test_one_that_is_slow_gets_everything(tmp_path, monkeypatch):
    """Training waits while too many calls wait."""
    monkeypatch.setattr(trackers, "WAITING", 1)
    heard = []

    class Slow(Tracker):
        def on_rows(self, rows):
            time.sleep(0.05)
            heard.extend(row["round"] for row in rows)

    study(tmp_path / "s", methods="fedavg", rounds=9, seeds=1).run(trackers=[Slow()])
    assert heard == [*range(1, 10)]


def moves():
    os.chdir("/")


def exits():
    sys.exit(0)


def interrupts():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("does", "why"),
    [
        (moves, "must not change the working folder"),
        (exits, "must not exit (SystemExit: 0)"),
        (lambda: sys.stdout.close(), "must not close stdout"),
        (lambda: os.close(2), "must not close stderr"),
        (interrupts, "KeyboardInterrupt: KeyboardInterrupt"),
    ],
)
def test_one_that_harms_the_process_is_named_and_dropped(tmp_path, monkeypatch, does, why, caplog):
    class Harms(Tracker):
        def on_rows(self, rows):
            does()

    monkeypatch.chdir(tmp_path)
    (tmp_path / "out.txt").touch()
    with (tmp_path / "out.txt").open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        results = study(Path("s"), methods="fedavg", rounds=3, seeds=1).run(trackers=[Harms()])
        print("still there")
    assert results.finished
    assert Path.cwd() == tmp_path
    assert caplog.messages == [f"Harms failed in on_rows ({why}); the study goes on without it"]
    os.fstat(2)


def test_rows_are_theirs_to_change_and_results_are_the_same(tmp_path):
    study(tmp_path / "without", rounds=3).run()
    study(tmp_path / "with", rounds=3).run(trackers=[Notes(), Notes("on_rows"), TensorBoard()])
    assert numbers(tmp_path / "with") == numbers(tmp_path / "without")
    assert weights(tmp_path / "with") == weights(tmp_path / "without")
    assert (tmp_path / "with/summary.csv").read_bytes() == (
        tmp_path / "without/summary.csv"
    ).read_bytes()


def test_nothing_is_told_twice():
    """Not even of a run that starts anew, which the last checkpoint lacks."""
    heard = []

    class Hears(Tracker):
        def on_rows(self, rows):
            heard.append([row["round"] for row in rows])

    told = TrackerList(Hears())
    told.on_start(Start("s", Path(), [], [{"run": "a", "round": 2}, {"run": "a", "round": 3}]))
    for rounds in ([1, 2], [3, 4], [5]):
        told.on_rows([{"run": "a", "round": round} for round in rounds])
    told.close()
    assert heard == [[4], [5]]
