"""One run: when it merges, how slots run ahead, and that it can be put down and taken up."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskip.engine import Job, Local, Loop, Stacked, Task, Trained
from fedskip.engine.local import route
from fedskip.federation import Outcome, Run
from fedskip.methods import FedAvg, FedDyn, FedNova, FedProx, Method, Moon, Scaffold
from fedskip.rng import visit_key
from tiny import ALL_TERMS, METHODS, Nudge, make_run, named, perceptron_task, train


@pytest.mark.parametrize(
    ("period", "rounds", "merges", "final"),
    [
        (1, 4, [1, 2, 3, 4], False),
        (3, 9, [3, 6, 9], False),
        (3, 11, [3, 6, 9], True),  # 200 rounds of period 3 end at 198
        (7, 5, [], True),
        ("1x3,4", 9, [1, 2, 3, 7], True),
        ("1x3,4", 11, [1, 2, 3, 7, 11], False),
        ("never", 4, [], False),
    ],
)
@pytest.mark.parametrize("method", [FedAvg(), Scaffold()], ids=["period", "round"])
def test_merge_rounds_and_the_final_merge(
    method: Method, period: int | str, rounds: int, merges: list[int], final: bool
) -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, replace(method, period=period), slots=3, eval_every=rounds)
    outcomes = [outcome for outcome in train(Nudge(), run, rounds) if outcome.evaluated is not None]
    assert [outcome.round for outcome in outcomes] == merges
    assert [outcome.merges for outcome in outcomes] == [*range(1, len(merges) + 1)]
    assert not any(outcome.final for outcome in outcomes)
    w, seen = run.server.w.clone(), run.server.seen.copy()
    last = run.finish()
    assert (last is not None) == final
    if last is not None:
        assert (last.final, last.round) == (True, rounds)
        torch.testing.assert_close(last.evaluated, torch.from_numpy(seen / seen.sum()) @ w)
        assert run.finish() is None, "there is nothing left to merge"


def test_stopping_within_a_period_does_not_merge() -> None:
    """`until` is a checkpoint, not an end: the period goes on after it."""
    task, clients = perceptron_task()
    at_once, in_pieces = (make_run(task, clients, FedAvg(period=3), slots=3) for _ in range(2))
    expected = train(Nudge(), at_once, 6)
    found = [outcome for until in (1, 2, 4, 5, 6) for outcome in train(Nudge(), in_pieces, until)]
    assert [outcome.round for outcome in found] == [3, 6]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.evaluated, other.evaluated)  # type: ignore[arg-type]


def test_a_run_that_has_arrived_has_nothing_ready() -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, FedAvg(), slots=3)
    train(Nudge(), run, 2)
    assert run.ready(2) == []
    assert run.ready(1) == []
    assert run.round == 2


def finish(run: Run, job: Job, k: int) -> Outcome | None:
    return run.done(Trained(job, [k], job.x[k : k + 1] + 1, job.x.new_ones(1)))


def started(ready: list[Job]) -> list[tuple[int, list[int]]]:
    """(round, slots) of visits."""
    return [(job.orders.round, job.orders.slots.tolist()) for job in ready]


def test_a_slot_goes_straight_on_inside_a_period() -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, FedAvg(period=3), slots=3)
    first = run.ready(100)
    assert started(first) == [(0, [0, 1, 2])]
    assert run.ready(100) == [], "each visit is handed out once"
    assert finish(run, first[0], 1) is None
    second = run.ready(100)
    assert started(second) == [(1, [1])]
    finish(run, second[0], 0)
    third = run.ready(100)
    assert started(third) == [(2, [1])]
    finish(run, third[0], 0)
    assert run.ready(100) == [], "slot 1 has reached the merge and waits for the others"
    finish(run, first[0], 0)
    finish(run, first[0], 2)
    fourth = run.ready(100)
    assert started(fourth) == [(1, [0, 2])], "those that are free together start together"
    finish(run, fourth[0], 0)
    finish(run, fourth[0], 1)
    fifth = run.ready(100)
    finish(run, fifth[0], 0)
    outcome = finish(run, fifth[0], 1)
    assert outcome is not None
    assert (outcome.round, run.round) == (3, 3)
    assert started(run.ready(100)) == [(3, [0, 1, 2])]


def test_nothing_runs_ahead_of_a_checkpoint() -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, FedAvg(period=3), slots=2)
    [first] = run.ready(1)
    finish(run, first, 0)
    assert run.ready(1) == []
    finish(run, first, 1)
    assert run.round == 1


@pytest.mark.parametrize(
    "method", [Scaffold(period=3), FedDyn(period=3), Moon(period=3)], ids=lambda m: m.label
)
def test_a_method_with_memory_waits_for_the_round(method: Method) -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, method, slots=3)
    [first] = run.ready(100)
    for k in (2, 0):
        finish(run, first, k)
        assert run.ready(100) == []
    finish(run, first, 1)
    assert started(run.ready(100)) == [(1, [0, 1, 2])]


@pytest.mark.parametrize("period", [1, 3, "never"])
@pytest.mark.parametrize("method", METHODS, ids=named(METHODS))
def test_the_order_in_which_visits_end_does_not_matter(method: Method, period: int | str) -> None:
    task, clients = perceptron_task()
    ends = []
    for backwards in (False, True):
        run = make_run(task, clients, replace(method, period=period), slots=3)
        train(Nudge(backwards), run, 7)
        ends.append((run.server.w, run.server.bytes_up, run.server.seen.tolist(), run.server.state))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1:3] == ends[1][1:3]
    assert all(torch.equal(ends[0][3][name], ends[1][3][name]) for name in ends[0][3])


@pytest.mark.parametrize(
    "method",
    [FedAvg(period=4), FedProx(mu=0.1, period=4), FedNova(period="2x1,3")],
    ids=lambda m: m.label,
)
def test_running_ahead_gives_what_the_loop_gives(method: Method) -> None:
    """Clients of 1 to 8 steps: in the stacked engine slots are rounds apart, and rows join midway."""
    task, clients = perceptron_task()
    loop, stacked = (make_run(task, clients, method, slots=4, rounds=10) for _ in range(2))
    expected = train(Loop(task), loop, 10)
    found = train(Stacked(task, replace(ALL_TERMS, sizes=[2, 4])), stacked, 10)
    assert [outcome.round for outcome in found] == [outcome.round for outcome in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.evaluated, other.evaluated, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(one.train_loss, other.train_loss, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(stacked.server.w, loop.server.w, rtol=1e-10, atol=1e-12)


def revived(run: Run, fresh: Run) -> Run:
    """The run as a checkpoint brings it back: tensors copied, numbers through JSON."""
    tensors, notes = run.save()
    fresh.restore({name: t.clone() for name, t in tensors.items()}, json.loads(json.dumps(notes)))
    return fresh


@pytest.mark.parametrize("period", [1, 3, "never"])
@pytest.mark.parametrize("method", METHODS, ids=named(METHODS))
def test_a_run_taken_up_again_goes_on_to_the_last_bit(method: Method, period: int | str) -> None:
    task, clients = perceptron_task(Local(lr=0.2, batch=3, epochs=1, decay="cosine"))
    engine, rounds = Loop(task), 5

    def make() -> Run:
        return make_run(task, clients, replace(method, period=period), slots=3, rounds=rounds)

    whole = make()
    expected = train(engine, whole, rounds)
    pieces, found = make(), []
    for until in range(1, rounds + 1):
        pieces = revived(pieces, make())
        found += train(engine, pieces, until)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        for name in (
            "evaluated",
            "broadcast",
            "slots",
            "train_loss",
            "drift_mean",
            "drift_broadcast",
        ):
            a, b = getattr(one, name), getattr(other, name)
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b)
        assert (one.round, one.merges, one.bytes_up) == (other.round, other.merges, other.bytes_up)
    saved, notes = pieces.save()
    expected_tensors, expected_notes = whole.save()
    assert notes == expected_notes
    assert saved.keys() == expected_tensors.keys()
    assert all(torch.equal(saved[name], expected_tensors[name]) for name in saved)


def test_equal_slots_are_saved_once() -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, FedAvg(period=2), slots=3)
    train(Nudge(), run, 1)
    assert run.save()[0]["server.w"].shape == (3, 15)
    train(Nudge(), run, 2)
    assert "server.w" not in run.save()[0]


def test_a_run_cannot_be_saved_while_slots_are_on_their_way() -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, FedAvg(), slots=3)
    run.ready(1)
    with pytest.raises(AssertionError, match="on their way"):
        run.save()


def plain_sgd(task: Task, visits: Iterator[tuple[int, int]], clients: list[np.ndarray]) -> Tensor:
    """One model that visits (round, client) pairs, as anyone would write it."""
    module = copy.deepcopy(task.module)
    for round, client in visits:
        optimiser = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-5)
        for batch in route(visit_key(0, round, client), clients[client], task.local).batches:
            x, y = task.samples.take(torch.from_numpy(batch))
            optimiser.zero_grad()
            task.loss(module(x), y).mean().backward()
            optimiser.step()
    return task.layout.pack(module)


def test_local_training_keeps_every_slot_with_its_client() -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, FedAvg(period="never"), slots=6, policy="fixed", eval_every=2)
    outcomes = train(Loop(task), run, 4)
    assert [(o.round, o.merges, o.evaluated) for o in outcomes] == [(2, 0, None), (4, 0, None)]
    assert outcomes[-1].slots is not None
    for k in range(6):
        expected = plain_sgd(task, ((round, k) for round in range(4)), clients)
        torch.testing.assert_close(outcomes[-1].slots[k], expected, rtol=1e-12, atol=1e-13)
    assert run.finish() is None


def test_cross_training_takes_one_model_from_client_to_client() -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, FedAvg(period="never"), slots=1, policy="cyclic", eval_every=8)
    [outcome] = train(Loop(task), run, 8)
    assert outcome.slots is not None
    expected = plain_sgd(task, ((round, round % 6) for round in range(8)), clients)
    torch.testing.assert_close(outcome.slots[0], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("method", "meetings"),
    [
        (FedAvg(period=3), [0, 3, 6, 7]),
        (FedAvg(period="never"), [0, 2, 4, 5, 6, 7]),
        (Scaffold(period=3), [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
    ids=lambda value: value.label if isinstance(value, Method) else "",
)
def test_meetings_are_where_slots_really_meet(method: Method, meetings: list[int]) -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, method, slots=3, eval_every=2)
    run.rounds = 5
    assert run.meetings(7) == meetings
    met = [0]
    while run.round < 7:
        for job in run.ready(7):
            k = len(job.routes)
            run.done(Trained(job, list(range(k)), job.x, job.x.new_zeros(k)))
        met += [run.round] if run.round > met[-1] else []
    assert met == meetings
