"""Every method against a second implementation of it: plain numpy, written from the papers.

The model is a point y in the plane and client i's loss is |s_i y - t_i|^2 / 2, the same for all of its
samples, so that a visit is a few lines by hand whatever the order of the batches. A buffer that follows
the samples stands for BatchNorm's statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedskip.data import Arrays
from fedskip.engine import Local, Loop, Stacked, Task
from fedskip.federation import Outcome, Run
from fedskip.methods import (
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedNova,
    FedProx,
    Median,
    Method,
    Moon,
    NormBounded,
    Scaffold,
    TrimmedMean,
)
from fedskip.models import build
from fedskip.models.metrics import contrast_loss
from fedskip.rng import stream, torch_scope
from tiny import ALL_TERMS, METHODS, make_run, make_task, named, train

Vector = np.ndarray
Bend = Callable[[Vector], Vector | float]

S = np.array([[1.0, 0.8], [0.5, 1.2], [1.5, -1.0]])
T = np.array([[2.0, -1.0], [1.0, 3.0], [-2.0, 0.5]])
START = np.array([0.3, -0.4])
SIZES = (4, 8, 12)  # 2, 4 and 6 steps
LOCAL = Local(lr=0.05, momentum=0.6, weight_decay=0.03, batch=4, epochs=2)


class Quadratic(nn.Module):
    """A point, and a buffer that only shows in eval mode."""

    trace: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.from_numpy(START.copy()))
        self.register_buffer("trace", torch.zeros(2))

    def features(self, s: Tensor) -> tuple[Tensor, Tensor]:
        output = self.at * s
        if not self.training:
            return output, output + self.trace
        self.trace.mul_(0.5).add_(s.mean(0))
        return output, output

    def forward(self, s: Tensor) -> Tensor:
        return self.features(s)[0]


def half_squared(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum(1) / 2


def quadratic(sizes: tuple[int, ...], local: Local) -> tuple[Task, list[np.ndarray]]:
    owner = np.repeat(np.arange(3), sizes)
    samples = Arrays(torch.from_numpy(S[owner]), torch.from_numpy(T[owner]))
    task = make_task(Quadratic(), samples, local, loss=half_squared)
    return task, [np.flatnonzero(owner == i) for i in range(3)]


class ByHand:
    """FedAvg with a period, in numpy: K slots visit the clients in turn. Methods override what differs."""

    def __init__(
        self, *, sizes: tuple[int, ...] = SIZES, slots: int = 2, local: Local = LOCAL
    ) -> None:
        self.n, self.local = np.array(sizes), local
        self.tau = local.epochs * self.n // local.batch
        self.x, self.rest = START, np.zeros(2)  # the point and its buffer, as last broadcast
        self.w, self.rests = [START] * slots, [self.rest] * slots
        self.evaluated: list[Vector] = []
        self.broadcast: list[Vector] = []

    def bend(self, i: int, x: Vector, rest: Vector) -> Bend:
        return lambda y: 0.0

    def after(self, i: int, x: Vector, y: Vector, rest: Vector) -> None: ...

    def round_ends(self) -> None: ...

    def merge(self, w: Vector, p: Vector, a: Vector) -> tuple[Vector, Vector]:
        """What is evaluated and what is broadcast."""
        mean = p @ w
        return mean, mean

    def a(self, i: int) -> float:
        """FedNova's a_i, in closed form."""
        tau, rho = self.tau[i], self.local.momentum
        return float((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho))

    def visit(self, i: int, x: Vector, rest: Vector) -> tuple[Vector, Vector]:
        y, v, bend, o = x, np.zeros(2), self.bend(i, x, rest), self.local
        for _ in range(self.tau[i]):
            v = o.momentum * v + S[i] * (S[i] * y - T[i]) + o.weight_decay * y + bend(y)
            y = y - o.lr * v
            rest = rest / 2 + S[i]
        return y, rest

    def run(self, rounds: int, period: int) -> None:
        seen, a = np.zeros(len(self.w)), np.zeros(len(self.w))
        for round in range(rounds):
            for k in range(len(self.w)):
                i = (k + round) % 3
                y, rest = self.visit(i, self.w[k], self.rests[k])
                self.after(i, self.w[k], y, rest)
                self.w[k], self.rests[k] = y, rest
                seen[k] += self.n[i]
                a[k] += self.a(i)
            self.round_ends()
            if (round + 1) % period == 0:
                p = seen / seen.sum()
                evaluated, self.x = self.merge(np.stack(self.w), p, a)
                self.rest = p @ np.stack(self.rests)
                self.evaluated.append(np.concatenate([evaluated, self.rest]))
                self.broadcast.append(np.concatenate([self.x, self.rest]))
                self.w, self.rests = [self.x] * len(self.w), [self.rest] * len(self.w)
                seen, a = np.zeros(len(self.w)), np.zeros(len(self.w))


