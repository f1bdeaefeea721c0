"""Theorem 1 of the paper and its Lemma 3, checked by training: both sides of each bound, and counterexamples.

Printed, with T and tau counted in local steps, E of them in a round, and the period Delta:

    E|w_(T+1) - w*|^2            <= (32/mu) (w0 - w*) exp(-mu T / 2) + 36 C / (mu^2 T)
    sum_k p_k E|w_mean - w_k|^2  <= 4 Delta eta^2 E^2 G^2                                   (Lemma 3)
    C                             = sum_k p_k^2 sigma_k^2 + 6 L Gamma + 8 Delta E^2 G^2

Corrected: Delta^2 where Delta is printed, and Stich's lemma with d = 4 L where d = 1 is printed. The first
term is printed as a vector; |w0 - w*|^2 is read in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from fedskip.engine import Local
from fedskip.rng import stream
from reproduction.quadratic import Problem, constant_clients, random_hessians, rates, watch

PERIODS = (1, 3, 5, 10)
STEPS = 5  # E, local steps of a visit
POINTS = 30  # rounds of each period that `distance` holds


@dataclass(frozen=True)
class Constants:
    """What the bounds are made of, for one period."""

    mu: float
    L: float
    noise: float  # sum_k p_k^2 sigma_k^2
    heterogeneity: float  # Gamma
    G2: float
    start: float  # |w0 - w*|^2
    period: int
    steps: int  # E

    @classmethod
    def of(cls, problem: Problem, local: Local, period: int, G2: float) -> Constants:
        p, (mu, L) = problem.equal, problem.curvature
        noise = float((p**2 * problem.variances(local.batch)).sum())
        start = float(np.square(problem.start - problem.optimum(p)).sum())
        return cls(mu, L, noise, problem.heterogeneity(p), G2, start, period, local.epochs)

    def C(self, corrected: bool) -> float:
        factor = self.period**2 if corrected else self.period
        return self.noise + 6 * self.L * self.heterogeneity + 8 * factor * self.steps**2 * self.G2

    def bound(self, T: np.ndarray, corrected: bool) -> np.ndarray:
        """Of the squared distance after T + 1 steps."""
        d = 4 * self.L if corrected else 1.0
        first = 32 * d / self.mu * self.start * np.exp(-self.mu * T / (2 * d))
        return np.asarray(first + 36 * self.C(corrected) / (self.mu**2 * T))

    def lemma(self, eta: np.ndarray, corrected: bool) -> np.ndarray:
        """Of the slots' squared distance from their mean."""
        factor = self.period**2 if corrected else self.period
        return np.asarray(4 * factor * eta**2 * self.steps**2 * self.G2)

    def recursion(self, eta: np.ndarray) -> np.ndarray:
        """r_0, r_1, ... of the proof's own r <- (1 - eta mu) r + eta^2 C, whatever the rates."""
        r = [self.start]
        for rate in eta:
            r.append((1 - rate * self.mu) * r[-1] + rate**2 * self.C(False))
        return np.array(r)


@dataclass
class Track:
    """What was measured of one period, round after round; means over seeds with their standard errors."""

    distance: list[float] = field(default_factory=list)
    distance_se: list[float] = field(default_factory=list)
    divergence: list[float] = field(default_factory=list)
    divergence_se: list[float] = field(default_factory=list)
    G2: float = 0.0


