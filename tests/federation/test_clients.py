"""What clients remember, and the guard that sets their visits aside."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedskip.engine import Job, Loop, Task
from fedskip.federation import Memory, Run, draw_cohort, first_broken_visit
from fedskip.methods import FedAvg, FedNova, Method, Scaffold
from tiny import (
    METHODS,
    Nudge,
    assert_agree,
    make_run,
    named,
    normed,
    perceptron_task,
    stacked_for,
    state_of,
    train,
)  # fmt: skip


def test_only_clients_that_were_visited_have_a_row() -> None:
    memory = Memory({"h": 2}, torch.zeros(0, dtype=torch.float64))
    state, first = memory.recall(np.array([7, 3]))
    assert state["h"].tolist() == [[0, 0], [0, 0]]
    assert first.tolist() == [True, True]
    memory.keep(
        np.array([7, 3]), {"h": torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)}
    )
    memory.keep(
        np.array([900_000, 7]), {"h": torch.tensor([[5.0, 6.0], [8.0, 9.0]], dtype=torch.float64)}
    )
    state, first = memory.recall(np.array([3, 1, 7, 900_000]))
    assert state["h"].tolist() == [[3, 4], [0, 0], [8, 9], [5, 6]]
    assert first.tolist() == [False, True, False, False]
    assert memory.save()[0]["h"].shape == (3, 2)
    assert len(memory.rows["h"]) <= 4


def test_memory_grows_in_proportion_to_the_clients() -> None:
    memory = Memory({"h": 1}, torch.zeros(0))
    for client in range(100):
        memory.keep(np.array([client]), {"h": torch.full((1, 1), float(client))})
        assert len(memory.rows["h"]) <= 2 * (client + 1)
    assert memory.recall(np.arange(100))[0]["h"][:, 0].tolist() == [*range(100)]


def test_what_is_recalled_is_a_copy() -> None:
    memory = Memory({"h": 1}, torch.zeros(0))
    memory.keep(np.array([0]), {"h": torch.ones(1, 1)})
    memory.recall(np.array([0]))[0]["h"].zero_()
    assert memory.recall(np.array([0]))[0]["h"].item() == 1


def test_a_run_remembers_the_clients_it_has_visited_and_no_others() -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, Scaffold(), slots=2)
    train(Nudge(), run, 2)
    visited = {
        int(client) for round in range(2) for client in draw_cohort("uniform", 0, round, 6, 2)
    }
    assert set(run.clients.memory.place) == visited
    assert run.clients.memory.save()[0]["c"].shape == (len(visited), task.layout.trainable)


# --- the guard ---------------------------------------------------------------------------------------

BAD = 3  # the client whose samples no model can take
ROUNDS = 5
EVERY = pytest.mark.parametrize("method", METHODS, ids=named(METHODS))
PERIODS = pytest.mark.parametrize("period", [1, 3, "never"])


def broken_task() -> tuple[Task, list[np.ndarray]]:
    task, clients = perceptron_task()
    task.samples.x[clients[BAD]] = np.nan  # type: ignore[attr-defined]
    return task, clients


def guarded(method: Method, guard: bool = True, slots: int = 4) -> tuple[Task, Run]:
    task, clients = broken_task()
    fresh = task.layout.pack(task.module) / 2
    return task, make_run(task, clients, method, slots=slots, fresh=fresh, guard=guard)


def bad_visits(rounds: int, slots: int = 4) -> int:
    return sum(BAD in draw_cohort("uniform", 0, round, 6, slots) for round in range(rounds))


def without_the_bad(task: Task, run: Run, rounds: int) -> None:
    """What a guard should come to: by hand, and no order is ever given to the client that breaks."""
    loop = Loop(task)
    for round in range(rounds):
        slots = np.flatnonzero(run.server.cohort(round) != BAD)
        orders = run.server.orders(round, slots)
        terms, routes = run.clients.begin(orders)
        job = Job(orders.x, terms, routes)
        with loop.open():
            y, loss = map(
                torch.stack, zip(*(loop.visit(job, k) for k in range(len(slots))), strict=True)
            )
        run.server.absorb(orders, run.clients.end(orders, routes, y, loss))
        if run.server.period.merges(round + 1):
            run.server.merge(round + 1)


@PERIODS
@EVERY
def test_a_visit_that_is_set_aside_is_as_if_it_had_not_been(
    method: Method, period: int | str
) -> None:
    """To the last bit: weights, merge weights, A_k, what clients remember, the server's state."""
    task, run = guarded(replace(method, period=period))
    _, by_hand = guarded(replace(method, period=period), guard=False)
    outcomes = train(Loop(task), run, ROUNDS)
    without_the_bad(task, by_hand, ROUNDS)
    found, expected = state_of(run), state_of(by_hand)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert all(t.isfinite().all() for t in found.values())
    for name in ("seen", "a", "steps"):
        assert getattr(run.server, name).tolist() == getattr(by_hand.server, name).tolist()
    assert run.server.set_aside == bad_visits(ROUNDS) > 0
    assert outcomes[-1].set_aside == bad_visits(outcomes[-1].round)
    assert BAD not in run.clients.memory.place, "and its next visit is its first"
    assert (
        first_broken_visit([visited for outcome in outcomes for visited in outcome.visits]) is None
    )


