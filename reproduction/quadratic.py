"""A strongly convex federation whose constants are known: clients with quadratic losses.

    F_k(w) = mean over samples z of |R_k (w - z)|^2 / 2,    grad F_k(w) = A_k (w - b_k)

A_k = R_k' R_k is the client's Hessian and b_k the mean of its samples. L, mu, the optimum w*, the
heterogeneity Gamma and the variances sigma_k^2 follow. Training goes through fedskip's own server, clients
and stacked engine.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedskip.data.dataset import Arrays
from fedskip.engine import Local, Plan, Stacked, Task
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.local import Decay, Route, route
from fedskip.federation import Clients, Run, Server, train
from fedskip.methods import FedAvg
from fedskip.models.metrics import metrics
from fedskip.models.vector import Layout
from fedskip.rng import stream


class Residual(nn.Module):
    """R w, for inputs R (B, D, D)."""

    def __init__(self, w: np.ndarray) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(w))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def half_square(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared distance of each sample, (B,)."""
    return (output - target).square().sum(1) / 2


@dataclass(frozen=True, eq=False)
class Problem:
    """N clients: their Hessians, their samples, and where training starts."""

    hessians: np.ndarray  # (N, D, D) A_k
    samples: Sequence[np.ndarray]  # (n_k, D) each
    start: np.ndarray  # (D,) w0

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        return np.array([len(z) for z in self.samples])

    @functools.cached_property
    def minima(self) -> np.ndarray:
        """b_k, the minimum of each client, (N, D)."""
        return np.stack([z.mean(0) for z in self.samples])

    @functools.cached_property
    def curvature(self) -> tuple[float, float]:
        """mu and L over all clients."""
        values = np.linalg.eigvalsh(self.hessians)
        return float(values.min()), float(values.max())

    @functools.cached_property
    def equal(self) -> np.ndarray:
        """p_k, the same for all clients, (N,)."""
        return np.full(len(self.sizes), 1 / len(self.sizes))

    def optimum(self, p: np.ndarray) -> np.ndarray:
        """w*, the minimum of sum_k p_k F_k, (D,)."""
        A, b = self.hessians, self.minima
        return np.linalg.solve(np.einsum("k,kij->ij", p, A), np.einsum("k,kij,kj->i", p, A, b))

    def heterogeneity(self, p: np.ndarray) -> float:
        """Gamma = F* - sum_k p_k F_k*."""
        away = self.optimum(p) - self.minima
        return float(np.einsum("k,ki,kij,kj->", p, away, self.hessians, away) / 2)

    def variances(self, batch: int) -> np.ndarray:
        """sigma_k^2 of a batch drawn without replacement, (N,): the noise does not depend on w."""
        found = []
        for A, z, n in zip(self.hessians, self.samples, self.sizes, strict=True):
            squares = np.square((z - z.mean(0)) @ A).sum() / max(n - 1, 1)
            found.append(squares / batch * (1 - batch / n))
        return np.array(found)

    def gradients(self, w: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """grad F_c(w) for w (..., D) and clients (...)."""
        away = w - self.minima[clients]
        return np.asarray(np.einsum("...ij,...j->...i", self.hessians[clients], away))

    # --- as a federation ----------------------------------------------------------------------------

    def task(self, local: Local) -> Task:
        roots = [np.linalg.cholesky(A).T for A in self.hessians]  # A = R' R
        pairs = list(zip(roots, self.samples, strict=True))
        inputs = np.concatenate([np.repeat(R[None], len(z), 0) for R, z in pairs])
        targets = np.concatenate([z @ R.T for R, z in pairs])
        module = Residual(self.start)
        pool = Arrays(torch.from_numpy(inputs), torch.from_numpy(targets))
        layout, fp64 = Layout.of(module), Arithmetic("fp64")
        return Task(module, layout, half_square, metrics(half_square), pool, local, arithmetic=fp64)

    def run(
        self, task: Task, period: int, seed: int, policy: str = "uniform", rounds: int = 1
    ) -> Run:
        """FedSkip with full participation; a period of 1 is FedAvg."""
        owned = np.split(np.arange(self.sizes.sum()), self.sizes.cumsum()[:-1])

        def routes(key: int, client: int, round: int) -> Route:
            return route(key, owned[client], task.local, round, rounds)

        method, x, N = FedAvg(period=period), task.layout.pack(task.module), len(self.sizes)
        server = Server(method, x, task.layout, clients=N, slots=N, seed=seed, policy=policy)
        return Run(server, Clients(method, task.layout, self.sizes, routes, x), keep_slots=True)


@dataclass(frozen=True)
class Round:
    """One round of R runs side by side, all with K slots."""

    round: int  # counted from 1
    clients: np.ndarray  # (R, K) whom the slots visited
    before: np.ndarray  # (R, K, D) the slots as they set out
    after: np.ndarray  # (R, K, D) as they came back, before any merge


def watch(task: Task, runs: Sequence[Run], rounds: int) -> Iterator[Round]:
    """Train runs side by side and look at their slots after every round, skipped or not."""
    engine = Stacked(task, Plan(sizes=[sum(run.server.slots for run in runs)], compile=False))
    for round in range(1, rounds + 1):
        clients = np.stack([run.server.cohort(round - 1) for run in runs])
        before = torch.stack([run.server.w for run in runs]).numpy()
        merged = {run: outcome.slots for run, outcome in train(engine, runs, round)}
        after = [slots if (slots := merged.get(run)) is not None else run.server.w for run in runs]
        yield Round(round, clients, before, torch.stack(after).numpy())


def rates(local: Local, steps: np.ndarray, rounds: int = 1) -> np.ndarray:
    """The learning rate after so many local steps, where a visit has `local.epochs` of them."""
    return local.lr * Decay.parse(local.decay).at(steps / local.epochs, rounds)


def constant_clients(
    hessians: np.ndarray, minima: np.ndarray, start: np.ndarray, sizes: Sequence[int] | None = None
) -> Problem:
    """Clients whose samples are all equal, so that gradients have no noise."""
    counts = sizes or [1] * len(minima)
    samples = [np.repeat(b[None], n, 0) for b, n in zip(minima, counts, strict=True)]
    return Problem(hessians, samples, start)


def random_hessians(clients: int, width: int, mu: float, L: float, *name: int | str) -> np.ndarray:
    """A Hessian for each client, with its own axes and with eigenvalues from mu to L, (N, D, D)."""
    draw = stream("problem", *name)
    axes = np.linalg.qr(draw.normal(size=(clients, width, width)))[0]
    values = np.exp(draw.uniform(np.log(mu), np.log(L), (clients, width)))
    values[:, 0], values[:, -1] = mu, L
    return np.asarray(np.einsum("kij,kj,klj->kil", axes, values, axes))
