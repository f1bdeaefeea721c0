"""A federation in one call: the public core equals what is wired by hand, and says what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedskip
from fedskip import Arrays, Evaluator, FedAvg, InputError, Local, Loop, Scaffold, Stacked
from fedskip.data import Dataset
from fedskip.federation import make_plan, make_run, make_task, train

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
