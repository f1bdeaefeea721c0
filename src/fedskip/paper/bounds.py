"""The two sides of Theorem 1 and of its lemma 3: what is measured along training, and the bounds.

Printed, with T and tau counted in local steps, E of them in a round, and the period Delta:

    E|w_(T+1) - w*|^2            <= (32/mu) (w0 - w*) exp(-mu T / 2) + 36 C / (mu^2 T)
    sum_k p_k E|w_mean - w_k|^2  <= 4 Delta eta^2 E^2 G^2                                   (lemma 3)
    C                             = sum_k p_k^2 sigma_k^2 + 6 L Gamma + 8 Delta E^2 G^2

Corrected: Delta^2 where Delta is printed, and Stich's lemma with d = 4 L where d = 1 is printed. The first
term is printed as a vector; |w0 - w*|^2 is read in both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedskip.engine import Local
from fedskip.paper.problem import Problem, watch


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

    def recursion(self, eta: np.ndarray, corrected: bool) -> np.ndarray:
        """r_0, r_1, ... of the proof's own r <- (1 - eta mu) r + eta^2 C, whatever the rates."""
        r = [self.start]
        for rate in eta:
            r.append((1 - rate * self.mu) * r[-1] + rate**2 * self.C(corrected))
        return np.array(r)


@dataclass
class Track:
    """What was measured of one period, round after round; means over seeds."""

    distance: list[float] = field(default_factory=list)
    distance_se: list[float] = field(default_factory=list)  # standard errors
    divergence: list[float] = field(default_factory=list)
    divergence_se: list[float] = field(default_factory=list)
    G2: float = 0.0


def follow(
    problem: Problem, local: Local, periods: Sequence[int], seeds: int, rounds: int, policy: str = "uniform"
) -> dict[int, Track]:
    """Train every period with every seed, and measure after every round.

    G^2 is the largest second moment of a client's gradient, a mean over seeds. It is taken where a visit
    begins and where it ends.
    """
    task, best = problem.task(local), problem.optimum(equal(problem))
    variances = problem.variances(local.batch)
    runs = [problem.run(task, period, seed, policy, rounds) for period in periods for seed in range(seeds)]
    tracks = {period: Track() for period in periods}
    for seen in watch(task, runs, rounds):
        mean = seen.after.mean(1)
        away = np.square(mean - best).sum(-1)
        apart = np.square(seen.after - mean[:, None]).sum(-1).mean(1)
        order = np.argsort(seen.clients, axis=1)
        ends = [problem.gradients(w, seen.clients) for w in (seen.before, seen.after)]
        moments = np.maximum(*(np.square(g).sum(-1) for g in ends)) + variances[seen.clients]
        moments = np.take_along_axis(moments, order, 1)  # (R, N): by client
        for number, track in enumerate(tracks.values()):
            mine = slice(number * seeds, (number + 1) * seeds)
            for name, found in (("distance", away[mine]), ("divergence", apart[mine])):
                getattr(track, name).append(float(found.mean()))
                getattr(track, f"{name}_se").append(float(found.std(ddof=seeds > 1) / seeds**0.5))
            track.G2 = max(track.G2, float(moments[mine].mean(0).max()))
    return tracks


def constants(problem: Problem, local: Local, period: int, G2: float) -> Constants:
    p = equal(problem)
    mu, L = problem.curvature
    noise = float((p**2 * problem.variances(local.batch)).sum())
    start = float(np.square(problem.start - problem.optimum(p)).sum())
    return Constants(mu, L, noise, problem.heterogeneity(p), G2, start, period, local.epochs)


def equal(problem: Problem) -> np.ndarray:
    """p_k, the same for all."""
    return np.full(len(problem.sizes), 1 / len(problem.sizes))