class FedProxByHand(ByHand):
    def bend(self, i: int, x: Vector, rest: Vector) -> Bend:
        return lambda y: 0.5 * (y - x)


class FedNovaByHand(ByHand):
    def merge(self, w: Vector, p: Vector, a: Vector) -> tuple[Vector, Vector]:
        d = (self.x - w) / a[:, None]
        x = self.x - (p @ a) * (p @ d)
        return x, x


class ScaffoldByHand(ByHand):
    c0 = np.zeros(2)

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.c, self.c_i, self.delta = self.c0, [self.c0] * 3, np.zeros(2)

    def bend(self, i: int, x: Vector, rest: Vector) -> Bend:
        return lambda y: self.c - self.c_i[i]

    def after(self, i: int, x: Vector, y: Vector, rest: Vector) -> None:
        new = self.c_i[i] - self.c + (x - y) / (self.local.lr * self.a(i))
        self.delta = self.delta + new - self.c_i[i]
        self.c_i[i] = new

    def round_ends(self) -> None:
        self.c, self.delta = self.c + self.delta / 3, np.zeros(2)


class RandomScaffoldByHand(ScaffoldByHand):
    c0 = np.array([0.7, -0.2])


class FedDynByHand(ByHand):
    alpha = 0.3

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.h = np.zeros((3, 2))

    def bend(self, i: int, x: Vector, rest: Vector) -> Bend:
        omega = self.n[i] * 3 / self.n.sum()
        return lambda y: self.alpha / omega * (y - x + self.h[i])

    def after(self, i: int, x: Vector, y: Vector, rest: Vector) -> None:
        self.h[i] += y - x

    def merge(self, w: Vector, p: Vector, a: Vector) -> tuple[Vector, Vector]:
        return w.mean(0), w.mean(0) + self.h.mean(0)


class MoonByHand(ByHand):
    mu, temperature = 2.0, 0.5

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.previous: dict[int, tuple[Vector, Vector]] = {}

    def bend(self, i: int, x: Vector, rest: Vector) -> Bend:
        if i not in self.previous:
            return lambda y: 0.0
        previous, its_rest = self.previous[i]
        near, far = S[i] * x + rest, S[i] * previous + its_rest  # in eval mode

        def gradient(y: Vector) -> Vector:
            """Of mu log(1 + e^((cos(z, far) - cos(z, near)) / T)) at z = s y."""
            z = S[i] * y
            odds = np.exp((cosine(z, far) - cosine(z, near)) / self.temperature)
            slope = odds / (1 + odds) / self.temperature
            return self.mu * S[i] * slope * (cosine_gradient(z, far) - cosine_gradient(z, near))

        return gradient

    def after(self, i: int, x: Vector, y: Vector, rest: Vector) -> None:
        self.previous[i] = (y, rest)


def cosine(z: Vector, q: Vector) -> float:
    return float(z @ q / np.sqrt((z @ z) * (q @ q)))


