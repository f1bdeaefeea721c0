"""One run: who visits whom, what is merged when, what it costs, and that it can be put down and taken up."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from math import factorial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedskip.data import Arrays
from fedskip.engine import Loop, Stacked, Task, Trained, Visits, Work
from fedskip.engine.base import route
from fedskip.federation import Memory, Orders, Outcome, Replies, Run, Server, draw_cohort
from fedskip.methods import FedAvg, FedDyn, FedNova, FedProx, Method, Moon, Scaffold
from fedskip.models import build
from fedskip.rng import stream, torch_scope, visit_key
from fedskip.spec import Local
from fedskip.stack import Layout
from tiny import ALL_TERMS, METHODS, make_run, make_task, named, train

SIZES = (6, 15, 3, 24, 9, 12)


def perceptron_task(local: Local | None = None) -> tuple[Task, list[np.ndarray]]:
    """Six clients of 3 to 24 samples."""
    draw, total = stream("federation"), sum(SIZES)
    samples = Arrays(
        torch.from_numpy(draw.normal(size=(total, 4))), torch.from_numpy(draw.integers(0, 3, total))
    )
    with torch_scope("federation"):
        module = build("perceptron", inputs=4, classes=3)
    task = make_task(module, samples, local or Local(lr=0.2, batch=3, epochs=1))
    return task, np.split(np.arange(total), np.cumsum(SIZES)[:-1])


class Norm(nn.BatchNorm1d):
    """Four trainable numbers and four that ride along."""

    def __init__(self) -> None:
        super().__init__(2)


def make_server(method: Method, slots: int = 3, clients: int = 5) -> Server:
    layout = Layout.of(Norm())
    x = torch.from_numpy(stream("x").normal(size=layout.size))
    return Server(method, x, layout, clients=clients, slots=slots, seed=0, fresh=lambda: 3 * x)


def reply(orders: Orders, samples: list[int], *, upload: dict[str, Tensor] | None = None) -> Replies:
    """What comes back if every model moved by its own noise."""
    noise = stream("reply", orders.round).normal(size=orders.x.shape)
    k = len(samples)
    return Replies(
        orders.x + torch.from_numpy(noise), upload or {}, np.array(samples), np.full(k, 2), np.full(k, 0.5),
        torch.full((k,), 3.0, dtype=torch.float64),
    )  # fmt: skip


class Nudge:
    """An engine that only adds a number to each model and reports visits in an order of its own."""

    def __init__(self, backwards: bool = False) -> None:
        self.backwards = backwards

    def run(self, work: Work) -> None:
        under_way: list[tuple[Visits, int]] = []
        while True:
            under_way += [(visits, k) for visits in work.ready() for k in range(len(visits.routes))]
            if not under_way:
                return
            visits, k = under_way.pop(-1 if self.backwards else 0)
            y = visits.x[k : k + 1] + visits.routes[k].key % 1000 / 1000
            work.done(visits, [k], Trained(y, y.sum(1)))


# --- the cohort ----------------------------------------------------------------------------------------


def assert_even(counts: np.ndarray, sigmas: float = 4.0) -> None:
    """Chi-square against equal counts: its mean is the freedom f, its variance 2 f."""
    counts = counts.ravel()
    expected, freedom = counts.mean(), counts.size - 1
    assert expected >= 5, "too few draws for a chi-square"
    assert (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom) < sigmas


def cohorts(clients: int, slots: int, rounds: int, seed: int = 0) -> np.ndarray:
    return np.stack([draw_cohort("uniform", seed, round, clients, slots) for round in range(rounds)])


def pairs(one: np.ndarray, other: np.ndarray, clients: int) -> np.ndarray:
    """How often each pair of clients occurs, (N, N)."""
    return np.bincount(one * clients + other, minlength=clients**2).reshape(clients, clients)


BOTH = pytest.mark.parametrize(("clients", "slots"), [(6, 6), (7, 3)], ids=["full", "partial"])


@BOTH
def test_a_cohort_has_distinct_clients(clients: int, slots: int) -> None:
    drawn = cohorts(clients, slots, 200)
    assert all(len(set(cohort)) == slots for cohort in drawn)
    assert drawn.min() == 0
    assert drawn.max() == clients - 1


@BOTH
def test_every_slot_visits_every_client_equally_often(clients: int, slots: int) -> None:
    drawn = cohorts(clients, slots, 3000)
    for k in range(slots):
        assert_even(np.bincount(drawn[:, k], minlength=clients))


@BOTH
def test_where_a_slot_goes_next_does_not_depend_on_where_it_was(clients: int, slots: int) -> None:
    """All pairs of clients of successive rounds are equally likely, the same one twice included."""
    drawn = cohorts(clients, slots, 4000)
    for lag in (1, 2):
        for k in range(slots):
            counts = pairs(drawn[:-lag, k], drawn[lag:, k], clients)
            assert_even(counts)
            stayed, pairs_seen = np.trace(counts), counts.sum()
            assert abs(stayed - pairs_seen / clients) < 4 * np.sqrt(pairs_seen / clients)


@BOTH
def test_where_a_slot_goes_next_does_not_depend_on_where_others_were(clients: int, slots: int) -> None:
    drawn = cohorts(clients, slots, 4000)
    assert_even(pairs(drawn[:-1, 0], drawn[1:, 1], clients))


@BOTH
def test_a_cohort_is_ordered_at_random(clients: int, slots: int) -> None:
    """The shuffle is this order: a sorted sample would tie slots to clients."""
    drawn = cohorts(clients, slots, 4000)
    orders = dict.fromkeys(permutations(range(3)), 0)
    for cohort in drawn:
        orders[tuple(np.argsort(cohort[:3]))] += 1  # type: ignore[index]
    assert_even(np.array([*orders.values()]))
    ordered_pairs = pairs(drawn[:, 0], drawn[:, 1], clients)
    assert not np.diag(ordered_pairs).any()
    assert_even(ordered_pairs[~np.eye(clients, dtype=bool)])


def test_all_permutations_are_equally_likely() -> None:
    """Full participation is a permutation too, fixed points allowed, not only derangements."""
    counts: dict[tuple[int, ...], int] = {}
    for cohort in cohorts(4, 4, 4000):
        counts[tuple(cohort)] = counts.get(tuple(cohort), 0) + 1
    assert len(counts) == factorial(4)
    assert_even(np.array([*counts.values()]))


@pytest.mark.parametrize("slots", [10, 4])
@pytest.mark.parametrize("period", [3, 5, 10])
def test_a_slot_meets_as_many_clients_in_a_period_as_the_paper_expects(slots: int, period: int) -> None:
    """N (1 - (1 - 1/N)^D): for N = 10 that is 2.71, 4.10 and 6.51."""
    clients, periods = 10, 300
    drawn = cohorts(clients, slots, periods * period).reshape(periods, period, slots)
    distinct = np.array([len(set(drawn[t, :, k])) for t in range(periods) for k in range(slots)])
    expected = clients * (1 - (1 - 1 / clients) ** period)
    assert expected == pytest.approx({3: 2.71, 5: 4.10, 10: 6.51}[period], abs=0.005)
    assert abs(distinct.mean() - expected) < 4 * distinct.std() / np.sqrt(len(distinct))


def test_seeds_draw_different_cohorts_and_methods_the_same() -> None:
    task, clients = perceptron_task()
    runs = [make_run(task, clients, method, slots=4) for method in (FedAvg(), Scaffold(period=3))]
    one, other = (run.server.orders(7) for run in runs)
    assert one.clients.tolist() == other.clients.tolist() == draw_cohort("uniform", 0, 7, 6, 4).tolist()
    assert one.keys == other.keys == [visit_key(0, 7, client) for client in one.clients]
    assert cohorts(6, 4, 5, seed=0).tolist() != cohorts(6, 4, 5, seed=1).tolist()


def test_fixed_slots_stay_and_cyclic_slots_move_on() -> None:
    assert [draw_cohort("fixed", 0, round, 5, 3).tolist() for round in (0, 1, 7)] == [[0, 1, 2]] * 3
    assert [draw_cohort("cyclic", 0, r, 3, 2).tolist() for r in range(4)] == [[0, 1], [1, 2], [2, 0], [0, 1]]


# --- merging -------------------------------------------------------------------------------------------


def test_slots_are_weighted_by_all_samples_since_the_last_merge() -> None:
    server = make_server(FedAvg(period=2))
    for samples in ([10, 20, 30], [5, 1, 4]):
        orders = server.orders(0)
        server.absorb(orders, reply(orders, samples))
    w = server.w.clone()
    merged = server.merge(2)
    expected = torch.tensor([15.0, 21.0, 34.0], dtype=torch.float64) / 70 @ w
    torch.testing.assert_close(merged.evaluated, expected)
    assert torch.equal(server.w, server.x.expand(3, -1))
    # the weights start anew: only the samples of the next period count
    orders = server.orders(2)
    replies = reply(orders, [1, 1, 2])
    server.absorb(orders, replies)
    quarters = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    torch.testing.assert_close(server.merge(3).evaluated, quarters @ replies.y)


@pytest.mark.parametrize("method", METHODS, ids=named(METHODS))
def test_a_slot_without_an_accepted_visit_is_left_out(method: Method) -> None:
    """The merge equals that of a server that never had the slot."""
    three, two = make_server(method, slots=3), make_server(method, slots=2)
    for server, slots in ((three, np.array([0, 2])), (two, np.array([0, 1]))):
        orders = server.orders(0, slots)
        upload = {"delta_c": torch.ones(2, 4, dtype=torch.float64)} if isinstance(method, Scaffold) else {}
        server.absorb(orders, reply(orders, [10, 30], upload=upload))
    one, other = three.merge(1), two.merge(1)
    torch.testing.assert_close(one.evaluated, other.evaluated)
    torch.testing.assert_close(three.x, two.x)
    torch.testing.assert_close(one.drift_mean, other.drift_mean)
    torch.testing.assert_close(one.drift_broadcast, other.drift_broadcast)
    assert torch.equal(three.w, three.x.expand(3, -1)), "the slot that was left out gets the new model too"


@pytest.mark.parametrize("method", METHODS, ids=named(METHODS))
def test_without_any_accepted_visit_the_model_stays(method: Method) -> None:
    server = make_server(method)
    x, state = server.x.clone(), copy.deepcopy(server.state)
    outcome = server.merge(1)
    assert torch.equal(server.x, x)
    assert torch.equal(server.w, x.expand(3, -1))
    assert server.state.keys() == state.keys()
    assert all(torch.equal(server.state[name], state[name]) for name in state)
    assert outcome.evaluated is not None
    assert torch.equal(outcome.evaluated, x)
    assert (outcome.merges, outcome.drift_mean, outcome.drift_broadcast, outcome.train_loss) == (1, 0, 0, 0)


def test_an_order_without_a_reply_leaves_its_slot_as_it_was() -> None:
    server = make_server(FedAvg(period=2))
    orders = server.orders(0)
    before = server.w.clone()
    returned = orders.take([2, 0])
    assert returned.slots.tolist() == [2, 0]
    assert returned.keys == [orders.keys[2], orders.keys[0]]
    assert returned.clients.tolist() == orders.clients[[2, 0]].tolist()
    replies = reply(returned, [5, 7])
    server.absorb(returned, replies)
    assert torch.equal(server.w, torch.stack([replies.y[1], before[1], replies.y[0]]))
    assert server.seen.tolist() == [7, 0, 5]


def test_drift_by_hand_and_its_identity() -> None:
    """V_b = V_a + |w - x|^2 with w the mean by samples; only the trainable slice counts."""
    server = make_server(FedAvg())
    x, orders = server.x.numpy()[:4], server.orders(0)
    replies = reply(orders, [10, 20, 50])
    server.absorb(orders, replies)
    outcome = server.merge(1)
    p, w = np.array([0.125, 0.25, 0.625]), replies.y.numpy()[:, :4]
    mean = p @ w
    assert float(outcome.drift_mean) == pytest.approx(
        sum(p[k] * ((w[k] - mean) ** 2).sum() for k in range(3))
    )
    assert float(outcome.drift_broadcast) == pytest.approx(
        sum(p[k] * ((w[k] - x) ** 2).sum() for k in range(3))
    )
    assert float(outcome.drift_broadcast) == pytest.approx(
        float(outcome.drift_mean) + ((mean - x) ** 2).sum()
    )


@pytest.mark.parametrize("method", METHODS, ids=named(METHODS))
def test_the_drift_identity_holds_in_runs(method: Method) -> None:
    """Also where what is broadcast is not the mean (FedDyn, FedNova, FedAvgM): x is what was broadcast."""
    task, clients = perceptron_task()
    run = make_run(task, clients, replace(method, period=2), slots=3, keep_slots=True)
    x = run.server.x
    for outcome in train(Loop(task), run, 4):
        assert outcome.slots is not None
        visited = [draw_cohort("uniform", 0, round, 6, 3) for round in (outcome.round - 2, outcome.round - 1)]
        seen = np.array(SIZES)[np.stack(visited)].sum(0)
        moved = torch.from_numpy(seen / seen.sum()) @ outcome.slots - x
        assert outcome.drift_mean > 0
        torch.testing.assert_close(outcome.drift_broadcast, outcome.drift_mean + moved.square().sum())
        x = outcome.evaluated if outcome.broadcast is None else outcome.broadcast  # type: ignore[assignment]


def test_a_look_at_slots_that_never_merge() -> None:
    server = make_server(FedAvg(period="never"))
    orders = server.orders(0)
    replies = reply(orders, [10, 20, 50])
    server.absorb(orders, replies)
    seen = server.look(1)
    assert (seen.evaluated, seen.merges) == (None, 0)
    assert seen.slots is not None
    assert torch.equal(seen.slots, replies.y)
    p, w = torch.tensor([0.125, 0.25, 0.625], dtype=torch.float64), replies.y[:, :4]
    torch.testing.assert_close(seen.drift_mean, p @ (w - p @ w).square().sum(1))
    assert torch.equal(server.w, replies.y), "a look changes nothing"


def test_train_loss_is_the_mean_over_the_steps_since_the_last_merge() -> None:
    server = make_server(FedAvg())
    for round in range(2):
        orders = server.orders(round)
        server.absorb(orders, reply(orders, [1, 1, 1]))  # 3 visits of 2 steps, losses summing to 3
        assert float(server.merge(round + 1).train_loss) == pytest.approx(1.5)


def test_slots_are_kept_only_where_asked_for() -> None:
    server = make_server(FedAvg())
    orders = server.orders(0)
    server.absorb(orders, reply(orders, [1, 1, 1]))
    w = server.w.clone()
    kept = server.merge(1, keep_slots=True).slots
    assert kept is not None
    assert torch.equal(kept, w)
    assert server.merge(2).slots is None


def test_feddyn_s_broadcast_differs_from_what_is_evaluated() -> None:
    for method, differs in ((FedAvg(), False), (FedDyn(), True)):
        server = make_server(method)
        orders = server.orders(0)
        server.absorb(orders, reply(orders, [1, 2, 3]))
        outcome = server.merge(1)
        assert (outcome.broadcast is not None) == differs
        assert torch.equal(server.x, outcome.broadcast if differs else outcome.evaluated)  # type: ignore[arg-type]


# --- bytes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "down", "up"),
    [
        (FedAvg(), 0, 0),
        (FedAvg(period=3), 0, 0),
        (FedDyn(), 0, 0),
        (Moon(), 0, 0),
        (FedNova(), 0, 0),
        (Scaffold(), 1, 1),
        (Scaffold(init="random"), 2, 1),
    ],
    ids=lambda value: value.label if isinstance(value, Method) else "",
)
def test_bytes_are_four_per_number_and_scaffold_adds_a_vector_each_way(
    method: Method, down: int, up: int
) -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, method, slots=4)
    train(Nudge(), run, 3)
    model = 4 * task.layout.size
    assert task.layout.size == task.layout.trainable == 15
    assert (run.server.bytes_down, run.server.bytes_up) == (12 * model * (1 + down), 12 * model * (1 + up))


def test_buffers_travel_with_the_model_but_not_with_the_variates() -> None:
    server = make_server(Scaffold())
    orders = server.orders(0)
    server.absorb(
        orders, reply(orders, [1, 1, 1], upload={"delta_c": torch.zeros(3, 4, dtype=torch.float64)})
    )
    assert (server.bytes_down, server.bytes_up) == (4 * 3 * (8 + 4), 4 * 3 * (8 + 4))


def test_what_rides_along_and_does_not_move_keeps_its_bits() -> None:
    layout = Layout.of(Norm())
    x = torch.from_numpy(stream("x").normal(size=layout.size)).float()
    server = Server(FedAvg(), x, layout, clients=5, slots=3, seed=0)
    for round in range(20):
        orders = server.orders(round)
        replies = reply(orders, [1, 10, 30])
        y = torch.cat([replies.y[:, :4].float(), orders.x[:, 4:]], 1)
        server.absorb(orders, replace(replies, y=y, loss=replies.loss.float()))
        server.merge(round + 1)
    assert torch.equal(server.x[4:], x[4:])
    assert not torch.equal(server.x[:4], x[:4])


def test_only_replies_are_paid_for() -> None:
    server = make_server(FedAvg())
    orders = server.orders(0).take([1])
    server.absorb(orders, reply(orders, [1]))
    assert (server.bytes_down, server.bytes_up) == (32, 32)


# --- periods -------------------------------------------------------------------------------------------


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
    run = make_run(task, clients, replace(method, period=period), slots=3, look_every=rounds)
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


# --- running ahead -------------------------------------------------------------------------------------


def finish(run: Run, visits: Visits, k: int) -> Outcome | None:
    return run.done(visits, [k], Trained(visits.x[k : k + 1] + 1, visits.x.new_ones(1)))


def started(ready: list[Visits], run: Run) -> list[tuple[int, list[int]]]:
    """(round, slots) of visits."""
    return [(run.orders[visits].round, run.orders[visits].slots.tolist()) for visits in ready]


def test_a_slot_goes_straight_on_inside_a_period() -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, FedAvg(period=3), slots=3)
    first = run.ready(100)
    assert started(first, run) == [(0, [0, 1, 2])]
    assert run.ready(100) == [], "each visit is handed out once"
    assert finish(run, first[0], 1) is None
    second = run.ready(100)
    assert started(second, run) == [(1, [1])]
    finish(run, second[0], 0)
    third = run.ready(100)
    assert started(third, run) == [(2, [1])]
    finish(run, third[0], 0)
    assert run.ready(100) == [], "slot 1 has reached the merge and waits for the others"
    finish(run, first[0], 0)
    finish(run, first[0], 2)
    fourth = run.ready(100)
    assert started(fourth, run) == [(1, [0, 2])], "those that are free together start together"
    finish(run, fourth[0], 0)
    finish(run, fourth[0], 1)
    fifth = run.ready(100)
    finish(run, fifth[0], 0)
    outcome = finish(run, fifth[0], 1)
    assert outcome is not None
    assert (outcome.round, run.round) == (3, 3)
    assert started(run.ready(100), run) == [(3, [0, 1, 2])]


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
    assert started(run.ready(100), run) == [(1, [0, 1, 2])]


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
    "method", [FedAvg(period=4), FedProx(mu=0.1, period=4), FedNova(period="2x1,3")], ids=lambda m: m.label
)
def test_running_ahead_gives_what_the_loop_gives(method: Method) -> None:
    """Clients of 1 to 8 steps: in the stacked engine slots are rounds apart, and rows join midway."""
    task, clients = perceptron_task()
    loop, stacked = (make_run(task, clients, method, slots=4, rounds=10) for _ in range(2))
    expected = train(Loop(task), loop, 10)
    found = train(Stacked(task, [2, 4], uses=ALL_TERMS, compile=False), stacked, 10)
    assert [outcome.round for outcome in found] == [outcome.round for outcome in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.evaluated, other.evaluated, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(one.train_loss, other.train_loss, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(stacked.server.w, loop.server.w, rtol=1e-10, atol=1e-12)


# --- memory --------------------------------------------------------------------------------------------


def test_only_clients_that_were_visited_have_a_row() -> None:
    memory = Memory({"h": 2}, torch.zeros(0, dtype=torch.float64))
    state, first = memory.recall(np.array([7, 3]))
    assert state["h"].tolist() == [[0, 0], [0, 0]]
    assert first.tolist() == [True, True]
    memory.keep(np.array([7, 3]), {"h": torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)})
    memory.keep(np.array([900_000, 7]), {"h": torch.tensor([[5.0, 6.0], [8.0, 9.0]], dtype=torch.float64)})
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
    visited = {int(client) for round in range(2) for client in draw_cohort("uniform", 0, round, 6, 2)}
    assert set(run.clients.memory.place) == visited
    assert run.clients.memory.save()[0]["c"].shape == (len(visited), task.layout.trainable)


# --- putting down and taking up ------------------------------------------------------------------------


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
        for name in ("evaluated", "broadcast", "slots", "train_loss", "drift_mean", "drift_broadcast"):
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


# --- local and cross training --------------------------------------------------------------------------


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
    run = make_run(task, clients, FedAvg(period="never"), slots=6, policy="fixed", look_every=2)
    outcomes = train(Loop(task), run, 4)
    assert [(o.round, o.merges, o.evaluated) for o in outcomes] == [(2, 0, None), (4, 0, None)]
    assert outcomes[-1].slots is not None
    for k in range(6):
        expected = plain_sgd(task, ((round, k) for round in range(4)), clients)
        torch.testing.assert_close(outcomes[-1].slots[k], expected, rtol=1e-12, atol=1e-13)
    assert run.finish() is None


def test_cross_training_takes_one_model_from_client_to_client() -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, FedAvg(period="never"), slots=1, policy="cyclic", look_every=8)
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
    run = make_run(task, clients, method, slots=3, look_every=2)
    run.last = 5
    assert run.meetings(7) == meetings
    met = [0]
    while run.round < 7:
        for visits in run.ready(7):
            k = len(visits.routes)
            run.done(visits, list(range(k)), Trained(visits.x, visits.x.new_zeros(k)))
        met += [run.round] if run.round > met[-1] else []
    assert met == meetings
