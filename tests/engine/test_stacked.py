"""A run among many equals the run alone, rows do not know of each other, and what cannot be stacked is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedskip import rng
from fedskip.engine import Loop, Plan, Stacked, Trained
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.task import Preparing
from fedskip.errors import InputError
from fedskip.federation import Run
from fedskip.methods import FedAvg, FedProx, Moon, Scaffold
from tiny import (
    LOCAL,
    METHODS,
    SKIPPING,
    assert_agree,
    make_task,
    named,
    normed,
    pool,
    runs_of,
    stacked_for,
    task_of,
    train,
    train_together,
)


@pytest.fixture(scope="module")
def crowd() -> list[Run]:
    """Runs of all methods, trained in one batch."""
    task = task_of("perceptron")
    runs = runs_of(task, METHODS + SKIPPING, rounds=4)
    train_together(stacked_for(task, runs), runs, 4)
    return runs


@pytest.mark.parametrize("i", range(len(METHODS + SKIPPING)), ids=named(METHODS + SKIPPING))
def test_a_run_in_a_batch_equals_the_run_alone(crowd: list[Run], i: int) -> None:
    """Alone it has a smaller table and only the terms that it needs."""
    task = task_of("perceptron")
    [alone] = runs_of(task, [(METHODS + SKIPPING)[i]], rounds=4)
    terms, _ = alone.clients.begin(alone.server.orders(0))
    plan = Plan(pull=terms.mu is not None, linear=terms.linear is not None, compile=False)
    train(stacked_for(task, [alone], plan), alone, 4)
    assert_agree([crowd[i]], [alone], rtol=1e-11, atol=1e-13)


def test_a_term_that_was_not_planned_for_is_refused() -> None:
    """Rather than dropped without a word."""
    task = task_of("perceptron")
    for method in (FedProx(), Scaffold()):
        [run] = runs_of(task, [method])
        with pytest.raises(ValueError, match="same kinds of terms in every round"):
            train(stacked_for(task, [run], Plan(compile=False)), run, 1)


def test_a_contrast_may_begin_later_than_planned() -> None:
    task = task_of("perceptron")
    stacked, loop = runs_of(task, [Moon(mu=2.0)], rounds=4), runs_of(task, [Moon(mu=2.0)], rounds=4)
    train(Stacked(task, Plan(sizes=[2], compile=False)), stacked[0], 4)
    train(Loop(task), loop[0], 4)
    assert_agree(stacked, loop, rtol=1e-9, atol=1e-11)


def test_it_tells_of_every_step_that_it_prepares() -> None:
    task = task_of("perceptron")
    runs = runs_of(task, [FedAvg(), Moon()], slots=3)
    engine = stacked_for(task, runs, sizes=[1, 2, 3], contrast_sizes=[3])
    assert engine.preparing == Preparing(most=4)
    told = []
    engine.watch(lambda rows: told.append((rows, engine.preparing)))
    train_together(engine, runs, 2)
    begun = [(rows, at) for rows, at in told if rows]
    assert [rows for rows, _ in told[1::2]] == [0] * len(begun), (
        "each is ready before the next begins"
    )
    assert [(at.doing, at.begun, at.most) for _, at in begun] == [
        ("tracing", number, 4) for number in range(1, len(begun) + 1)
    ]
    sizes = [{*stack.stepper.code} for stack in engine.stacks.values()]
    assert sorted(rows for rows, _ in begun) == sorted([*sizes[0], *sizes[1]])
    assert (engine.preparing.doing, engine.preparing.begun) == ("", len(begun))
    train_together(engine, runs, 3)
    assert len(told) == 2 * len(begun), "what is ready is not prepared again"
    assert engine.preparing.seconds > 0


def test_a_size_that_was_not_planned_is_counted() -> None:
    task = task_of("perceptron")
    runs = runs_of(task, [FedAvg()], slots=3)
    engine = stacked_for(task, runs, sizes=[1])
    train_together(engine, runs, 2)
    assert engine.preparing.begun <= engine.preparing.most == 2


def test_batchnorm_with_short_batches_is_refused() -> None:
    task = normed(replace(LOCAL, last_batch="keep"))
    with pytest.raises(InputError, match="cannot be 'stacked' for BatchNorm with short batches"):
        Stacked(task, Plan(sizes=[2], compile=False))
    tracking = nn.InstanceNorm1d(1, track_running_stats=True)
    with rng.torch_scope("tracking"):
        net = nn.Sequential(nn.Unflatten(1, (1, 6)), tracking, nn.Flatten(), nn.Linear(6, 3))
    task = make_task(net, pool((6,)), replace(LOCAL, last_batch="keep"))
    with pytest.raises(InputError, match="cannot be 'stacked' for BatchNorm with short batches"):
        Stacked(task, Plan(sizes=[2], compile=False))


def test_batchnorm_with_clients_that_all_fill_a_batch_is_stacked() -> None:
    """`small_clients: short` shortens no batch of theirs."""
    task = normed(replace(LOCAL, small_clients="short"))
    with pytest.raises(InputError, match="cannot be 'stacked' for BatchNorm with short batches"):
        Stacked(task, Plan(sizes=[2], compile=False))
    task = replace(task, full_batches=True)
    looped, stacked = (runs_of(task, [FedAvg(), FedAvg(period=2)]) for _ in range(2))
    for run in looped:
        train(Loop(task), run, 2)
    train_together(stacked_for(task, stacked), stacked, 2)
    assert_agree(stacked, looped, rtol=1e-9, atol=1e-11)


def test_bf16_with_batch_norm_needs_streams() -> None:
    task = replace(task_of("resnet50", dtype=torch.float32), arithmetic=Arithmetic("bf16"))
    with pytest.raises(
        InputError, match=r"streams must be 1 or more for BatchNorm in bf16.*streams=4"
    ):
        Stacked(task, Plan(sizes=[2], compile=False))


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