def cosine_gradient(z: Vector, q: Vector) -> Vector:
    size = np.sqrt(z @ z)
    return q / (size * np.sqrt(q @ q)) - cosine(z, q) * z / size**2


class FedAvgMByHand(ByHand):
    m: Vector | float = 0.0

    def merge(self, w: Vector, p: Vector, a: Vector) -> tuple[Vector, Vector]:
        self.m = 0.9 * self.m + (self.x - p @ w)
        return self.x - self.m, self.x - self.m


class FedAdamByHand(ByHand):
    m: Vector | float = 0.0
    v: Vector | float = 1e-6

    def merge(self, w: Vector, p: Vector, a: Vector) -> tuple[Vector, Vector]:
        d = self.x - p @ w
        self.m = 0.9 * self.m + 0.1 * d
        self.v = 0.99 * self.v + 0.01 * d**2
        x = self.x - 0.01 * self.m / (np.sqrt(self.v) + 1e-3)
        return x, x


class UniformByHand(ByHand):
    """Of two slots, a trimmed mean and a median are the mean; test_robust.py has more slots."""

    def merge(self, w: Vector, p: Vector, a: Vector) -> tuple[Vector, Vector]:
        return w.mean(0), w.mean(0)


class NormBoundedByHand(ByHand):
    def merge(self, w: Vector, p: Vector, a: Vector) -> tuple[Vector, Vector]:
        d = w - self.x
        norm = np.sqrt((d**2).sum(1))
        bound = 0.5 * norm.min()  # the lower of two
        x = self.x + p @ (d * (bound / norm)[:, None])
        return x, x


BY_HAND: dict[Method, type[ByHand]] = {
    FedAvg(): ByHand,
    FedProx(mu=0.5): FedProxByHand,
    Scaffold(): ScaffoldByHand,
    Scaffold(init="random"): RandomScaffoldByHand,
    Moon(mu=2.0): MoonByHand,
    FedNova(): FedNovaByHand,
    FedDyn(alpha=0.3): FedDynByHand,
    FedAvgM(): FedAvgMByHand,
    FedAdam(): FedAdamByHand,
    TrimmedMean(): UniformByHand,
    Median(): UniformByHand,
    NormBounded(factor=0.5): NormBoundedByHand,
}
PAIRS = [(method, BY_HAND[method]) for method in METHODS]


def play(
    engine: str,
    method: Method,
    rounds: int,
    *,
    sizes: tuple[int, ...] = SIZES,
    slots: int = 2,
    local: Local = LOCAL,
) -> tuple[list[Outcome], Run]:
    """The same on our side."""
    task, clients = quadratic(sizes, local)
    fresh = torch.tensor([*RandomScaffoldByHand.c0, 0.0, 0.0], dtype=torch.float64)
    run = make_run(task, clients, method, slots=slots, rounds=rounds, policy="cyclic", fresh=fresh)
    plan = replace(ALL_TERMS, sizes=[slots], contrast_sizes=[slots])
    made = Loop(task) if engine == "loop" else Stacked(task, plan)
    return train(made, run, rounds), run


def assert_equal(found: Tensor | None, expected: Vector) -> None:
    assert found is not None
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-13)


# --- against numpy -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "period"), [("loop", 1), ("loop", 2), ("loop", 3), ("stacked", 2)]
)
@pytest.mark.parametrize(("method", "by_hand"), PAIRS, ids=named(METHODS))
def test_a_method_and_its_composition_with_skipping(
    method: Method, by_hand: type[ByHand], period: int, engine: str
) -> None:
    """Two of three clients a round: every client comes back, to another slot, and one is always away."""
    outcomes, run = play(engine, replace(method, period=period), 6)
    hand = by_hand()
    hand.run(6, period)
    assert [outcome.round for outcome in outcomes] == [*range(period, 7, period)]
    for outcome, evaluated, broadcast in zip(outcomes, hand.evaluated, hand.broadcast, strict=True):
        assert_equal(outcome.evaluated, evaluated)
        if outcome.broadcast is None:
            assert np.array_equal(evaluated, broadcast)
        else:
            assert_equal(outcome.broadcast, broadcast)
    assert_equal(run.server.x, hand.broadcast[-1])


