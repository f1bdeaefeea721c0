"""The problem's constants, and what its runs do."""

import itertools

import numpy as np
import pytest
import torch

from fedskip.engine import Local
from reproduction.quadratic import Problem, constant_clients, random_hessians, rates, watch

LOCAL = Local(lr=0.1, momentum=0.0, weight_decay=0.0, batch=2, epochs=2)


@pytest.fixture(name="problem")
def make_problem() -> Problem:
    draw = np.random.default_rng(0)
    samples = [draw.normal(size=(3, 2)) + k for k in range(3)]
    return Problem(random_hessians(3, 2, 0.5, 4.0, "test"), samples, np.array([2.0, -1.0]))


def losses(problem: Problem, w: np.ndarray) -> np.ndarray:
    """F_k(w) as the task computes it, (N,)."""
    task = problem.task(LOCAL)
    inputs, targets = task.samples.take(torch.arange(problem.sizes.sum()))
    found = task.loss(inputs @ torch.from_numpy(w), targets).numpy()
    return np.array([part.mean() for part in np.split(found, problem.sizes.cumsum()[:-1])])


def test_constants(problem: Problem) -> None:
    assert problem.curvature == pytest.approx((0.5, 4.0))
    p = np.array([0.5, 0.3, 0.2])
    best = problem.optimum(p)
    gradients = problem.gradients(np.stack([best] * 3), np.arange(3))
    assert p @ gradients == pytest.approx(0, abs=1e-12)
    own = [losses(problem, problem.minima[k])[k] for k in range(3)]
    assert problem.heterogeneity(p) == pytest.approx(p @ losses(problem, best) - p @ own)


def test_gradients_are_those_of_the_loss(problem: Problem) -> None:
    w, h = np.array([0.3, -0.7]), 1e-6
    slopes = [
        (losses(problem, w + h * e) - losses(problem, w - h * e)) / (2 * h) for e in np.eye(2)
    ]
    found = problem.gradients(np.stack([w] * 3), np.arange(3))
    assert found == pytest.approx(np.stack(slopes, 1), rel=1e-6)


def test_variances_are_those_of_all_batches(problem: Problem) -> None:
    for k, z in enumerate(problem.samples):
        means = [z[list(batch)].mean(0) for batch in itertools.combinations(range(3), 2)]
        noise = [problem.hessians[k] @ (mean - z.mean(0)) for mean in means]
        assert problem.variances(2)[k] == pytest.approx(np.mean([n @ n for n in noise]))


def test_slots_are_seen_before_they_merge() -> None:
    """Two clients at +1 and -1, steps of rate 1/4, slots that change places; worked out by hand."""
    problem = constant_clients(np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]), np.zeros(1))
    task = problem.task(Local(lr=0.25, momentum=0.0, weight_decay=0.0, batch=1, epochs=1))
    runs = [problem.run(task, period, 0, "cyclic") for period in (1, 2)]
    first, second = watch(task, runs, 2)
    assert first.clients.tolist() == [[0, 1]] * 2
    assert first.after[..., 0].tolist() == [[0.25, -0.25]] * 2
    assert second.clients.tolist() == [[1, 0]] * 2
    assert second.before[..., 0].tolist() == [[0, 0], [0.25, -0.25]]
    assert second.after[..., 0].tolist() == [[-0.25, 0.25], [-0.0625, 0.0625]]


def test_rates_count_local_steps() -> None:
    local = Local(lr=1.0, epochs=4, decay="inverse(half=5)")  # 5 rounds are 20 steps
    assert rates(local, np.array([0, 20, 60])).tolist() == [1, 0.5, 0.25]
