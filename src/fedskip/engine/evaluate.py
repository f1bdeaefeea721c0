"""How good models are: the metric and the loss on a set of samples, for many models at once."""

import copy
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_leaves

from fedskip.engine.arithmetic import spread, torch_threads
from fedskip.engine.task import Task
from fedskip.models.forms import functional
from fedskip.models.measures import per_sample

CHUNK = {"cpu": 2500, "cuda": 1000}  # samples of a forward pass of one model, at most
LEAST, ACTIVATION = 25, 4 << 20  # samples; bytes of an activation, which a CPU is to find in its caches
STACKED_CHUNK = {"cpu": 65_536, "cuda": 16_384}  # samples times models of a stacked forward pass


@dataclass(frozen=True)
class Scores:
    """Means over the samples, one per model, (m,)."""

    metric: np.ndarray
    loss: np.ndarray
    by_owner: np.ndarray | None = None  # (m, owners) the metric; NaN for one without samples


class Evaluator:
    """Evaluates models one by one on `workers` threads, or stacked; the choice is the engine's."""

    def __init__(self, task: Task, *, stacked: bool, workers: int = 1, threads: int = 1) -> None:
        self.task, self.stacked, self.workers, self.threads = task, stacked, workers, threads
        self._own = threading.local()
        self._largest: int | None = None  # bytes of an activation of one sample
        self._module = functional(task.module).eval() if stacked else task.module

    def __call__(self, models: Tensor, index: np.ndarray, owner: np.ndarray | None = None) -> Scores:
        """Score models (m, P) on the pool samples `index` (n,), whose owners are `owner` (n,)."""
        where = torch.as_tensor(index, device=models.device)
        with torch.no_grad(), self.task.arithmetic.kernels():
            metric, loss = self._stacked(models, where) if self.stacked else self._one_by_one(models, where)
        by_owner = None
        if owner is not None:
            sums = np.stack([np.bincount(owner, weights=row) for row in metric.cpu().numpy()])
            with np.errstate(invalid="ignore"):
                by_owner = sums / np.bincount(owner)
        return Scores(metric.mean(1).cpu().numpy(), loss.mean(1).cpu().numpy(), by_owner)

    def _measure(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        n = len(targets)
        metric = per_sample(self.task.metric(output, targets), n, "metric")
        return metric.double(), per_sample(self.task.loss(output, targets), n).double()

    def _inputs(self, index: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = self.task.samples.take(index)
        return (self.task.test_transform(inputs) if self.task.test_transform else inputs), targets

    def _stacked(self, models: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        views, compute = self.task.layout.views(models), self.task.arithmetic.compute
        parts = []
        with torch_threads(self.threads):
            for part in index.split(max(1, STACKED_CHUNK[models.device.type] // len(models))):
                inputs, targets = self._inputs(part)
                output = compute(
                    lambda x: vmap(lambda one: functional_call(self._module, one, (x,)))(views), inputs
                )
                parts.append(vmap(self._measure, in_dims=(0, None))(output, targets))
        return torch.cat([m for m, _ in parts], 1), torch.cat([loss for _, loss in parts], 1)

    def _one_by_one(self, models: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        chunk = self._chunk(models, index)
        jobs = [(m, part) for m in range(len(models)) for part in index.split(chunk)]

        def score(job: tuple[int, Tensor]) -> tuple[Tensor, Tensor]:
            m, part = job
            with torch.no_grad():
                inputs, targets = self._inputs(part)
                output = self.task.arithmetic.compute(self._loaded(models, m), inputs)
                return self._measure(output, targets)

        with spread(self.workers) as each:
            scored = list(each(score, jobs))
        metric, loss = torch.cat([m for m, _ in scored]), torch.cat([loss for _, loss in scored])
        return metric.view(len(models), -1), loss.view(len(models), -1)

    def _chunk(self, models: Tensor, index: Tensor) -> int:
        most = CHUNK[models.device.type]
        if models.device.type != "cpu" or not len(index):
            return most
        if self._largest is None:
            module, sizes = copy.deepcopy(self.task.module).eval(), [1]

            def note(_: object, __: object, found: Any) -> None:
                sizes.extend(t.nbytes for t in tree_leaves(found) if isinstance(t, Tensor))

            for part in module.modules():
                part.register_forward_hook(note)
            module(self._inputs(index[:1])[0])
            self._largest = max(sizes)
        return max(LEAST, min(most, ACTIVATION // self._largest))

    def _loaded(self, models: Tensor, m: int) -> nn.Module:
        """This thread's own module, holding model m."""
        own = self._own
        if not hasattr(own, "module"):
            own.module = copy.deepcopy(self.task.module).eval()
        if getattr(own, "models", None) is not models or own.m != m:
            self.task.layout.load(own.module, models[m])
            own.models, own.m = models, m
        module: nn.Module = own.module
        return module
