"""One step of many rows."""

from __future__ import annotations

import pytest
import torch

from fedskip import rng
from fedskip.engine import Plan
from fedskip.engine.gradients import Gradients
from fedskip.engine.stacked import Stack
from fedskip.engine.step import step
from fedskip.engine.stepper import Stepper
from fedskip.methods import FedAvg, Moon
from tiny import (
    MODELS,
    first_job,
    normed,
    runs_of,
    task_of,
)  # fmt: skip


def test_a_finished_row_is_frozen_whole() -> None:
    """Weights, momentum, BatchNorm's statistics and loss stay to the last bit."""
    task = normed()
    [run] = runs_of(task, [FedAvg()])
    stepper = Stepper(task, Plan(compile=False))
    d = task.layout.trainable
    draw = rng.stream("frozen")
    rows = {
        "y": first_job(run).x.clone(),
        "v": torch.from_numpy(draw.normal(size=(2, d))),
        "loss": torch.tensor([[2.0], [3.0]], dtype=torch.float64),
        "active": torch.tensor([[True], [False]]),
        "word": torch.tensor([5, 6]),
    }
    index, eta = torch.arange(8).view(2, 4), torch.full((2, 1), 0.1, dtype=torch.float64)
    after = stepper.take(rows, index, eta, torch.zeros(2, dtype=torch.int64))
    for name in ("y", "v", "loss"):
        assert torch.equal(after[name][1], rows[name][1])
        assert not torch.equal(after[name][0], rows[name][0])
    assert not torch.equal(after["y"][0, d:], rows["y"][0, d:]), (
        "the other row's statistics have moved"
    )


@pytest.mark.parametrize("contrast", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_row_by_itself_is_a_row_of_a_batch(name: str, contrast: bool) -> None:
    """On a GPU the rows of large models run side by side on streams, without vmap."""
    task = task_of(name)
    [run] = runs_of(task, [Moon(mu=2.0) if contrast else FedAvg()], slots=1)
    rows, index, eta, count = Stack(task, Plan(compile=False), contrast).opening(first_job(run))
    batch = task.samples.take(index)
    together, by_itself = (
        step(task, Gradients(task, contrast, alone=alone), rows, *batch, index, eta, count)
        for alone in (False, True)
    )
    for found, expected in zip(together, by_itself, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
