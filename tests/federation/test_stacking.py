"""The plan of the stacked engine, which follows from the runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fedskip.engine import Job, Plan, Stacked, Task
from fedskip.engine.stacked.memory import GIB, Footprint
from fedskip.engine.stacked.plan import SIZES, busy_rows
from fedskip.engine.stacked.stack import Stack
from fedskip.federation.stacking import make_plan, steps_ahead
from fedskip.methods import FedAvg, FedProx, Method, Moon
from tiny import (
    CLIENTS,
    clients_of,
    make_run,
    task_of,
    train_together,
)  # fmt: skip


def test_an_engine_is_planned_for_the_rows_that_will_be_there() -> None:
    task = task_of("perceptron")
    methods: list[Method] = [FedAvg(), FedAvg(period=3), FedProx(), Moon()]
    runs = [
        make_run(task, clients_of(), method, slots=3, seed=seed)
        for method in methods
        for seed in range(2)
    ]
    plan = make_plan(task, runs, rounds=10, compile=False)
    engine = Stacked(task, plan)
    assert plan.sizes[-1] == 18
    assert plan.contrast_sizes[-1] == 6
    assert len(plan.sizes) <= SIZES
    assert plan == Plan(plan.sizes, plan.contrast_sizes, pull=True, linear=False, compile=False)
    train_together(engine, runs, 4)
    assert {*engine.stacks[False].stepper.code} <= {*plan.sizes}, (
        "no size was needed that was not planned"
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_the_table_with_the_least_room_rules(
    reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of("perceptron")
    runs = [
        make_run(task, clients_of(), m, slots=3, seed=s)
        for m in (FedAvg(), Moon())
        for s in range(4)
    ]
    room = {False: Footprint(GIB, 9 * GIB, 100 * GIB), True: Footprint(GIB, 30 * GIB, 100 * GIB)}
    asked = []

    def measured(stack: Stack, first: Job, remembered: int, share: float) -> Footprint:
        asked.append(remembered)
        return replace(room[stack.contrast], share=share)

    monkeypatch.setattr("fedskip.federation.stacking.measure", measured)
    stack = lambda task, plan, contrast: SimpleNamespace(contrast=contrast)  # noqa: E731
    monkeypatch.setattr("fedskip.federation.stacking.Stack", stack)
    monkeypatch.setattr(Task, "device", torch.device("cuda"))
    plan = make_plan(task, runs[::-1] if reverse else runs, 100, compile=False)
    assert plan.rows == 1
    assert {line.split(" of ")[0] for line in plan.needs} == {
        "up to 1 rows at a time, 10.0", "up to 1 rows at a time, 31.0",
    }  # fmt: skip
    assert asked == [4 * 3 * len(CLIENTS) * 8 * task.layout.size] * 2, (
        "what MOON's clients remember"
    )
    assert make_plan(task, runs, 100, compile=False, rows=1000).rows is None, "a limit that is none"


def test_on_streams_no_row_is_masked() -> None:
    """A number of rows is nothing to compile there: each that occurs has a graph."""
    task = task_of("perceptron")
    runs = [
        make_run(task, clients_of(), FedAvg(period=p), slots=3, seed=s)
        for p in (1, 3)
        for s in range(2)
    ]
    together = make_plan(task, runs, 100, compile=False).sizes
    busy = busy_rows([steps_ahead(run, task.local) for run in runs])
    assert make_plan(task, runs, 100, compile=False, streams=4).sizes == tuple(sorted(busy))
    assert len(together) < len(busy), "which would be masked in a stack"


def test_a_short_study_compiles_once() -> None:
    """A size is worth its compilation only where many rounds use it."""
    task = task_of("perceptron")
    runs = [make_run(task, clients_of(), FedAvg(), slots=3, seed=seed) for seed in range(2)]
    assert len(make_plan(task, runs, rounds=1).sizes) == 1
    assert len(make_plan(task, runs, rounds=10**6).sizes) > 1
