"""What is measured of a run, and which models are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedskip
from fedskip import FedAvg, FedProx, InputError, Scaffold, Study
from fedskip.records.table import Table
from studies import as_table, numbered, numbers, study, toy


def test_summary_numbers(tmp_path: Path) -> None:
    results = study(tmp_path / "out", methods="fedavg", rounds=20, seeds=1).run()
    accuracy = as_table(results.history).column("test_accuracy")
    row = as_table(results.summary)[0]
    assert row["last"] == accuracy[-1]
    assert row["best"] == max(accuracy)
    assert row["best_round"] == accuracy.index(max(accuracy)) + 1
    assert row["mean_tail"] == pytest.approx(np.mean(accuracy[-2:]))  # rounds 19 and 20 of 20
    assert row["full_test"] == pytest.approx(accuracy[-1])


@pytest.mark.parametrize(("engine", "processes"), [("loop", 1), ("stacked", 2)])
def test_divergence_stops_one_run_also_after_a_resume(
    tmp_path: Path, engine: str, processes: int
) -> None:
    keys = {
        "methods": [FedAvg(), FedProx(mu=1e8)],
        "seeds": 1,
        "engine": engine,
        "processes": processes,
    }
    whole = study(tmp_path / "whole", rounds=6, checkpoint_every=2, **keys).run()
    wild = as_table(whole.history).where(method="FedProx(mu=100000000.0)").column("train_loss")
    assert 0 < len(wild) < 6
    assert np.isfinite(wild).all()
    assert as_table(whole.summary).column("diverged") == [False, True]
    for begun in (2, 4):  # before it diverges, and after
        out = tmp_path / str(begun)
        study(out, rounds=begun, checkpoint_every=2, **keys).run()
        study(out, rounds=begun, checkpoint_every=2, **keys).resume(rounds=6)
        assert numbers(out) == numbers(tmp_path / "whole")
        assert (out / "summary.csv").read_text() == (tmp_path / "whole" / "summary.csv").read_text()


def test_divergence_is_contained(tmp_path: Path) -> None:
    calm = study(tmp_path / "calm", methods=[FedAvg()], seeds=1, engine="loop").run()
    wild = study(
        tmp_path / "wild", methods=[FedAvg(), FedProx(mu=1e30), Scaffold()], seeds=1, engine="loop"
    ).run()
    lost = as_table(wild.summary).where(run="toy.FedProx(mu=1e+30).s0")[0]
    assert lost["diverged"] is True
    rows = as_table(wild.history).where(run="toy.FedProx(mu=1e+30).s0")
    assert all(np.isfinite(rows.column("train_loss")))
    same = ("round", "test_accuracy", "train_loss", "drift_mean")
    for a, b in zip(
        as_table(calm.history), as_table(wild.history).where(method="FedAvg"), strict=True
    ):
        assert all(a[k] == b[k] for k in same)
    assert as_table(wild.summary).where(method="SCAFFOLD")[0]["diverged"] is False
    assert lost["rounds"] == (rows[-1]["round"] if len(rows) else 0)
    (tmp_path / "wild" / "summary.csv").rename(tmp_path / "summary.csv")
    study(
        tmp_path / "wild", methods=[FedAvg(), FedProx(mu=1e30), Scaffold()], seeds=1, engine="loop"
    ).resume()
    assert (tmp_path / "wild" / "summary.csv").read_text() == (tmp_path / "summary.csv").read_text()


@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("processes", [1, 2])
def test_the_visit_that_broke_a_run_is_named(tmp_path: Path, processes: int, period: int) -> None:
    """No model fits what client 3 has. A resume in the middle of a period knows of it, too."""
    data = toy()
    data.samples.x[data.owner == 3] = 1e30  # type: ignore[attr-defined]
    data.samples.y[data.owner == 3] = torch.arange(24) % 2  # type: ignore[attr-defined]
    keys = {
        "data": data, "model": nn.Linear(2, 2), "methods": [FedAvg(period=period), FedProx(period=period)],
        "seeds": 1, "cohort": 2, "cohort_policy": "cyclic", "eval_every": 2, "checkpoint_every": 1,
        "processes": processes,
    }  # fmt: skip
    results = study(tmp_path / "whole", rounds=8, **keys).run()
    for row in as_table(results.summary):
        where = [row[f"broke_{name}"] for name in ("round", "client", "slot")]
        assert (row["diverged"], where) == (True, [3, 3, 1])
    study(tmp_path / "out", rounds=3, **keys).run()
    study(tmp_path / "out", rounds=3, **keys).resume(rounds=8)
    assert (tmp_path / "out" / "summary.csv").read_text() == (
        tmp_path / "whole" / "summary.csv"
    ).read_text()


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_guard_keeps_a_study_going_and_is_counted(tmp_path: Path, engine: str) -> None:
    """Client 3 is visited in rounds 3 and 4, by one slot and then by the other; resume knows the count."""
    data = toy()
    data.samples.x[data.owner == 3] = 1e30  # type: ignore[attr-defined]
    data.samples.y[data.owner == 3] = torch.arange(24) % 2  # type: ignore[attr-defined]
    keys = {
        "data": data, "model": nn.Linear(2, 2), "methods": [FedAvg(period=2), FedProx()], "seeds": 1,
        "cohort": 2, "cohort_policy": "cyclic", "checkpoint_every": 1, "processes": 1, "engine": engine,
        "guard": "nonfinite", "compile": False,
    }  # fmt: skip
    results = study(tmp_path / "whole", rounds=6, **keys).run()
    assert [(row["diverged"], row["set_aside"]) for row in as_table(results.summary)] == [
        (False, 2)
    ] * 2
    counted = as_table(results.history).where(method="FedProx(mu=0.01)") or as_table(
        results.history
    ).where(method="FedProx")
    assert counted.column("x_set_aside") == [0, 0, 1, 2, 2, 2]
    study(tmp_path / "out", rounds=3, **keys).run()
    study(tmp_path / "out", rounds=3, **keys).resume(rounds=6)
    assert (tmp_path / "out" / "summary.csv").read_text() == (
        tmp_path / "whole" / "summary.csv"
    ).read_text()


def test_outcomes_that_are_evaluated_together_do_not_hide_a_visit(tmp_path: Path) -> None:
    """FedAvg's second merge, which broke, waits with its first one until FedSkip has one, too."""
    data = toy()
    data.samples.x[data.owner == 2] = 1e30  # type: ignore[attr-defined]
    data.samples.y[data.owner == 2] = torch.arange(24) % 2  # type: ignore[attr-defined]
    keys = {
        "data": data,
        "model": nn.Linear(2, 2),
        "methods": [FedAvg(), FedAvg(period=4)],
        "seeds": 1,
    }
    keys |= {"cohort": 2, "cohort_policy": "cyclic", "processes": 1, "checkpoint_every": 4}
    results = study(tmp_path / "s", rounds=4, **keys).run()
    for row in as_table(results.summary):
        assert (row["diverged"], row["broke_round"], row["broke_client"]) == (True, 2, 2), row[
            "method"
        ]


