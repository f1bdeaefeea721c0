"""Federations small enough to work out by hand, for the tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from fedskip import federation, rng
from fedskip.data import Arrays
from fedskip.engine import Engine, Job, Local, Plan, Stacked, Task, Trained
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.task import Notify, Preparing
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
from fedskip.methods.base import State
from fedskip.models import build, key_dropout
from fedskip.models.metrics import Measure, cross_entropy

ALL_TERMS = Plan(pull=True, linear=True, compile=False)
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
    TrimmedMean(),
    Median(),
    NormBounded(factor=0.5),
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
    precision = "fp64" if dtype == torch.float64 else "fp32"
    return federation.make_task(module, samples, local, loss=loss, arithmetic=Arithmetic(precision))


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
    eval_every: int = 1,
    keep_slots: bool = False,
    guard: bool = False,
) -> Run:
    """A run whose client i owns the pool indices `clients[i]`."""
    return federation.make_run(
        task, clients, method, cohort=slots, seed=seed, rounds=rounds, cohort_policy=policy,
        fresh=None if fresh is None else lambda: fresh, eval_every=eval_every, keep_slots=keep_slots,
        guard=guard,
    )  # fmt: skip


def train_together(engine: Engine, runs: Sequence[Run], until: int) -> list[list[Outcome]]:
    """Train runs side by side up to a round; gives what each has to evaluate."""
    outcomes: dict[Run, list[Outcome]] = {run: [] for run in runs}
    for run, outcome in federation.train(engine, runs, until):
        outcomes[run].append(outcome)
    return list(outcomes.values())


def train(engine: Engine, run: Run, until: int) -> list[Outcome]:
    return train_together(engine, [run], until)[0]


# --- every model, small -------------------------------------------------------------------------------

SKIPPING: list[Method] = [FedAvg(period=2), Moon(mu=2.0, period=2), FedNova(period=2)]
CLIENTS = (4, 9, 6)  # 1, 2 and 1 steps of batch 4
LOCAL = Local(lr=0.1, batch=4, epochs=1, weight_decay=0.01)
SLOTS = 2

MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "linear": ({"inputs": 6, "classes": 3}, (6,)),
    "mlp": ({"inputs": 6, "classes": 3, "hidden": [5, 4]}, (2, 3)),
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
    task: Task,
    methods: Sequence[Method],
    sizes: Sequence[int] = CLIENTS,
    rounds: int = 2,
    slots: int = SLOTS,
) -> list[Run]:
    """Two slots take turns at three clients, so that in round 2 one client is met again, by another slot."""
    fresh = task.layout.pack(task.module) / 2
    return [
        make_run(
            task,
            clients_of(sizes),
            method,
            slots=slots,
            rounds=rounds,
            policy="cyclic",
            fresh=fresh,
        )
        for method in methods
    ]


def stacked_for(task: Task, runs: Sequence[Run], plan: Plan = ALL_TERMS, **changes: Any) -> Stacked:
    """One stack for all rows without a contrast, one for those with."""
    contrast = sum(run.server.slots for run in runs if isinstance(run.server.method, Moon))
    plain = sum(run.server.slots for run in runs) - contrast
    sizes = {"sizes": [plain], "contrast_sizes": [contrast] if contrast else []}
    return Stacked(task, replace(plan, **(sizes | changes)))


def first_job(run: Run) -> Job:
    """The visits of the first round."""
    [job] = run.ready(1)
    return job


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


SIZES = (6, 15, 3, 24, 9, 12)


def perceptron_task(local: Local | None = None) -> tuple[Task, list[np.ndarray]]:
    """Six clients of 3 to 24 samples."""
    draw, total = rng.stream("federation"), sum(SIZES)
    samples = Arrays(
        torch.from_numpy(draw.normal(size=(total, 4))), torch.from_numpy(draw.integers(0, 3, total))
    )
    with rng.torch_scope("federation"):
        module = build("perceptron", inputs=4, classes=3)
    task = make_task(module, samples, local or Local(lr=0.2, batch=3, epochs=1))
    return task, np.split(np.arange(total), np.cumsum(SIZES)[:-1])


class Nudge:
    """An engine that only adds a number to each model and reports visits in an order of its own."""

    preparing = Preparing()

    def __init__(self, backwards: bool = False) -> None:
        self.backwards = backwards
        self.under_way: list[tuple[Job, int]] = []

    def open(self) -> AbstractContextManager[None]:
        return nullcontext()

    def watch(self, notify: Notify) -> None: ...

    @property
    def busy(self) -> bool:
        return bool(self.under_way)

    def join(self, jobs: Iterable[Job]) -> None:
        self.under_way += [(job, k) for job in jobs for k in range(len(job.routes))]

    def advance(self) -> Iterator[Trained]:
        job, k = self.under_way.pop(-1 if self.backwards else 0)
        y = job.x[k : k + 1] + job.routes[k].key % 1000 / 1000
        yield Trained(job, [k], y, y.sum(1))


class Dropped(nn.Module):
    """Two dropouts, of elements and of channels, and a representation for MOON."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(1, 4, 3), nn.Linear(16, 3)
        self.channels, self.elements = nn.Dropout1d(0.4), nn.Dropout(0.5)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.elements(self.channels(self.one(x[:, None]).relu()).flatten(1))
        return self.two(z), z

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0]


def dropped(local: Local = LOCAL) -> Task:
    with rng.torch_scope("dropped"):
        module = key_dropout(Dropped())
    return make_task(module, pool((6,)), local)


class Normed(nn.Module):
    """A small net with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.norm(self.one(x)).relu()
        return self.two(z), z

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0]


def normed(local: Local = LOCAL, dtype: torch.dtype = torch.float64) -> Task:
    with rng.torch_scope("normed"):
        return make_task(Normed(), pool((6,)), local, dtype=dtype)


class Looks(nn.Linear):
    """Goes by its numbers, which a stack does not have."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if x.sum() > 0 else 1.0)


class Assigns(nn.Module):
    """To its buffer, where BatchNorm writes in place: in a stack it would be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        output: Tensor = self.linear(x - self.mean)
        return output


def inputs(name: str, *lead: int, steps: int = 7) -> Tensor:
    """A batch for the model; `lead` is (B,) or (K, B)."""
    if name == "lstm":
        return torch.randint(80, (*lead, steps))
    shape = {"perceptron": (60,), "cnn-femnist": (1, 28, 28)}.get(name, (3, 32, 32))
    return torch.randn(*lead, *shape, dtype=torch.float64)


def stacked(models: list[nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and float buffers of K models, each (K, ...)."""
    parameters = [dict(m.named_parameters()) for m in models]
    buffers = [dict(m.named_buffers()) for m in models]
    return (
        {n: torch.stack([p[n].detach() for p in parameters]) for n in parameters[0]},
        {
            n: torch.stack([b[n] for b in buffers])
            for n, b in buffers[0].items()
            if b.is_floating_point()
        },
    )
