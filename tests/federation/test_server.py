"""The server: who visits whom, how slots merge, what it costs."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import permutations
from math import factorial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedskip.engine import Loop
from fedskip.federation import Orders, Replies, Server, draw_cohort
from fedskip.methods import FedAvg, FedDyn, FedNova, Method, Moon, Scaffold
from fedskip.models.vector import Layout
from fedskip.rng import stream, visit_key
from tiny import METHODS, SIZES, Nudge, make_run, named, perceptron_task, train


class Norm(nn.BatchNorm1d):
    """Four trainable numbers and four that ride along."""

    def __init__(self) -> None:
        super().__init__(2)


def make_server(method: Method, slots: int = 3, clients: int = 5) -> Server:
    layout = Layout.of(Norm())
    x = torch.from_numpy(stream("x").normal(size=layout.size))
    return Server(method, x, layout, clients=clients, slots=slots, seed=0, fresh=lambda: 3 * x)


def reply(
    orders: Orders, samples: list[int], *, upload: dict[str, Tensor] | None = None
) -> Replies:
    """What comes back if every model moved by its own noise."""
    noise = stream("reply", orders.round).normal(size=orders.x.shape)
    k = len(samples)
    return Replies(
        orders.x + torch.from_numpy(noise), upload or {}, np.array(samples), np.full(k, 2), np.full(k, 0.5),
        torch.full((k,), 3.0, dtype=torch.float64),
    )  # fmt: skip


def assert_even(counts: np.ndarray, sigmas: float = 4.0) -> None:
    """Chi-square against equal counts: its mean is the freedom f, its variance 2 f."""
    counts = counts.ravel()
    expected, freedom = counts.mean(), counts.size - 1
    assert expected >= 5, "too few draws for a chi-square"
    assert (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom) < sigmas


def cohorts(clients: int, slots: int, rounds: int, seed: int = 0) -> np.ndarray:
    return np.stack(
        [draw_cohort("uniform", seed, round, clients, slots) for round in range(rounds)]
    )


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
def test_where_a_slot_goes_next_does_not_depend_on_where_others_were(
    clients: int, slots: int
) -> None:
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
def test_a_slot_meets_as_many_clients_in_a_period_as_the_paper_expects(
    slots: int, period: int
) -> None:
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
    assert (
        one.clients.tolist()
        == other.clients.tolist()
        == draw_cohort("uniform", 0, 7, 6, 4).tolist()
    )
    assert one.keys == other.keys == [visit_key(0, 7, client) for client in one.clients]
    assert cohorts(6, 4, 5, seed=0).tolist() != cohorts(6, 4, 5, seed=1).tolist()


def test_fixed_slots_stay_and_cyclic_slots_move_on() -> None:
    assert [draw_cohort("fixed", 0, round, 5, 3).tolist() for round in (0, 1, 7)] == [[0, 1, 2]] * 3
    assert [draw_cohort("cyclic", 0, r, 3, 2).tolist() for r in range(4)] == [
        [0, 1],
        [1, 2],
        [2, 0],
        [0, 1],
    ]


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
        upload = (
            {"delta_c": torch.ones(2, 4, dtype=torch.float64)}
            if isinstance(method, Scaffold)
            else {}
        )
        server.absorb(orders, reply(orders, [10, 30], upload=upload))
    one, other = three.merge(1), two.merge(1)
    torch.testing.assert_close(one.evaluated, other.evaluated)
    torch.testing.assert_close(three.x, two.x)
    torch.testing.assert_close(one.drift_mean, other.drift_mean)
    torch.testing.assert_close(one.drift_broadcast, other.drift_broadcast)
    assert torch.equal(three.w, three.x.expand(3, -1)), (
        "the slot that was left out gets the new model too"
    )


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
    assert (outcome.merges, outcome.drift_mean, outcome.drift_broadcast) == (1, 0, 0)
    assert outcome.train_loss is None, "there is none to speak of"


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
        visited = [
            draw_cohort("uniform", 0, round, 6, 3)
            for round in (outcome.round - 2, outcome.round - 1)
        ]
        seen = np.array(SIZES)[np.stack(visited)].sum(0)
        moved = torch.from_numpy(seen / seen.sum()) @ outcome.slots - x
        assert outcome.drift_mean > 0
        torch.testing.assert_close(
            outcome.drift_broadcast, outcome.drift_mean + moved.square().sum()
        )
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
    assert (run.server.bytes_down, run.server.bytes_up) == (
        12 * model * (1 + down),
        12 * model * (1 + up),
    )


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