def test_a_metric_may_be_undefined(tmp_path: Path) -> None:
    """The best is the best of what there is, as in the model that is kept of it."""
    calls = iter(range(99))

    def now_and_then(output: Tensor, target: Tensor) -> Tensor:
        right = (output.max(1).indices == target).float()
        right[0] = float("nan") if next(calls) < 6 else right[0]
        return right

    results = study(
        tmp_path / "s", metric=now_and_then, methods="fedavg", seeds=1, rounds=6, engine="loop"
    ).run()
    scores = as_table(results.history).column("test_accuracy")
    assert (scores[0], scores[-1]) == (None, as_table(results.summary)[0]["last"])  # an empty cell
    assert as_table(results.summary)[0]["best"] == max(
        score for score in scores if score is not None
    )


def test_a_model_with_one_number_for_a_sample(tmp_path: Path) -> None:
    data = numbered()
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    keys = {"loss": "squared_error", "metric": "minus_squared_error"}
    results = study(tmp_path / "s", data=data, model=model, methods="fedavg", seeds=1, **keys).run()
    scores = as_table(results.history).column("test_accuracy")
    assert scores[-1] > scores[0]


# --- several metrics -------------------------------------------------------------------------------------

CLASSES = ("accuracy", "macro_f1", "auroc", "perplexity")


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_further_metrics_stand_beside_an_unchanged_headline(tmp_path: Path, engine: str) -> None:
    keys = {
        "methods": "fedavg, fedskip(period=2)",
        "seeds": 2,
        "rounds": 4,
        "engine": engine,
        "validation": 0.2,
    }
    one = study(tmp_path / "one", metric="accuracy", **keys).run()
    several = study(tmp_path / "several", metric=CLASSES, **keys).run()
    for a, b in zip(numbers(tmp_path / "one"), numbers(tmp_path / "several"), strict=True):
        assert all(b[name] == value for name, value in a.items())  # to the last bit
    assert as_table(several.history).columns[len(as_table(one.history).columns) :] == (
        "x_macro_f1",
        "x_auroc",
        "x_perplexity",
    )
    assert as_table(several.summary).columns[-3:] == ("x_macro_f1", "x_auroc", "x_perplexity")
    for row in as_table(several.history):
        assert row["x_perplexity"] == pytest.approx(np.exp(row["test_loss"]))
        assert 0 < row["x_macro_f1"] <= 1
    last = as_table(several.history).where(run=as_table(several.summary)[0]["run"])[-1]
    assert as_table(several.summary)[0]["x_auroc"] == last["x_auroc"]


