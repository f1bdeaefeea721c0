"""The plan that follows from the runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedskip.engine import Job, Loop, Plan
from fedskip.engine.stacked.memory import GIB, Footprint
from fedskip.engine.stacked.plan import SIZES, busy_rows
from fedskip.engine.stacked.stack import Stack
from fedskip.methods import FedAvg, FedProx, Method, Moon
from fedskip.study.engines import make_engine, make_plan, noted_sizes, steps_ahead
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
        make_run(task, clients_of(), method, slots=3, seed=seed) for method in methods for seed in range(2)
    ]
    prepared, machine = (
        SimpleNamespace(task=task, device=task.device),
        SimpleNamespace(engine="stacked", compile=False, threads=1, streams=0, kernels=False),
    )
    engine: Any = make_engine(prepared, machine, runs)  # type: ignore[arg-type]
    plan = engine.plan
    assert plan.sizes[-1] == 18
    assert plan.contrast_sizes[-1] == 6
    assert len(plan.sizes) <= SIZES
    assert plan == Plan(plan.sizes, plan.contrast_sizes, pull=True, linear=False, compile=False)
    train_together(engine, runs, 4)
    assert {*engine.stacks[False].stepper.code} <= {*plan.sizes}, "no size was needed that was not planned"
    machine.engine, machine.workers = "loop", 2
    assert isinstance(make_engine(prepared, machine, runs), Loop)  # type: ignore[arg-type]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_table_with_the_least_room_rules(reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of("perceptron")
    runs = [make_run(task, clients_of(), m, slots=3, seed=s) for m in (FedAvg(), Moon()) for s in range(4)]
    room = {False: Footprint(GIB, 9 * GIB, 100 * GIB), True: Footprint(GIB, 30 * GIB, 100 * GIB)}
    asked = []

    def measured(stack: Stack, first: Job, remembered: int, share: float) -> Footprint:
        asked.append(remembered)
        return replace(room[stack.contrast], share=share)

    monkeypatch.setattr("fedskip.study.engines.measure", measured)
    setting = SimpleNamespace(rounds=100)
    prepared: Any = SimpleNamespace(task=task, device=torch.device("cuda"), setting=setting)
    machine: Any = SimpleNamespace(compile=False, threads=1, streams=0, kernels=False)
    plan = make_plan(prepared, machine, runs[::-1] if reverse else runs)
    assert plan.rows == 1
    assert {line.split(" of ")[0] for line in plan.needs} == {
        "up to 1 rows at a time, 10.0", "up to 1 rows at a time, 31.0",
    }  # fmt: skip
    assert asked == [4 * 3 * len(CLIENTS) * 8 * task.layout.size] * 2, "what MOON's clients remember"
    assert make_plan(prepared, machine, runs, rows=1000).rows is None, "a limit that is none"


def test_on_streams_no_row_is_masked() -> None:
    """A number of rows is nothing to compile there: each that occurs has a graph."""
    task = task_of("perceptron")
    runs = [make_run(task, clients_of(), FedAvg(period=p), slots=3, seed=s) for p in (1, 3) for s in range(2)]
    prepared: Any = SimpleNamespace(task=task, device=task.device, setting=SimpleNamespace(rounds=100))
    machine: Any = SimpleNamespace(compile=False, threads=1, streams=0, kernels=False)
    together = make_plan(prepared, machine, runs).sizes
    machine.streams = 4
    busy = busy_rows([steps_ahead(run, task.local) for run in runs])
    assert make_plan(prepared, machine, runs).sizes == tuple(sorted(busy))
    assert len(together) < len(busy), "which would be masked in a stack"


def test_a_study_that_goes_on_keeps_its_sizes() -> None:
    """They follow from its rounds, and a row's bits depend on them."""
    noted = {"sizes": [[3, 9], [6]], "contrast_sizes": [[], [2]]}
    assert noted_sizes(noted, 0, 2) == ([3, 9], [])
    assert noted_sizes(noted, 1, 2) == ([6], [2])
    for junk in ({}, {"sizes": [[3]]}, noted | {"sizes": 5}, noted | {"sizes": [["a"], [6]]}):
        assert noted_sizes(junk, 0, 2) is None
    assert noted_sizes(noted, 0, 1) is None, "of other groups"
    task = task_of("perceptron")
    runs = [make_run(task, clients_of(), FedAvg(), slots=3, seed=seed) for seed in range(2)]
    prepared: Any = SimpleNamespace(task=task, device=task.device, setting=SimpleNamespace(rounds=10**6))
    machine: Any = SimpleNamespace(engine="stacked", compile=True, threads=1, streams=0, kernels=False)
    engine: Any = make_engine(prepared, machine, runs, planned=([5, 6], []))
    assert (engine.plan.sizes, engine.plan.contrast_sizes) == ([5, 6], [])
    long = make_plan(prepared, machine, runs).sizes
    prepared.setting.rounds = 1
    assert len(long) > len(make_plan(prepared, machine, runs).sizes) == 1, "a short study compiles once"