@PERIODS
@EVERY
def test_both_engines_set_the_same_visits_aside(method: Method, period: int | str) -> None:
    task, loop = guarded(replace(method, period=period))
    _, stacked = guarded(replace(method, period=period))
    one, other = (
        train(Loop(task), loop, ROUNDS),
        train(stacked_for(task, [stacked]), stacked, ROUNDS),
    )
    assert_agree([loop], [stacked], rtol=1e-8, atol=1e-10)
    assert [outcome.set_aside for outcome in one] == [outcome.set_aside for outcome in other]
    assert loop.server.set_aside == stacked.server.set_aside > 0


@EVERY
def test_a_guarded_run_goes_on_to_the_same_bits(method: Method) -> None:
    (task, whole), (_, first), (_, second) = (guarded(replace(method, period=3)) for _ in range(3))
    train(Loop(task), whole, ROUNDS)
    train(Loop(task), first, 2)
    tensors, notes = copy.deepcopy(first.save())
    assert notes["server"]["set_aside"] == bad_visits(2)
    second.restore(tensors, json.loads(json.dumps(notes)))
    train(Loop(task), second, ROUNDS)
    found, expected = state_of(second), state_of(whole)
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert second.save()[1] == whole.save()[1]


@EVERY
def test_a_guard_that_finds_nothing_changes_nothing(method: Method) -> None:
    task, clients = perceptron_task()
    on, off = (make_run(task, clients, method, slots=3, guard=guard) for guard in (True, False))
    for run in (on, off):
        train(Loop(task), run, 3)
    assert all(
        torch.equal(one, other)
        for one, other in zip(*(state_of(r).values() for r in (on, off)), strict=True)
    )
    assert on.save()[1] == off.save()[1]


@EVERY
def test_where_every_visit_is_set_aside_nothing_moves(method: Method) -> None:
    task, clients = broken_task()
    task.samples.x[:] = np.inf  # type: ignore[attr-defined]
    run = make_run(task, clients, replace(method, period=2), slots=3, guard=True)
    x, state = run.server.x.clone(), copy.deepcopy(run.server.state)
    outcomes = train(Loop(task), run, 4)
    assert [outcome.train_loss for outcome in outcomes] == [None, None]
    assert torch.equal(run.server.x, x)
    assert all(torch.equal(run.server.state[name], state[name]) for name in state)
    assert (run.server.set_aside, run.server.bytes_up, run.clients.memory.place) == (12, 0, {})


def test_a_buffer_or_a_loss_that_is_not_finite_counts_too() -> None:
    """BatchNorm's variance of huge inputs is infinite, although the weights stay finite."""
    task = normed(dtype=torch.float32)
    run = make_run(task, [np.arange(4), np.arange(4, 13)], FedAvg(), slots=2, guard=True)
    [job] = run.ready(1)
    y, loss = job.x.clone(), torch.ones(2)
    y[0, -1] = torch.inf
    assert run.clients.end(job.orders, job.routes, y, loss).of.tolist() == [1]  # type: ignore[union-attr]
    assert run.clients.end(
        job.orders, job.routes, job.x, torch.tensor([1.0, torch.nan])
    ).of.tolist() == [0]  # type: ignore[union-attr]
    assert run.clients.end(job.orders, job.routes, job.x, loss).of is None


def test_without_a_guard_the_visit_is_named() -> None:
    task, run = guarded(FedNova(), guard=False)
    outcomes = train(Loop(task), run, ROUNDS)
    broke = first_broken_visit([visited for outcome in outcomes for visited in outcome.visits])
    assert broke is not None
    cohort = draw_cohort("uniform", 0, broke.round - 1, 6, 4)
    assert (broke.client, cohort[broke.slot]) == (BAD, BAD)
