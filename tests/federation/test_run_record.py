"""What is kept of a run: its best and last model, why it ended, and the same again from a checkpoint."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load

from fedskip import FedAvg
from fedskip.engine import Loop
from fedskip.federation import Outcome, RunRecord, restore_records, save_records
from tiny import make_run, perceptron_task, train


def a_record(**how: Any) -> tuple[RunRecord, Outcome]:
    """A record, and the outcome of its first round."""
    task, clients = perceptron_task()
    run = make_run(task, clients, FedAvg(), slots=3, rounds=10)
    run.name = "tiny.FedAvg.s0"
    [outcome] = train(Loop(task), run, 1)
    return RunRecord(run, "tiny", "FedAvg", **how), outcome


def score(
    record: RunRecord, outcome: Outcome, round: int, test: float, val: float | None = None
) -> Any:
    """What is recorded of an outcome with these scores, whose model is its round."""
    assert outcome.evaluated is not None
    model = torch.full_like(outcome.evaluated, float(round))
    outcome = replace(outcome, round=round, evaluated=model)
    row = record.row(outcome, test_accuracy=test, test_loss=0.5, val_accuracy=val, seconds=1.0)
    return record.add(outcome, row)


@pytest.mark.parametrize(
    ("higher", "validated", "best"), [(True, False, 2), (False, False, 1), (True, True, 3)]
)
def test_the_first_of_the_best_models_is_kept(higher: bool, validated: bool, best: int) -> None:
    """By the validation score where there is one, whatever the test score says."""
    record, outcome = a_record(higher_is_better=higher, validated=validated)
    for round, test, val in [(1, 0.2, 0.1), (2, 0.6, 0.2), (3, 0.4, 0.9), (4, 0.6, 0.9)]:
        assert score(record, outcome, round, test, val)["round"] == round
    assert record.best_at == best
    assert record.best_model is not None
    assert record.last_model is not None
    assert float(record.best_model[0]) == best
    assert float(record.last_model[0]) == 4


def test_a_run_ends_where_its_rule_says() -> None:
    record, outcome = a_record(stop={"patience": 2})
    for round, test in [(1, 0.5), (2, 0.5)]:
        assert score(record, outcome, round, test)
    assert not record.ended
    assert score(record, outcome, 3, 0.4), "its last row is recorded"
    assert (record.ended, record.ended_at, record.run.over) == ("patience", 3, True)
    assert score(record, outcome, 4, 0.9) is None, "what was under way is not"


@pytest.mark.parametrize(
    ("target", "higher", "value", "ended"),
    [
        (0.5, True, 0.5, "target"), (0.5, False, 0.5, "target"), (0.5, False, 0.4, "target"),
        (0.5, True, 0.4, ""), (0.5, False, 0.6, ""), (0.5, True, None, ""),
    ],
)  # fmt: skip
def test_a_run_ends_at_its_target(target: float, higher: bool, value: Any, ended: str) -> None:
    record, outcome = a_record(stop={"target": target}, higher_is_better=higher)
    score(record, outcome, 1, value)
    assert record.ended == ended


def test_numbers_that_are_not_finite_end_a_run() -> None:
    record, outcome = a_record()
    assert score(record, outcome, 1, 0.5)
    broken = replace(outcome, round=2, drift_mean=torch.tensor(float("inf")))
    row = record.row(broken, test_accuracy=0.9, test_loss=0.1, seconds=1.0)
    assert record.add(broken, row) is None
    assert record.run.diverged
    assert record.best_at == 1
    assert record.summary()["diverged"] is True


def test_an_extra_merge_is_not_in_the_history() -> None:
    record, outcome = a_record()
    assert score(record, outcome, 1, 0.5)
    final = replace(outcome, final=True)
    assert (
        record.add(final, record.row(final, test_accuracy=0.9, test_loss=0.1, seconds=1.0)) is None
    )
    assert (record.merged, record.best) == (0.9, 0.5)
    files = dict(record.model_files(record.run.server.layout, {"model": None}))
    assert [*files] == [f"tiny.FedAvg.s0.{kind}.safetensors" for kind in ("last", "best", "merged")]
    assert all(load(content) for content in files.values() if content)


def test_outcomes_are_thinned_but_for_the_last() -> None:
    record, outcome = a_record()
    record.run.eval_every = 4
    wanted = []
    for round in range(1, 11):
        if record.wants(replace(outcome, round=round)):
            wanted.append(round)
            record.evaluated_at = round
    assert wanted == [4, 8, 10]


def test_it_goes_on_from_a_checkpoint() -> None:
    record, outcome = a_record()
    score(record, outcome, 1, 0.5)
    score(record, outcome, 2, 0.4)
    tensors, notes = save_records([record])
    other, _ = a_record()
    restore_records([other], tensors, json.loads(json.dumps(notes)))
    assert (other.best, other.best_at, other.run.round) == (0.5, 1, record.run.round)
    assert other.best_model is not None
    assert float(other.best_model[0]) == 1
    assert other.run.server.x.equal(record.run.server.x)
