"""What engines take and give: tasks, jobs, and trained visits.

An engine trains visits and knows no method: it sees rows of weights, the order of their batches and the
terms that bend their updates. It is passive: it takes jobs, trains until some visits end, and gives those
back. What happens between two visits is none of its business.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedskip.data.dataset import Samples, TestTransform, TrainTransform
from fedskip.engine.arithmetic import EXACT, Arithmetic
from fedskip.engine.local import Local, Route
from fedskip.errors import InputError, first_line
from fedskip.methods.terms import Terms
from fedskip.models.metrics import Measure, Metric
from fedskip.models.vector import Layout


@dataclass(frozen=True)
class Task:
    """What is learned: a model, its loss and metrics, the samples, and how a client trains."""

    module: nn.Module  # a template; engines train their own copies
    layout: Layout
    loss: Measure
    metrics: tuple[Metric, ...]  # what models are scored by; the first is the headline
    samples: Samples
    local: Local
    train_transform: TrainTransform | None = None
    test_transform: TestTransform | None = None
    arithmetic: Arithmetic = EXACT
    full_batches: bool = False  # whether every client is known to fill a batch

    @property
    def device(self) -> torch.device:
        """Where the module and the samples are."""
        return next(self.module.parameters()).device

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the module, in training, draws from torch's own generator rather than from its key."""
        inputs, _ = self.samples.take(torch.arange(min(2, len(self.samples)), device=self.device))
        if self.train_transform is not None:
            inputs = self.train_transform(inputs, torch.arange(len(inputs), device=self.device))
        module = copy.deepcopy(self.module).cpu().train()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            before = torch.get_rng_state()
            try:
                module(inputs.cpu())
            except Exception as error:  # a user's module may raise anything
                rule = f"cannot take samples of the shape {tuple(inputs.shape[1:])}"
                name, fix = type(module).__name__, f"it says: {first_line(error)}"
                raise InputError("model", rule, name, fix) from error
            return not torch.equal(before, torch.get_rng_state())

    def sample(self) -> Tensor:
        """A sample as the model takes it in a test, (1, ...)."""
        inputs, _ = self.samples.take(torch.zeros(1, dtype=torch.long, device=self.device))
        return inputs if self.test_transform is None else self.test_transform(inputs)


@dataclass(frozen=True, eq=False)
class Job:
    """K visits of one run that start together."""

    x: Tensor  # (K, P) the models as received
    terms: Terms
    routes: Sequence[Route]
    run: Any = None  # whose visits they are; an engine never looks at it
    orders: Any = None  # what the run's server has sent; neither at this


@dataclass(frozen=True)
class Trained:
    """Visits number `ks` of a job have ended."""

    job: Job
    ks: Sequence[int]
    y: Tensor  # (k, P)
    loss: Tensor  # (k,) sum over the steps of the batch losses, the method's terms left out

    @property
    def routes(self) -> list[Route]:
        return [self.job.routes[k] for k in self.ks]


@dataclass(frozen=True)
class Preparing:
    """What an engine does once for each number of rows, when that is first needed: compiles a step, say."""

    seconds: float = 0.0  # spent on it so far
    doing: str = ""  # "compiling", say, while it does
    begun: int = 0  # steps that are ready or under way
    most: int = 0  # steps that may be needed, as far as is known


Notify = Callable[[int], None]  # hears of steps that are prepared


class Engine(Protocol):
    """Trains jobs, inside `open`, where torch's threads and kernels are those of the engine."""

    @property
    def busy(self) -> bool: ...  # whether visits are under way or wait

    @property
    def preparing(self) -> Preparing: ...  # how far that is, at any time

    def watch(self, notify: Notify) -> None:
        """Call `notify` with its rows when the preparation of a step begins, and with 0 when it is ready."""

    def open(self) -> AbstractContextManager[object]: ...

    def join(self, jobs: Iterable[Job]) -> None:
        """Take jobs whose visits may start."""

    def advance(self) -> Iterator[Trained]:
        """Train until visits end, and give those."""
