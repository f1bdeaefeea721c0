"""What an engine is given and what it gives back.

An engine trains visits and knows no method: it sees rows of weights, the order of their batches and
the terms that bend their updates. It asks a `Work` for visits that may start and reports each as it
ends, so what happens between two visits is none of its business.
"""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskip.data.base import Samples, TestTransform, TrainTransform
from fedskip.engine.arithmetic import EXACT, Arithmetic
from fedskip.errors import InputError
from fedskip.measures import Measure
from fedskip.methods.base import Terms
from fedskip.rng import shuffles
from fedskip.schedule import Decay
from fedskip.spec import Local
from fedskip.stack import Layout


@dataclass(frozen=True)
class Task:
    """What is learned: a model, its loss, and the pool its batches come from."""

    module: nn.Module  # a template; engines train their own copies
    layout: Layout
    loss: Measure
    metric: Measure
    samples: Samples
    local: Local
    train_transform: TrainTransform | None = None
    test_transform: TestTransform | None = None
    arithmetic: Arithmetic = EXACT

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def short_batches(self) -> bool:
        """Whether a batch may hold fewer samples than `local.batch`."""
        return self.local.last_batch == "keep" or self.local.small_clients == "short"


@dataclass(frozen=True)
class Route:
    """One visit as a sequence of steps: which samples, at which rate."""

    batches: np.ndarray  # (steps, B) int64 pool indices; -1 fills up a short batch
    eta: np.ndarray  # (steps,) float64
    key: int  # the visit key: augmentation and dropout follow from it
    a: float  # the weight of a constant gradient in x - y; see `momentum_sum`

    @property
    def steps(self) -> int:
        return len(self.batches)


@dataclass(frozen=True, eq=False)
class Visits:
    """K visits of one run that start together; each is reported as it ends."""

    x: Tensor  # (K, P) the models as received
    terms: Terms
    routes: Sequence[Route]


@dataclass(frozen=True)
class Trained:
    """What some visits came to."""

    y: Tensor  # (k, P)
    loss: Tensor  # (k,) sum over the steps of the batch losses, the method's terms left out


class Work(Protocol):
    """A source of visits: what may start depends on what has been done."""

    def ready(self) -> list[Visits]:
        """The visits that may start now; each is handed out once."""
        ...

    def done(self, visits: Visits, ks: list[int], trained: Trained) -> None:
        """Visits number `ks` of `visits` have ended."""
        ...


class Stopwatch:
    """Seconds spent inside of it, also while someone is."""

    def __init__(self) -> None:
        self._total, self._since, self._inside = 0.0, 0.0, 0

    def __enter__(self) -> None:
        if not self._inside:
            self._since = time.monotonic()
        self._inside += 1

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if not self._inside:
            self._total += time.monotonic() - self._since

    @property
    def seconds(self) -> float:
        return self._total + (time.monotonic() - self._since if self._inside else 0.0)


class Engine(Protocol):
    @property
    def preparing(self) -> float:
        """Seconds spent so far on what is done only once, such as compiling."""
        ...

    def run(self, work: Work) -> None:
        """Train until no visit is ready and none is under way."""
        ...


def batches_per_epoch(size: int, local: Local) -> int:
    """How many batches an epoch over `size` samples has."""
    whole, rest = divmod(size, local.batch)
    keep = local.last_batch == "keep" or (whole == 0 and local.small_clients == "short")
    return whole + (rest > 0 and keep)


def steps_of(size: int, local: Local) -> int:
    """tau_i: the steps of a visit to a client of `size` samples."""
    steps = local.epochs * batches_per_epoch(size, local)
    return steps if local.max_steps is None else min(steps, local.max_steps)


def route(key: int, indices: np.ndarray, local: Local, round: int = 0, rounds: int = 1) -> Route:
    """The steps of one visit: every epoch is a fresh order of the client's samples, cut into batches."""
    per_epoch, steps = batches_per_epoch(len(indices), local), steps_of(len(indices), local)
    epochs = math.ceil(steps / per_epoch)
    orders = shuffles(indices, epochs, key)
    width = per_epoch * local.batch
    if width > len(indices):  # the last batch of an epoch is short
        orders = np.pad(orders, ((0, 0), (0, width - len(indices))), constant_values=-1)
    batches = orders[:, :width].reshape(-1, local.batch)[:steps]
    constant = local.decay == "constant"
    eta, a = _rates(steps, local, 0 if constant else round, 1 if constant else rounds)
    return Route(np.ascontiguousarray(batches, dtype=np.int64), eta, key, a)


@functools.lru_cache(maxsize=1024)
def _rates(steps: int, local: Local, round: int, rounds: int) -> tuple[np.ndarray, float]:
    """The learning rate of each step of a visit, and their `momentum_sum`."""
    eta = local.lr * Decay.parse(local.decay).at(round + np.arange(steps) / steps, rounds)
    return eta, momentum_sum(eta, local.momentum)


def momentum_sum(eta: np.ndarray, rho: float) -> float:
    """Sum over steps s of eta_s (1 - rho^(s+1)) / (1 - rho): the weight of a constant gradient in x - y.

    With a constant eta it is eta times FedNova's a_i.
    """
    s = np.arange(1, len(eta) + 1)
    return float((eta * (1 - rho**s) / (1 - rho)).sum())


def contrast_loss(z: Tensor, received: Tensor, previous: Tensor, temperature: Tensor | float) -> Tensor:
    """MOON's loss of each sample, (B,): -log softmax of (cos(z, received), cos(z, previous)) / T, at 0."""
    near = F.cosine_similarity(z, received, dim=-1)
    far = F.cosine_similarity(z, previous, dim=-1)
    return F.softplus((far - near) / temperature)


def per_sample(losses: Tensor, batch: int, field: str = "loss") -> Tensor:
    """The losses, once it is sure that there is one for each sample."""
    if not isinstance(losses, Tensor) or losses.shape != (batch,):
        raise InputError(
            field,
            f"must give one number per sample, a tensor of shape ({batch},)",
            tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__,
            "use reduction='none' and average over all but the first dimension",
        )
    return losses


def features_of(module: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """`module.features`, which gives (output, z) in one pass."""
    found = getattr(module, "features", None)
    if not callable(found):
        raise InputError(
            "model",
            "must have a method features(x) -> (output, z) for MOON",
            type(module).__name__,
            "add it, with z the representation to contrast (B, d)",
        )
    features: Callable[[Tensor], tuple[Tensor, Tensor]] = found
    return features


def draws(task: Task) -> bool:
    """Whether the module, in training, draws from torch's own generator rather than from its key."""
    module = copy.deepcopy(task.module).cpu().train()
    inputs, _ = task.samples.take(torch.arange(min(2, len(task.samples)), device=task.device))
    if task.train_transform is not None:
        inputs = task.train_transform(inputs, torch.arange(len(inputs), device=task.device))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        module(inputs.cpu())
        return not torch.equal(before, torch.get_rng_state())


@contextmanager
def spread(workers: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` over so many threads with one torch thread each, so that results do not depend on how many."""
    with torch_threads(1), ThreadPoolExecutor(workers, "fedskip", torch.set_num_threads, (1,)) as pool:
        yield pool.map if workers > 1 else map


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """So many torch threads inside, as before outside. Sums come out alike only for equal numbers."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Inside, streams, graphs and kernels are those of this device: torch takes the first GPU unless told."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
