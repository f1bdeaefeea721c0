"""A federation in one call: the public core equals what is wired by hand, is planned, and says what does not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedskip
from fedskip import Arrays, Evaluator, FedAvg, InputError, Local, Loop, Scaffold, Stacked
from fedskip.data import Dataset
from fedskip.engine import Job, Plan, Task
from fedskip.engine.plan import GIB, SIZES, Footprint, busy_rows
from fedskip.engine.stacked import Stack
from fedskip.federation import make_plan, make_run, make_task, train
from fedskip.federation.wiring import steps_ahead
from fedskip.methods import FedProx, Method, Moon
from tiny import CLIENTS, clients_of, task_of, train_together
from tiny import make_run as tiny_run

LOCAL = Local(lr=0.1, batch=4, epochs=1)


def samples() -> Arrays:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    return Arrays(x, (x[:, 0] > 0).long())


def clients() -> list[np.ndarray]:
    return np.split(np.arange(48), 6)


def test_both_engines_train_what_was_wired() -> None:
    task = make_task(nn.Linear(3, 2), samples(), LOCAL)
    ends = []
    for stacked in (False, True):
        runs = [make_run(task, clients(), m, cohort=3) for m in (FedAvg(period=2), Scaffold())]
        plan = make_plan(task, runs, rounds=4, compile=False)
        engine = Stacked(task, plan) if stacked else Loop(task)
        outcomes = [(run.name, outcome.round) for run, outcome in train(engine, runs, 4)]
        assert sorted(outcomes) == [("FedSkip-2.s0", 2), ("FedSkip-2.s0", 4)] + [
            ("SCAFFOLD.s0", round) for round in (1, 2, 3, 4)
        ]
        ends.append([run.server.x for run in runs])
    for loop, stacked_x in zip(*ends, strict=True):
        torch.testing.assert_close(loop, stacked_x)


def test_equal_seeds_pair_methods() -> None:
    task = make_task(nn.Linear(3, 2), samples(), LOCAL)
    one, other, third = (
        make_run(task, clients(), method, cohort=3, seed=seed)
        for method, seed in ((FedAvg(), 1), (Scaffold(), 1), (FedAvg(), 2))
    )
    orders = [run.server.orders(0) for run in (one, other, third)]
    assert orders[0].keys == orders[1].keys != orders[2].keys
    assert torch.equal(orders[0].x, orders[1].x)


def test_a_users_module_stays_as_it_is() -> None:
    """It is copied, also where dropout is replaced by a keyed one, and the copy has the task's dtype."""
    module = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    exact = fedskip.engine.arithmetic.Arithmetic("fp64")
    task = make_task(module, samples(), LOCAL, arithmetic=exact)
    assert type(module[1]) is nn.Dropout
    assert module[0].weight.dtype == torch.float32
    assert task.layout.pack(task.module).dtype == torch.float64
    assert not task.draws


def test_a_data_set_brings_its_transforms() -> None:
    data = Dataset(
        "plane", samples(), lambda seed: (np.arange(48), np.arange(48, 60)), 2,
        test_transform=lambda x: 0 * x,
    )  # fmt: skip
    task = make_task(nn.Linear(3, 2), data, LOCAL)
    plain = make_task(nn.Linear(3, 2), samples(), LOCAL)
    model = task.layout.pack(task.module)[None]
    test = np.arange(48, 60)
    labels = samples().labels()[test]
    constant = Evaluator(task)(model, test).metric[0]
    assert constant in (labels.mean(), 1 - labels.mean())
    assert Evaluator(plain)(model, test).loss != Evaluator(task)(model, test).loss


def test_a_client_that_cannot_fill_a_batch_is_refused() -> None:
    task = make_task(nn.Linear(3, 2), samples(), LOCAL)
    few = [*clients(), np.arange(48, 51)]
    with pytest.raises(InputError, match=r"local\.batch must fit every client; client 6 has 3"):
        make_run(task, few, FedAvg(), cohort=3)
    short = make_task(
        nn.Linear(3, 2), samples(), Local(lr=0.1, batch=4, epochs=1, small_clients="short")
    )
    run = make_run(short, few, FedAvg(), cohort=7)
    [(_, outcome)] = train(Loop(short), [run], 1)
    assert outcome.models.shape == (1, 8)


def test_a_decay_over_all_rounds_needs_their_number() -> None:
    task = make_task(nn.Linear(3, 2), samples(), Local(lr=0.1, batch=4, decay="cosine"))
    with pytest.raises(InputError, match="rounds must be given"):
        make_run(task, clients(), FedAvg(), cohort=3)
    rates = [
        make_run(task, clients(), FedAvg(), cohort=3, rounds=10).clients.route(1, 0, round).eta[0]
        for round in (0, 5, 9)
    ]
    assert rates == sorted(rates, reverse=True)


def test_without_merges_the_slots_are_the_models() -> None:
    task = make_task(nn.Linear(3, 2), samples(), LOCAL)
    run = make_run(
        task,
        clients(),
        FedAvg(period="never"),
        cohort=6,
        cohort_policy="fixed",
        rounds=2,
        eval_every=2,
    )
    [(_, outcome)] = train(Loop(task), [run], 2)
    assert outcome.models.shape == (6, 8)


def test_what_does_not_fit_is_refused_by_its_name() -> None:
    task = make_task(nn.Linear(4, 2), samples(), LOCAL)
    with pytest.raises(
        InputError, match=r"model cannot take samples of the shape \(3,\), got 'Lin"
    ):
        Loop(task)
    with pytest.raises(InputError, match=r"clients must be .*; there are none"):
        make_run(task, [], FedAvg(), cohort=0)
    with pytest.raises(
        InputError, match="cohort must be from 1 to 6, the number of clients, got 7"
    ):
        make_run(task, clients(), FedAvg(), cohort=7)


def test_an_engine_is_planned_for_the_rows_that_will_be_there() -> None:
    task = task_of("perceptron")
    methods: list[Method] = [FedAvg(), FedAvg(period=3), FedProx(), Moon()]
    runs = [
        tiny_run(task, clients_of(), method, slots=3, seed=seed)
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
        tiny_run(task, clients_of(), m, slots=3, seed=s)
        for m in (FedAvg(), Moon())
        for s in range(4)
    ]
    room = {False: Footprint(GIB, 9 * GIB, 100 * GIB), True: Footprint(GIB, 30 * GIB, 100 * GIB)}
    asked = []

    def measured(stack: Stack, first: Job, remembered: int, share: float) -> Footprint:
        asked.append(remembered)
        return replace(room[stack.contrast], share=share)

    monkeypatch.setattr(Stack, "footprint", measured)
    monkeypatch.setattr(Task, "device", torch.device("cuda"))
    monkeypatch.setattr(
        Stack, "__init__", lambda self, _, __, contrast: setattr(self, "contrast", contrast)
    )
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
        tiny_run(task, clients_of(), FedAvg(period=p), slots=3, seed=s)
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
    runs = [tiny_run(task, clients_of(), FedAvg(), slots=3, seed=seed) for seed in range(2)]
    assert len(make_plan(task, runs, rounds=1).sizes) == 1
    assert len(make_plan(task, runs, rounds=10**6).sizes) > 1
