"""The data that trackers get."""

import sys

import pytest

from fedskip import InputError
from fedskip.report.trackers import Start, Tracker, finite_numbers, importing
from fedskip.report.trackers.tensorboard import TensorBoard
from studies import as_table, study


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
