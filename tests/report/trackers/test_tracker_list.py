"""Trackers are found by name, and cannot harm a study."""

import logging
import sys
from pathlib import Path

import pytest

from fedskip import InputError, Tracker
from fedskip.report.trackers import Start, TrackerList, make_tracker
from fedskip.report.trackers.tensorboard import TensorBoard
from studies import numbers, study, weights

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


def test_ctrl_c_passes_through(tmp_path):
    failing, other = Notes("on_rows", KeyboardInterrupt), Notes()
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "s", rounds=3, processes=1).run(trackers=[failing, other])
    assert other.heard == ["on_start", "close"]


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

    trackers = TrackerList(Hears())
    trackers.on_start(Start("s", Path(), [], [{"run": "a", "round": 2}, {"run": "a", "round": 3}]))
    for rounds in ([1, 2], [3, 4], [5]):
        trackers.on_rows([{"run": "a", "round": round} for round in rounds])
    assert heard == [[4], [5]]