def follow(
    problem: Problem, local: Local, periods: Sequence[int], seeds: int, rounds: int, policy: str = "uniform"
) -> dict[int, Track]:  # fmt: skip
    """Train every period with every seed, and measure after every round.

    G^2 is the largest second moment of a client's gradient, a mean over seeds, where a visit begins or ends.
    """
    task, best = problem.task(local), problem.optimum(problem.equal)
    variances = problem.variances(local.batch)
    pairs = [(period, seed) for period in periods for seed in range(seeds)]
    runs = [problem.run(task, period, seed, policy, rounds) for period, seed in pairs]
    tracks = {period: Track() for period in periods}
    for seen in watch(task, runs, rounds):
        mean = seen.after.mean(1)
        away = np.square(mean - best).sum(-1)
        apart = np.square(seen.after - mean[:, None]).sum(-1).mean(1)
        ends = [problem.gradients(w, seen.clients) for w in (seen.before, seen.after)]
        moments = np.maximum(*(np.square(g).sum(-1) for g in ends)) + variances[seen.clients]
        moments = np.take_along_axis(
            moments, np.argsort(seen.clients, axis=1), 1
        )  # (R, N): by client
        for number, track in enumerate(tracks.values()):
            mine = slice(number * seeds, (number + 1) * seeds)
            for name, found in (("distance", away[mine]), ("divergence", apart[mine])):
                getattr(track, name).append(float(found.mean()))
                getattr(track, f"{name}_se").append(float(found.std(ddof=seeds > 1) / seeds**0.5))
            track.G2 = max(track.G2, float(moments[mine].mean(0).max()))
    return tracks


# --- the bounds along training ----------------------------------------------------------------------


def ten_clients() -> Problem:
    """Ten equal clients, 5 dimensions, mu = 0.5 and L = 4; batches of 16 out of 31 samples have noise."""
    draw = stream("problem", "theorem")
    minima = draw.normal(size=(10, 5))
    samples = [b + draw.normal(size=(31, 5)) for b in minima]
    return Problem(random_hessians(10, 5, 0.5, 4.0, "theorem"), samples, np.full(5, 2.0))


def falling(problem: Problem, longest: int, steps: int = STEPS, batch: int = 16) -> Local:
    """Rates 2 / (mu (gamma + tau)): at most 1/(4L), and eta_tau <= 2 eta_(tau + Delta E)."""
    mu, L = problem.curvature
    gamma = max(8 * L / mu, longest * steps)
    lr, decay = 2 / (mu * gamma), f"inverse(half={gamma / steps})"
    # clients have fewer than two batches, so an epoch is one step, and every step draws a fresh batch
    return Local(lr=lr, momentum=0.0, weight_decay=0.0, batch=batch, epochs=steps, decay=decay)


