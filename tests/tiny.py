"""Federations small enough to work out by hand, for the tests."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from fedskip import rng
from fedskip.data import Arrays
from fedskip.engine import Engine, Stacked, Task, Trained, Visits
from fedskip.engine.base import Measure, Route, route
from fedskip.engine.step import Uses
from fedskip.federation import Clients, Outcome, Run, Server
from fedskip.measures import accuracy, cross_entropy
from fedskip.methods import FedAdam, FedAvg, FedAvgM, FedDyn, FedNova, FedProx, Method, Moon, Scaffold
from fedskip.methods.base import State
from fedskip.models import build
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


# --- every model, small -------------------------------------------------------------------------------

SKIPPING: list[Method] = [FedAvg(period=2), Moon(mu=2.0, period=2), FedNova(period=2)]
CLIENTS = (4, 9, 6)  # 1, 2 and 1 steps of batch 4
LOCAL = Local(lr=0.1, batch=4, epochs=1, weight_decay=0.01)
SLOTS = 2

MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "perceptron": ({"inputs": 6, "classes": 3}, (6,)),
    "cnn": ({"side": 16, "classes": 3}, (3, 16, 16)),
    "cnn without head": ({"side": 16, "classes": 3, "head": False}, (3, 16, 16)),
    "cnn-femnist": ({"classes": 3}, (1, 28, 28)),
    "resnet50": ({"width": 4, "blocks": (1, 1), "classes": 3}, (3, 8, 8)),
    "lstm": ({"hidden": 5, "embedding": 3, "classes": 3}, (3,)),
}


def pool(shape: tuple[int, ...], tokens: bool = False, total: int = sum(CLIENTS)) -> Arrays:
    draw = rng.stream("engines")
    x = draw.integers(0, 80, (total, *shape)) if tokens else draw.normal(size=(total, *shape))
    return Arrays(torch.from_numpy(x), torch.from_numpy(draw.integers(0, 3, total)))


def make_module(name: str) -> nn.Module:
    with rng.torch_scope("engines"):
        return build(name.split()[0], **MODELS[name][0])


def task_of(name: str, local: Local = LOCAL, dtype: torch.dtype = torch.float64) -> Task:
    return make_task(make_module(name), pool(MODELS[name][1], name == "lstm"), local, dtype=dtype)


def clients_of(sizes: Sequence[int] = CLIENTS) -> list[np.ndarray]:
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def runs_of(
    task: Task, methods: Sequence[Method], sizes: Sequence[int] = CLIENTS, rounds: int = 2, slots: int = SLOTS
) -> list[Run]:
    """Two slots take turns at three clients, so that in round 2 one client is met again, by another slot."""
    fresh = task.layout.pack(task.module) / 2
    return [
        make_run(task, clients_of(sizes), method, slots=slots, rounds=rounds, policy="cyclic", fresh=fresh)
        for method in methods
    ]


def stacked_for(task: Task, runs: Sequence[Run], uses: Uses = ALL_TERMS, compile: bool = False) -> Stacked:
    """One table for all rows without a contrast, one for those with."""
    contrast = sum(run.server.slots for run in runs if isinstance(run.server.method, Moon))
    return Stacked(
        task, [sum(run.server.slots for run in runs) - contrast], [contrast], uses=uses, compile=compile
    )


def state_of(run: Run) -> State:
    tensors, _ = run.save()
    return {name: t for name, t in tensors.items() if t.numel()}


def assert_agree(one: Sequence[Run], other: Sequence[Run], rtol: float, atol: float) -> None:
    for a, b in zip(one, other, strict=True):
        found, expected = state_of(a), state_of(b)
        assert found.keys() == expected.keys()
        for name, t in found.items():
            label = f"{a.server.method.label}: {name}"
            torch.testing.assert_close(
                t, expected[name], rtol=rtol, atol=atol, msg=lambda m, at=label: f"{at}\n{m}"
            )


def kept_by_torch() -> int:
    """How many compiled steps torch's cache on disk has given or taken so far, in this process."""
    return counters["inductor"]["fxgraph_cache_hit"] + counters["inductor"]["fxgraph_cache_miss"]
