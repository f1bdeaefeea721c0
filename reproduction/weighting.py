"""Where FedSkip settles when clients differ in size: slots merge by samples seen, but visit all alike.

With full participation a slot's next client is uniform over all, whatever came before. A visit to client i is
an affine map B_i, and omega_i = n_i N / n. So a period of FedSkip is, in expectation, the affine map

    (1/Delta) sum_s  B^(Delta - s) B_omega B^(s - 1)        B = E_i B_i,   B_omega = E_i omega_i B_i

and the mean of the merged models settles at its fixed point. For small steps that is the minimum of
sum_i q_i F_i with q_i = (1/Delta) n_i / n + (1 - 1/Delta) / N: the longer the period, the less sizes count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.linalg import matrix_power, norm

from fedskip.engine import Local, Plan, Stacked
from fedskip.federation import train
from fedskip.rng import stream
from reproduction.quadratic import Problem, constant_clients, random_hessians
from reproduction.theorem import PERIODS

SIZES = (1, 1, 2, 2, 3, 4, 6, 9, 12, 20)  # samples of the clients
STEPS = (1, 5)  # E: with one local step FedAvg has no bias of its own
LR = 0.05


def check(periods: Sequence[int] = PERIODS, seeds: int = 10, rounds: int = 600) -> pd.DataFrame:
    """Train, and compare where it settles with the fixed point: a row for each number of steps and period."""
    problem, rows = unequal_clients(), []
    for steps in STEPS:
        settled = settle(problem, steps, periods, seeds, rounds)
        rows += [
            {"steps": steps, "period": period} | distances(problem, steps, period, settled[period])
            for period in periods
        ]
    return pd.DataFrame(rows)


def unequal_clients() -> Problem:
    """Ten clients of 1 to 20 samples, without noise; the larger, the further to one side."""
    minima = stream("problem", "weighting").normal(size=(10, 3)) + np.linspace(-1, 1, 10)[:, None]
    return constant_clients(
        random_hessians(10, 3, 0.5, 4.0, "weighting"), minima, np.zeros(3), SIZES
    )


def shares(problem: Problem) -> np.ndarray:
    """n_i / n, (N,)."""
    return np.asarray(problem.sizes / problem.sizes.sum())


def visits(problem: Problem, lr: float, steps: int) -> np.ndarray:
    """B_i of each client, (N, D+1, D+1): what a visit does to (w, 1)."""
    clients, width = problem.minima.shape
    one_step = np.tile(np.eye(width + 1), (clients, 1, 1))
    one_step[:, :width, :width] -= lr * problem.hessians
    one_step[:, :width, width] = lr * np.einsum("kij,kj->ki", problem.hessians, problem.minima)
    return matrix_power(one_step, steps)


def fixed_point(problem: Problem, lr: float, steps: int, period: int) -> np.ndarray:
    """Where the mean of the merged models settles, (D,)."""
    B = visits(problem, lr, steps)
    plain, weighted = B.mean(0), np.einsum("k,kij->ij", shares(problem), B)
    terms = [
        matrix_power(plain, period - s) @ weighted @ matrix_power(plain, s - 1)
        for s in range(1, period + 1)
    ]
    whole = np.mean(terms, axis=0)
    return np.linalg.solve(np.eye(len(whole) - 1) - whole[:-1, :-1], whole[:-1, -1])


def small_steps(problem: Problem, period: int) -> np.ndarray:
    """The fixed point in the limit of small steps, (D,)."""
    return problem.optimum(shares(problem) / period + (1 - 1 / period) / len(problem.sizes))


def settle(
    problem: Problem, steps: int, periods: Sequence[int], seeds: int, rounds: int
) -> dict[int, np.ndarray]:
    """The mean over the last two thirds of the merges of each seed, (seeds, D), by period."""
    local = Local(lr=LR, momentum=0.0, weight_decay=0.0, batch=1, epochs=steps, max_steps=steps)
    task = problem.task(local)
    runs = [problem.run(task, period, seed) for period in periods for seed in range(seeds)]
    merged: dict[object, list[np.ndarray]] = {run: [] for run in runs}
    engine = Stacked(task, Plan(sizes=[len(runs) * len(problem.sizes)], compile=False))
    for run, outcome in train(engine, runs, rounds):
        if outcome.round > rounds / 3 and outcome.evaluated is not None:
            merged[run].append(outcome.evaluated.numpy())
    means = np.array([np.mean(found, axis=0) for found in merged.values()])
    return dict(zip(periods, means.reshape(len(periods), seeds, -1), strict=True))


def distances(problem: Problem, steps: int, period: int, settled: np.ndarray) -> dict[str, float]:
    """Distances of what was trained, and of the fixed point, from the two optima."""
    weighted = problem.optimum(shares(problem))
    uniform = problem.optimum(np.full(len(problem.sizes), 1 / len(problem.sizes)))
    exact, found = fixed_point(problem, LR, steps, period), settled.mean(0)
    return {
        "to_weighted": float(norm(found - weighted)), "to_weighted_exact": float(norm(exact - weighted)),
        "to_weighted_small_steps": float(norm(small_steps(problem, period) - weighted)),
        "to_uniform_exact": float(norm(exact - uniform)), "error": float(norm(found - exact)),
        "error_se": float(np.sqrt(settled.var(0, ddof=len(settled) > 1).sum() / len(settled))),
    }  # fmt: skip
