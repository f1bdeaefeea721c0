"""Federations small enough to work out by hand, for the tests."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from fedskip.data import Arrays
from fedskip.engine import Engine, Task, Trained, Visits
from fedskip.engine.base import Measure, Route, route
from fedskip.engine.step import Uses
from fedskip.federation import Clients, Outcome, Run, Server
from fedskip.measures import accuracy, cross_entropy
from fedskip.methods import FedAdam, FedAvg, FedAvgM, FedDyn, FedNova, FedProx, Method, Moon, Scaffold
from fedskip.spec import Local
from fedskip.stack import Layout

ALL_TERMS = Uses(pull=True, linear=True)
CPU = torch.device("cpu")

# every method, with hyper-parameters that make themselves felt within a round or two
METHODS: list[Method] = [
    FedAvg(),
    FedProx(mu=0.5),
    Scaffold(),
    Scaffold(init="random"),
    Moon(mu=2.0),
    FedNova(),
    FedDyn(alpha=0.3),
    FedAvgM(),
    FedAdam(),
]


def named(methods: Sequence[Method]) -> list[str]:
    return [method.label for method in methods]


def make_task(
    module: nn.Module,
    samples: Arrays,
    local: Local,
    *,
    loss: Measure = cross_entropy,
    dtype: torch.dtype = torch.float64,
) -> Task:
    module = module.to(dtype)
    return Task(module, Layout.of(module), loss, accuracy, samples.to(CPU, dtype), local)


def make_run(
    task: Task,
    clients: Sequence[np.ndarray],
    method: Method,
    *,
    slots: int,
    rounds: int = 10,
    seed: int = 0,
    policy: str = "uniform",
    fresh: Tensor | None = None,
    look_every: int = 1,
    keep_slots: bool = False,
) -> Run:
    """A run whose client i owns the pool indices `clients[i]`."""
    x = task.layout.pack(task.module)
    sizes = np.array([len(indices) for indices in clients])

    @functools.cache
    def routes(key: int, client: int, round: int) -> Route:
        return route(key, clients[client], task.local, round, rounds)

    server = Server(
        method, x, task.layout, clients=len(clients), slots=slots, seed=seed, policy=policy,
        fresh=lambda: x if fresh is None else fresh,
    )  # fmt: skip
    both = Clients(method, task.layout, sizes, routes, x)
    return Run(server, both, look_every=look_every, keep_slots=keep_slots)


@dataclass
class Together:
    """Runs that train side by side up to a round; collects what each has to evaluate."""

    runs: Sequence[Run]
    until: int
    outcomes: list[list[Outcome]] = field(init=False)

    def __post_init__(self) -> None:
        self.outcomes = [[] for _ in self.runs]
        self.owner: dict[Visits, int] = {}

    def ready(self) -> list[Visits]:
        found = []
        for i, run in enumerate(self.runs):
            for visits in run.ready(self.until):
                self.owner[visits] = i
                found.append(visits)
        return found

    def done(self, visits: Visits, ks: list[int], trained: Trained) -> None:
        i = self.owner[visits]
        outcome = self.runs[i].done(visits, ks, trained)
        if outcome is not None:
            self.outcomes[i].append(outcome)


def train_together(engine: Engine, runs: Sequence[Run], until: int) -> list[list[Outcome]]:
    work = Together(runs, until)
    engine.run(work)
    return work.outcomes


def train(engine: Engine, run: Run, until: int) -> list[Outcome]:
    return train_together(engine, [run], until)[0]