def test_engines_agree_on_metrics_of_the_whole_test_set(tmp_path: Path) -> None:
    found = [
        study(
            tmp_path / engine,
            metric=["auroc", "accuracy"],
            methods="fedavg",
            seeds=1,
            rounds=2,
            engine=engine,
        ).run()
        for engine in ("loop", "stacked")
    ]
    for name in ("test_accuracy", "x_accuracy"):
        assert as_table(found[0].history).column(name) == pytest.approx(
            as_table(found[1].history).column(name), abs=0.02
        )


def test_where_lower_is_better_the_lowest_is_best(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    keys = {
        "loss": "squared_error",
        "metric": ["rmse", "r2"],
        "local": {"batch": 4, "epochs": 1, "lr": 0.3},
    }
    out = tmp_path / "s"
    results = study(
        out, data=numbered(), model=model, methods="fedavg", seeds=1, rounds=8, **keys
    ).run()
    scores = as_table(results.history).column("test_accuracy")
    assert as_table(results.summary)[0]["best"] == min(scores)
    assert as_table(results.summary)[0]["best_round"] == scores.index(min(scores)) + 1
    for row in as_table(results.history):
        assert row["test_accuracy"] == pytest.approx(row["test_loss"] ** 0.5)
    kept = load_file(out / "models" / "sums.FedAvg.s0.best.safetensors")
    x, y = numbered().samples.x, numbered().samples.y  # type: ignore[attr-defined]
    test = torch.arange(len(x)) % 3 == 0
    given = x[test] @ kept["0.weight"].T + kept["0.bias"]
    error = (given[:, 0] - y[test]).square().mean().sqrt()
    assert float(error) == pytest.approx(min(scores), rel=1e-5)


def test_metrics_of_each_client(tmp_path: Path) -> None:
    keys = {"methods": "fedavg", "seeds": 1, "rounds": 2, "client_accuracy": True}
    for metric in ("balanced_accuracy", "perplexity"):
        results = study(tmp_path / metric, metric=metric, **keys).run()
        rows = Table.read(tmp_path / metric / "clients.csv")
        assert 0 < len(rows) <= 8
        worst, best = min(rows.column("test_accuracy")), max(rows.column("test_accuracy"))
        assert worst <= as_table(results.summary)[0]["last"] <= best


def test_a_resumed_study_has_the_same_further_metrics(tmp_path: Path) -> None:
    keys = {
        "methods": "fedavg",
        "seeds": 1,
        "metric": ["accuracy", "macro_f1"],
        "checkpoint_every": 2,
    }
    study(tmp_path / "whole", rounds=4, **keys).run()
    study(tmp_path / "parts", rounds=2, **keys).run()
    study(tmp_path / "parts", rounds=2, **keys).resume(rounds=4)
    assert numbers(tmp_path / "parts") == numbers(tmp_path / "whole")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_metric_that_fails_in_the_middle_stops_a_study_that_can_go_on(
    tmp_path: Path, processes: int
) -> None:
    calls = iter(range(99))

    @fedskip.metric(whole=True)
    def brittle(output: Tensor, target: Tensor) -> float:
        if next(calls) > (4 if processes == 1 else 3):
            raise ZeroDivisionError("no such class")
        return 0.5

    keys = {
        "methods": "fedavg, fedprox", "seeds": 1, "rounds": 6, "checkpoint_every": 1, "engine": "loop",
        "processes": processes,
    }  # fmt: skip
    made = study(tmp_path / "s", metric=["accuracy", brittle], **keys)
    with pytest.raises(
        InputError, match=r"^metric brittle fails on .*ZeroDivisionError: no such class.*resume"
    ):
        made.run()
    kept = numbers(tmp_path / "s")
    assert kept
    calls = iter(range(-999, 0))
    assert as_table(made.resume().history)[-1]["round"] == 6
    assert numbers(tmp_path / "s")[: len(kept)] == kept


def test_outputs_are_held_a_few_models_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {
        "metric": ["accuracy", "auroc"],
        "methods": "fedavg",
        "seeds": 3,
        "rounds": 2,
        "engine": "loop",
    }
    many = study(tmp_path / "many", **keys).run()
    monkeypatch.setattr("fedskip.engine.evaluate.HELD", 1)
    few = study(tmp_path / "few", **keys).run()
    for name in ("test_accuracy", "x_auroc", "test_loss"):
        assert as_table(few.history).column(name) == as_table(many.history).column(name)


def small(out: Path, **keys: Any) -> Study:
    return study(out, methods="fedavg", seeds=1, engine="loop", validation=0.3, **keys)


def model(out: Path, kind: str) -> dict[str, Tensor]:
    [path] = (out / "models").glob(f"*.{kind}.safetensors")
    return load_file(path)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def constant(output: Tensor, target: Tensor) -> Tensor:
    """A metric by which all models are equal."""
    return torch.full_like(output[:, 0], 0.5)


def test_the_best_model_is_chosen_by_validation_and_not_by_the_test_set(tmp_path: Path) -> None:
    data = toy()
    test = data.split(0)[1]
    data.samples.y[test] = 1 - data.samples.y[test]  # type: ignore[attr-defined]  # what is right is wrong there
    keys: dict[str, Any] = {"data": data, "local": {"lr": 0.1, "batch": 4, "epochs": 1}}
    history = small(tmp_path / "whole", rounds=4, **keys).run().history
    validated, tested = list(history["val_accuracy"]), list(history["test_accuracy"])
    best = validated.index(max(validated))
    assert best != tested.index(max(tested)), "the two have to differ, or nothing is tested"
    small(tmp_path / "until", rounds=best + 1, **keys).run()
    assert same(model(tmp_path / "whole", "best"), model(tmp_path / "until", "last"))


def test_of_equal_models_the_first_is_the_best(tmp_path: Path) -> None:
    small(tmp_path / "whole", rounds=3, metric=constant).run()
    small(tmp_path / "first", rounds=1, metric=constant).run()
    assert same(model(tmp_path / "whole", "best"), model(tmp_path / "first", "last"))
    assert not same(model(tmp_path / "whole", "best"), model(tmp_path / "whole", "last"))


@pytest.mark.parametrize(
    ("stop", "rounds", "ended"),
    [
        ({"patience": 2}, 3, "patience"),  # best in round 1, and not better in two rounds
        ({"target": 0.5}, 1, "target"),  # reached exactly
        ({"target": 0.51, "patience": 9}, 5, ""),
    ],
)
def test_a_run_ends_in_the_round_that_meets_its_rule(
    tmp_path: Path, stop: dict[str, float], rounds: int, ended: str
) -> None:
    results = small(tmp_path / "out", rounds=5, metric=constant, stop=stop).run()
    [row] = as_table(results.summary)
    assert (row["rounds"], row["ended"] or "") == (rounds, ended)
