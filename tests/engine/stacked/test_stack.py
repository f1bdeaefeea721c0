"""Rows take their seats, wait and leave, and do not know of each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedskip.engine import Loop, Plan, Stacked, Trained
from fedskip.methods import FedAvg, FedProx, Scaffold
from tiny import (
    LOCAL,
    assert_agree,
    normed,
    runs_of,
    stacked_for,
    task_of,
    train_together,
)  # fmt: skip


def test_a_finished_row_stays_as_it_was_reported() -> None:
    """While longer visits at the same table go on."""

    reported: list[tuple[list[int], Tensor]] = []

    class Noting(Stacked):
        def advance(self) -> Iterator[Trained]:
            for trained in super().advance():
                reported.append((list(trained.ks), trained.y))
                yield trained

    task = normed(replace(LOCAL, epochs=3))
    runs = runs_of(task, [FedAvg()], slots=3)
    engine = Noting(task, Plan(sizes=[3], compile=False))
    train_together(engine, runs, 1)
    assert [ks for ks, _ in reported] == [[0, 2], [1]]
    for ks, y in reported:
        assert torch.equal(engine.stacks[False].rows["y"][ks], y)


@pytest.mark.parametrize("sizes", [[], [1, 2, 3], [5]], ids=str)
def test_the_sizes_of_tables_do_not_show(sizes: list[int]) -> None:
    """However long a finished row is carried along, and however much room is empty."""
    task = normed(replace(LOCAL, epochs=3))
    loop, stacked = (runs_of(task, [FedAvg(period=2)], slots=3) for _ in range(2))
    train_together(Loop(task), loop, 2)
    engine = Stacked(task, Plan(sizes=sizes, compile=False))
    train_together(engine, stacked, 2)
    assert_agree(stacked, loop, rtol=1e-9, atol=1e-11)
    assert set(engine.stacks[False].stepper.code) <= {*sizes, 3}


@pytest.mark.parametrize("limit", [1, 3, 5])
def test_rows_beyond_the_limit_wait(limit: int) -> None:
    """They come out the same, and no batch is larger than it may be."""
    methods = [FedAvg(), FedProx(mu=0.5), Scaffold(), FedAvg(period=3)]
    task = task_of("perceptron")
    few, all_at_once = runs_of(task, methods), runs_of(task, methods)
    engine = stacked_for(task, few, rows=limit, sizes=[limit])
    train_together(engine, few, 6)
    assert max(engine.stacks[False].stepper.code) <= limit
    train_together(stacked_for(task, all_at_once), all_at_once, 6)
    assert_agree(few, all_at_once, rtol=1e-10, atol=1e-12)