@pytest.mark.parametrize(("method", "by_hand"), PAIRS, ids=named(METHODS))
def test_methods_differ_from_fedavg_where_they_should(
    method: Method, by_hand: type[ByHand]
) -> None:
    """Otherwise the test above could not tell them apart."""
    fedavg, hand = ByHand(), by_hand()
    fedavg.run(6, 2)
    hand.run(6, 2)
    assert (np.abs(hand.evaluated[-1] - fedavg.evaluated[-1])[:2] > 1e-3).all() == (
        by_hand is not ByHand
    )


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_scaffold_without_momentum_is_the_published_algorithm(engine: str) -> None:
    """Algorithm 1 of Karimireddy et al., option II, eta_g = 1. Clients are equal, so that p is uniform."""
    local, eta, tau, n = replace(LOCAL, momentum=0.0, weight_decay=0.0), 0.05, 4, 3
    x, c, c_i = START, np.zeros(2), [np.zeros(2) for _ in range(n)]
    expected = []
    for r in range(4):
        delta_y, delta_c = [], []
        for i in (r % n, (r + 1) % n):
            y = x
            for _ in range(tau):
                y = y - eta * (S[i] * (S[i] * y - T[i]) - c_i[i] + c)
            c_plus = c_i[i] - c + (x - y) / (tau * eta)
            delta_y.append(y - x)
            delta_c.append(c_plus - c_i[i])
            c_i[i] = c_plus
        x = x + sum(delta_y) / 2
        c = c + sum(delta_c) / n
        expected.append(x)
    outcomes, run = play(engine, Scaffold(), 4, sizes=(8, 8, 8), local=local)
    for outcome, at in zip(outcomes, expected, strict=True):
        assert outcome.evaluated is not None
        assert_equal(outcome.evaluated[:2], at)
    assert_equal(run.server.state["c"], c)
    memory, first = run.clients.memory.recall(np.arange(n))
    assert not first.any()
    assert_equal(memory["c"], np.stack(c_i))


def test_scaffold_s_random_start_stays_with_clients_that_were_never_seen() -> None:
    """c keeps the share of c0 that belongs to them, which is what pushes runs apart."""
    _, run = play("loop", Scaffold(init="random"), 1)
    hand = RandomScaffoldByHand()
    hand.run(1, 1)
    assert_equal(run.server.state["c"], hand.c)
    assert_equal(run.server.state["c"] - torch.from_numpy(sum(hand.c_i[:2]) / 3), hand.c0 / 3)


def test_feddyn_remembers_h_and_the_server_its_mean() -> None:
    _, run = play("loop", FedDyn(alpha=0.3, period=2), 4)
    hand = FedDynByHand()
    hand.run(4, 2)
    assert_equal(run.clients.memory.recall(np.arange(3))[0]["h"], hand.h)
    assert_equal(run.server.state["h_mean"], hand.h.mean(0))


def test_moon_keeps_the_client_s_own_last_model_whole() -> None:
    """Client 1 is visited by slot 1 in round 0 and by slot 0 in round 1."""
    _, run = play("loop", Moon(mu=2.0, period="never"), 2)
    hand = MoonByHand()
    hand.run(2, 3)
    previous, first = run.clients.memory.recall(np.arange(3))
    assert not first.any()
    for i in range(3):
        assert_equal(previous["previous"][i], np.concatenate(hand.previous[i]))
    assert_equal(previous["previous"][1], np.concatenate([hand.w[0], hand.rests[0]]))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_moon_s_loss(temperature: float) -> None:
    z, near, far = stream("moon").normal(size=(3, 7, 4))
    expected = []
    for row in range(7):
        a, b = (np.exp(cosine(z[row], q[row]) / temperature) for q in (near, far))
        expected.append(-np.log(a / (a + b)))
    assert_equal(
        contrast_loss(*map(torch.from_numpy, (z, near, far)), temperature), np.array(expected)
    )