def converging(
    problem: Problem, periods: Sequence[int], seeds: int, rounds: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Distance and divergence against their bounds, and the largest share of each bound that was reached."""
    local = falling(problem, max(periods))
    step = STEPS * np.arange(1, rounds + 1)
    eta, before = rates(local, step), rates(local, np.arange(step[-1]))
    lines, summary = [], []
    for period, track in follow(problem, local, periods, seeds, rounds).items():
        known = Constants.of(problem, local, period, track.G2)
        table = pd.DataFrame({
            "period": period, "round": step // STEPS, "step": step, "eta": eta,
            "distance": track.distance, "distance_se": track.distance_se,
            "printed_bound": known.bound(step - 1, False), "corrected_bound": known.bound(step - 1, True),
            "recursion": known.recursion(before)[step], "divergence": track.divergence,
            "printed_lemma": known.lemma(eta, False), "corrected_lemma": known.lemma(eta, True),
        })  # fmt: skip
        lines.append(table.iloc[_some(rounds, period)])
        facts = {"period": period, "seeds": seeds, "steps": int(step[-1]), "G2": track.G2,
                 "C_printed": known.C(False), "C_corrected": known.C(True),
                 "distance": track.distance[-1], "distance_se": track.distance_se[-1]}  # fmt: skip
        for name, measured, bound in (
            ("printed", "distance", "printed_bound"), ("corrected", "distance", "corrected_bound"),
            ("recursion", "distance", "recursion"), ("lemma_printed", "divergence", "printed_lemma"),
            ("lemma_corrected", "divergence", "corrected_lemma"),
        ):  # fmt: skip
            facts[f"share_{name}"] = float((table[measured] / table[bound]).max())
        summary.append(facts)
    return pd.concat(lines), pd.DataFrame(summary)


def _some(rounds: int, period: int) -> list[int]:
    """Indices of some rounds that end a period, evenly on a logarithmic scale."""
    if rounds < period:
        return []
    merges = np.unique(np.geomspace(1, rounds // period, POINTS).round().astype(int))
    return [int(merge * period - 1) for merge in merges]


# --- where the printed forms fail -------------------------------------------------------------------


def coherent(
    periods: Sequence[int], shuffles: int, clients: int = 40, lr: float = 0.002
) -> pd.DataFrame:
    """Lemma 3 where half of the clients pull one way and half the other, over one period.

    Routes: `fixed`, every slot stays with its client; `cyclic`, it moves on to the next; `uniform`, the
    paper's random shuffle. Rates: constant, or halved when the period ends, which the lemma allows.
    """
    ends = np.where(np.arange(clients) < clients // 2, 1.0, -1.0)[:, None]
    problem = constant_clients(np.ones((clients, 1, 1)), ends, np.zeros(1))
    rows = []
    for routes in ("fixed", "cyclic", "uniform"):
        for period in periods:
            for kind, decay in (
                ("constant", "constant"),
                ("halved", f"step(every={period}, factor=0.5)"),
            ):
                local = Local(
                    lr=lr, momentum=0.0, weight_decay=0.0, batch=1, epochs=STEPS, decay=decay
                )
                seeds = shuffles if routes == "uniform" else 1
                track = follow(problem, local, [period], seeds, period, routes)[period]
                known = Constants.of(problem, local, period, track.G2)
                eta, found = rates(local, np.array(STEPS * period)), track.divergence[-1]
                rows.append({
                    "routes": routes, "rates": kind, "period": period, "seeds": seeds,
                    "divergence": found, "divergence_se": track.divergence_se[-1],
                    "share_printed": found / known.lemma(eta, False).item(),
                    "share_corrected": found / known.lemma(eta, True).item(),
                })  # fmt: skip
    return pd.DataFrame(rows)


def slow_rates(periods: Sequence[int]) -> pd.DataFrame:
    """The distance of plain gradient descent, one client and one step a round, at constant allowed rates.

    `largest`: 1/(4L) with L/mu = 1600 Delta, which no allowed rate outruns. `tiny`: 1e-5 with L = mu.
    """
    cases = [("largest", period, 1600.0 * period, 1 / (6400.0 * period)) for period in periods]
    rows = []
    for name, period, L, lr in [*cases, ("tiny", 1, 1.0, 1e-5)]:
        problem = constant_clients(np.diag([1.0, L])[None], np.zeros((1, 2)), np.array([1.0, 0.0]))
        local = Local(lr=lr, momentum=0.0, weight_decay=0.0, batch=1, epochs=1)
        steps = 400 * period
        track = follow(problem, local, [period], 1, steps)[period]
        known, T = Constants.of(problem, local, period, track.G2), np.array(steps - 1)
        rows.append({
            "rates": name, "period": period, "L": L, "mu": 1.0, "eta": lr, "steps": steps,
            "distance": track.distance[-1], "printed_bound": known.bound(T, False).item(),
            "corrected_bound": known.bound(T, True).item(),
        })  # fmt: skip
    return pd.DataFrame(rows)


def check(
    periods: Sequence[int] = PERIODS, seeds: int = 20, rounds: int = 300, shuffles: int = 200
) -> dict[str, pd.DataFrame]:
    """All checks: `distance` and `summary` along training, `lemma` by routes, `rates` that are allowed."""
    distance, summary = converging(ten_clients(), periods, seeds, rounds)
    lemma, slow = coherent(periods, shuffles), slow_rates(periods)
    return {"distance": distance, "summary": summary, "lemma": lemma, "rates": slow}
