"""What a tracker of one's own hears of a study: all of it, once, in order."""

import signal

import pytest

from fedskip import Tracker
from fedskip.study import Interrupted
from studies import as_table, study
from tracked import FEW, without_clock
from tracked import history as expected


class Listens(Tracker):
    def __init__(self, stop_at=0):
        self.heard, self.stop_at, self.ended, self.closed = {}, stop_at, None, 0

    def on_start(self, start):
        self.started = start
        self.on_rows(start.rows)

    def on_rows(self, rows):
        for row in rows:
            rounds = self.heard.setdefault(row["run"], {})
            assert row["round"] > max(rounds, default=0)
            rounds[row["round"]] = {k: v for k, v in row.items() if isinstance(v, int | float)}
            if row["round"] == self.stop_at:
                self.stop_at = 0
                signal.raise_signal(signal.SIGINT)

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
    first, second = Listens(stop_at=4), Listens()
    with pytest.raises(Interrupted):
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