# --- numbers one can follow in one's head --------------------------------------------------------------

HALF = Local(
    lr=0.5, momentum=0.0, weight_decay=0.0, batch=4, epochs=1, max_steps=1
)  # one step, half-way


def halfway(method: Method, rounds: int) -> list[list[float]]:
    """Two clients of 4 and 12 samples pull a number that starts at 0 towards 2 and 4; two slots swap."""
    samples = Arrays(torch.ones(16, 1), torch.tensor([2.0] * 4 + [4.0] * 12)[:, None])

    class Point(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.at = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.at

    task = make_task(Point(), samples, HALF, loss=half_squared)
    run = make_run(task, [np.arange(4), np.arange(4, 16)], method, slots=2, policy="cyclic")
    return [
        [float(o.evaluated), float(o.evaluated if o.broadcast is None else o.broadcast)]  # type: ignore[arg-type]
        for o in train(Loop(task), run, rounds)
    ]


@pytest.mark.parametrize(
    ("method", "rounds", "expected"),
    [
        (FedAvg(), 1, [[1.75, 1.75]]),  # the slots go to 1 and 2, weights 1/4 and 3/4
        (
            FedAvg(period=2),
            2,
            [[2.25, 2.25]],
        ),  # then 1 goes half-way to 4 and 2 stays; 16 samples each
        (
            FedProx(mu=1.0, period=2),
            2,
            [[2.25, 2.25]],
        ),  # as above: no pull yet where a visit begins
        (FedNova(), 1, [[1.75, 1.75]]),  # one step each: nothing to normalise
        # c = -(2 + 4) / 2 after round 1; from 1.75 both clients then see the gradient 1.75 - 3
        (Scaffold(), 2, [[1.75, 1.75], [2.375, 2.375]]),
        (FedDyn(alpha=0.0), 1, [[1.5, 3.0]]),  # uniform mean; the cloud adds (1 + 2) / 2
        (
            FedAvgM(beta=0.5),
            2,
            [[1.75, 1.75], [3.5, 3.5]],
        ),  # m = -1.75, then -0.875 - (2.625 - 1.75)
    ],
    ids=lambda value: value.label if isinstance(value, Method) else "",
)
def test_numbers_one_can_follow(method: Method, rounds: int, expected: list[list[float]]) -> None:
    np.testing.assert_allclose(halfway(method, rounds), expected, atol=1e-14)


# --- knobs off -----------------------------------------------------------------------------------------


def perceptrons(
    method: Method, rounds: int, *, sizes: tuple[int, ...] = (6, 11, 17, 9), seed: int = 0
) -> list[Outcome]:
    """Real batches, a real loss, float32: equal here means equal to the last bit, in the loop engine."""
    draw = stream(seed, "perceptrons")
    x = torch.from_numpy(draw.normal(size=(sum(sizes), 5)))
    samples = Arrays(x, torch.from_numpy(draw.integers(0, 3, sum(sizes))))
    with torch_scope(seed):
        module = build("perceptron", inputs=5, classes=3)
    task = make_task(module, samples, Local(lr=0.3, batch=3, epochs=2), dtype=torch.float32)
    clients = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    run = make_run(task, clients, method, slots=3, keep_slots=True)
    return train(Loop(task), run, rounds)


def assert_same(one: list[Outcome], other: list[Outcome]) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.evaluated, b.evaluated)  # type: ignore[arg-type]
        assert torch.equal(a.slots, b.slots)  # type: ignore[arg-type]
        assert torch.equal(a.train_loss, b.train_loss)


@pytest.mark.parametrize("period", [1, 2])
@pytest.mark.parametrize("method", [FedProx(mu=0.0), Moon(mu=0.0)], ids=lambda method: method.label)
def test_without_mu_it_is_fedavg(method: Method, period: int) -> None:
    assert_same(
        perceptrons(replace(method, period=period), 4), perceptrons(FedAvg(period=period), 4)
    )


