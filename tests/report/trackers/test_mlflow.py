"""MLflow: its own client finds every number of the history once."""

import pytest
from mlflow import MlflowClient

from fedskip.report.trackers import mlflow
from fedskip.report.trackers.mlflow import MLflow
from studies import numbers, study, weights
from tracked import FEW, flat, history, kill, stopped, summaries, without_clock


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(mlflow, "SENDING", 0.0)


def runs(out, store=None):
    client = MlflowClient(store or f"sqlite:///{out / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("study")
    return client, {
        run.info.run_name: run for run in client.search_runs([experiment.experiment_id])
    }


def read(out, store=None):
    """By run and round; and the summary by run."""
    heard, ends = {}, {}
    client, found = runs(out, store)
    for name, run in found.items():
        rounds, ends[name] = {}, {}
        for key in run.data.metrics:
            points = flat(
                [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]
            )
            if key.startswith("summary/"):
                ends[name][key.removeprefix("summary/")] = points[max(points)]
            else:
                for round, value in points.items():
                    rounds.setdefault(round, {})[key] = value
        heard[name] = rounds
    return heard, ends


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_numbers_summary_and_parameters(tmp_path, processes, capfd):
    """Also where the study forks: nothing hangs, and no child says anything twice."""
    settings = [{"name": "one"}, {"name": "two", "cohort": 2}]
    made = study(tmp_path / "s", **FEW, settings=settings, processes=processes)
    results = made.run(trackers=[MLflow()])
    assert capfd.readouterr() == ("", "")
    heard, ends = read(tmp_path / "s")
    assert heard == history(tmp_path / "s")
    assert ends == summaries(results)
    run = runs(tmp_path / "s")[1]["two.FedSkip-2.s0"]
    expected = {
        "method": "FedSkip-2",
        "method.period": "2",
        "seed": "0",
        "cohort": "2",
        "local.batch": "4",
    }
    assert expected.items() <= run.data.params.items()
    assert run.info.status == "FINISHED"


def test_bits_are_the_same(tmp_path):
    study(tmp_path / "without", **FEW).run()
    study(tmp_path / "with", **FEW).run(trackers=[MLflow()])
    assert numbers(tmp_path / "with") == numbers(tmp_path / "without")
    assert weights(tmp_path / "with") == weights(tmp_path / "without")


@pytest.mark.slow
def test_killed_between_a_row_and_its_checkpoint(tmp_path):
    """Also what waited to be sent is there in the end."""
    kill(tmp_path / "s", "mlflow")
    first = {run.info.run_id for run in runs(tmp_path / "s")[1].values()}
    results = study(tmp_path / "s", **FEW, processes=1).resume(trackers=[MLflow()])
    heard, ends = read(tmp_path / "s")
    assert without_clock(heard) == without_clock(history(tmp_path / "s"))
    assert ends == summaries(results)
    assert {run.info.run_id for run in runs(tmp_path / "s")[1].values()} == first


def test_rounds_that_come_again_are_not_doubled(tmp_path):
    """After a kill the store has rounds that the checkpoint does not know."""
    with stopped(5), pytest.raises(KeyboardInterrupt):
        study(tmp_path / "s", **FEW, processes=1).run(trackers=[MLflow()])
    before, _ = read(tmp_path / "s")
    assert max(before["toy.FedAvg.s0"]) >= 5
    assert {run.info.status for run in runs(tmp_path / "s")[1].values()} == {"KILLED"}
    study(tmp_path / "s", **FEW, processes=1).resume(rounds=9, trackers=[MLflow()])
    study(tmp_path / "s", **FEW, processes=1).resume(trackers=[MLflow()])
    heard, ends = read(tmp_path / "s")
    assert without_clock(heard) == without_clock(history(tmp_path / "s"))
    assert ends["toy.FedAvg.s0"]["rounds"] == 9
    run = runs(tmp_path / "s")[1]["toy.FedAvg.s0"]
    assert run.info.status == "FINISHED"
    assert run.data.params["rounds"] == "7"  # MLflow's parameters cannot change


def test_studies_of_one_name_share_a_store(tmp_path, monkeypatch):
    store = f"sqlite:///{tmp_path / 'shared.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    for name in ("one", "two"):
        study(tmp_path / name, **FEW).run(trackers=[MLflow()])
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("study")
    found = client.search_runs([experiment.experiment_id])
    assert (
        sorted(run.info.run_name for run in found)
        == ["toy.FedAvg.s0"] * 2 + ["toy.FedSkip-2.s0"] * 2
    )
    assert {run.data.tags["fedskip.out"] for run in found} == {
        str(tmp_path / n) for n in ("one", "two")
    }
    assert not (tmp_path / "one" / "mlflow.db").exists()


def test_rows_are_sent_together(tmp_path, monkeypatch):
    sent = []
    log_batch = MlflowClient.log_batch

    def counted(self, run_id, metrics=(), **what):
        sent.append(len(metrics))
        return log_batch(self, run_id, metrics=metrics, **what)

    monkeypatch.setattr(mlflow, "SENDING", 1e9)
    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    keys = FEW | {"methods": "fedavg", "rounds": 120, "checkpoint_every": 60}
    study(tmp_path / "s", **keys).run(trackers=[MLflow()])
    assert [count for count in sent if count][:2] == [450, 450]
    assert read(tmp_path / "s")[0] == history(tmp_path / "s")
