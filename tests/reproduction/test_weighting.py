"""Fixed points with unequal clients: against all routes written out, and against training."""

import itertools

import numpy as np
import pytest

from reproduction import weighting
from reproduction.quadratic import Problem, constant_clients, random_hessians


@pytest.fixture(name="problem")
def make_problem() -> Problem:
    minima = np.array([[1.0, 0.0], [-1.0, 2.0], [0.0, 1.0]])
    return constant_clients(random_hessians(3, 2, 0.5, 4.0, "test"), minima, np.zeros(2), [1, 2, 5])


def merged(
    problem: Problem, x: np.ndarray, routes: tuple[tuple[int, ...], ...], lr: float
) -> np.ndarray:
    """FedSkip's model after a period: slot k visits routes[0][k], routes[1][k], ... for one step each."""
    slots, seen = np.stack([x] * 3), np.zeros(3)
    for cohort in routes:
        clients = np.array(cohort)
        slots = slots - lr * problem.gradients(slots, clients)
        seen += problem.sizes[clients]
    return seen / seen.sum() @ slots


@pytest.mark.parametrize("period", [1, 2, 3])
def test_it_is_fixed_in_the_mean_over_all_routes(problem: Problem, period: int) -> None:
    x = weighting.fixed_point(problem, 0.05, 1, period)
    orders = itertools.permutations(range(3))
    mean = np.mean(
        [merged(problem, x, r, 0.05) for r in itertools.product([*orders], repeat=period)], axis=0
    )
    assert mean == pytest.approx(x, abs=1e-12)


def test_limits(problem: Problem) -> None:
    weighted = problem.optimum(weighting.shares(problem))
    assert weighting.fixed_point(problem, 0.05, 1, 1) == pytest.approx(
        weighted
    )  # FedAvg with one step
    assert weighting.fixed_point(problem, 0.05, 5, 1) != pytest.approx(
        weighted, rel=1e-3
    )  # its own bias
    near = weighting.small_steps(problem, 4)
    assert weighting.fixed_point(problem, 1e-6, 1, 4) == pytest.approx(near, rel=1e-4)
    assert weighting.small_steps(problem, 10**9) == pytest.approx(
        problem.optimum(np.full(3, 1 / 3))
    )


def test_training_settles_there() -> None:
    table = weighting.check(periods=[1, 3], seeds=3, rounds=300)
    assert (table["error"] < 5 * table["error_se"] + 1e-2).all()
    one, three = table[table["steps"] == 1]["to_weighted"]
    assert one < 1e-3 < 0.5 < three