def test_a_period_of_one_is_fedavg() -> None:
    """The rule takes the path of skipping, but every period has one round."""
    assert_same(perceptrons(FedAvg(period="1x2,1"), 4), perceptrons(FedAvg(), 4))


def test_scaffold_s_first_round_is_fedavg_s() -> None:
    for init in ("zero", "random"):
        scaffold, fedavg = perceptrons(Scaffold(init=init), 2), perceptrons(FedAvg(), 2)  # type: ignore[arg-type]
        assert_same(scaffold[:1], fedavg[:1])
        assert not torch.equal(scaffold[1].evaluated, fedavg[1].evaluated)  # type: ignore[arg-type]


def test_feddyn_without_alpha_takes_fedavg_s_steps_to_the_uniform_mean() -> None:
    feddyn, fedavg = perceptrons(FedDyn(alpha=0.0), 1)[0], perceptrons(FedAvg(), 1)[0]
    assert feddyn.slots is not None
    assert fedavg.slots is not None
    assert torch.equal(feddyn.slots, fedavg.slots)
    assert feddyn.evaluated is not None
    torch.testing.assert_close(feddyn.evaluated, feddyn.slots.mean(0))


def test_fednova_is_fedavg_when_all_steps_are_equal() -> None:
    equal, unequal = (8, 8, 8, 8), (6, 11, 17, 9)
    for period, sizes, same in ((1, equal, True), (3, equal, True), (1, unequal, False)):
        nova = perceptrons(FedNova(period=period), 3, sizes=sizes)[-1].evaluated
        avg = perceptrons(FedAvg(period=period), 3, sizes=sizes)[-1].evaluated
        assert nova is not None
        assert avg is not None
        assert torch.allclose(nova, avg, rtol=1e-5, atol=1e-6) == same


def test_fedavgm_without_momentum_is_fedavg() -> None:
    for one, other in zip(perceptrons(FedAvgM(beta=0.0), 3), perceptrons(FedAvg(), 3), strict=True):
        torch.testing.assert_close(one.evaluated, other.evaluated)


def test_moon_differs_from_fedavg_only_once_a_client_comes_back() -> None:
    task_rounds = (
        2  # two slots in turn: clients 0 and 1, then 1 and 2; client 1 is the first to come back
    )
    moon, fedavg = (play("loop", method, task_rounds)[0] for method in (Moon(mu=2.0), FedAvg()))
    assert torch.equal(moon[0].evaluated, fedavg[0].evaluated)  # type: ignore[arg-type]
    assert not torch.equal(moon[1].evaluated, fedavg[1].evaluated)  # type: ignore[arg-type]


# --- what methods say of themselves --------------------------------------------------------------------


def test_only_methods_without_memory_run_ahead() -> None:
    assert all(
        method().sync == "period" for method in (FedAvg, FedProx, FedNova, FedAvgM, FedAdam, Median)
    )
    assert all(method().sync == "round" for method in (Scaffold, Moon, FedDyn))


@pytest.mark.parametrize(
    ("method", "label"),
    [
        (FedAvg(), "FedAvg"),
        (FedAvg(period=5), "FedSkip-5"),
        (Scaffold(period=5), "SCAFFOLD+skip-5"),
        (FedProx(mu=0.25), "FedProx(mu=0.25)"),
        (FedProx(mu=0.25, period=3), "FedProx+skip-3(mu=0.25)"),
        (Moon(temperature=1.0), "MOON(temperature=1.0)"),
    ],
)
def test_labels(method: Method, label: str) -> None:
    assert method.label == label


def test_a_period_in_quotes_is_the_same_period() -> None:
    assert FedAvg(period="5") == FedAvg(period=5)
    assert FedAvg(period="1").label == "FedAvg"
