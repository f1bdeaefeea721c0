"""How good models are: metrics and the loss on a set of samples, for many models at once."""

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_leaves

from fedskip.engine.arithmetic import spread, torch_threads
from fedskip.engine.task import Task
from fedskip.models.forms import functional
from fedskip.models.metrics import Metric, per_sample

CHUNK = {"cpu": 2500, "cuda": 1000}  # samples of a forward pass of one model, at most
LEAST = 25  # samples, at least
ACTIVATION = 4 << 20  # bytes of an activation, which a CPU is to find in its caches
HELD = 1 << 28  # bytes of outputs that metrics of the whole test set wait for; at least one model's
STACKED_CHUNK = {"cpu": 65_536, "cuda": 16_384}  # samples times models of a stacked forward pass


@dataclass(frozen=True)
class Scores:
    """Of each model, (m,); NaN where a metric is undefined."""

    metric: np.ndarray  # the headline
    loss: np.ndarray
    by_owner: np.ndarray | None = None  # (m, owners) the headline; NaN for one without samples
    others: tuple[np.ndarray, ...] = ()  # the further metrics, where they are asked for


class Evaluator:
    """Evaluates models, one by one on `workers` threads, or stacked as the stacked engine trains them."""

    def __init__(
        self, task: Task, *, stacked: bool = False, workers: int = 1, threads: int = 1
    ) -> None:
        self.task, self.stacked, self.workers, self.threads = task, stacked, workers, threads
        self._own = threading.local()
        self._sizes: tuple[int, int] | None = None  # see `_bytes`
        self._module = functional(task.module).eval() if stacked else task.module

    def __call__(
        self,
        models: Tensor,
        index: np.ndarray,
        owner: np.ndarray | None = None,
        *,
        further: bool = False,
    ) -> Scores:
        """Score models on some samples.

        Args:
            models: (m, P).
            index: which samples, (n,).
            owner: the owner of each of them, (n,), to have scores by owner, too.
            further: whether to score by all metrics of the task, not by the first alone.
        """
        where = torch.as_tensor(index, device=models.device)
        metrics = self.task.metrics if further else self.task.metrics[:1]
        if not any(metric.whole for metric in metrics):
            return self._scores(models, where, owner, metrics)
        fit = max(1, HELD // max(1, len(where) * self._bytes(where)[1]))
        parts = [self._scores(part, where, owner, metrics) for part in models.split(fit)]
        return Scores(
            np.concatenate([part.metric for part in parts]), np.concatenate([part.loss for part in parts]),
            None if owner is None else np.concatenate([part.by_owner for part in parts]),
            tuple(map(np.concatenate, zip(*(part.others for part in parts), strict=True))),
        )  # fmt: skip

    def _scores(
        self, models: Tensor, index: Tensor, owner: np.ndarray | None, metrics: Sequence[Metric]
    ) -> Scores:
        """What `__call__` gives, of models whose outputs may be held together."""
        with torch.no_grad(), self.task.arithmetic.kernels():
            evaluate = self._stacked if self.stacked else self._one_by_one
            *measured, loss, outputs = evaluate(models, index, metrics)
        each = iter(measured)  # what is known of each sample, metric by metric
        scores = [
            self._whole(m, outputs, index, owner) if m.whole else _mean(m, next(each), owner)
            for m in metrics
        ]
        (headline, by_owner), *others = scores
        return Scores(
            headline, loss.mean(1).cpu().numpy(), by_owner, tuple(score for score, _ in others)
        )

    def _whole(
        self, metric: Metric, outputs: Tensor, index: Tensor, owner: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """A metric of all outputs (m, n, ...) of each model, and of those of each owner."""
        targets = torch.cat([self._inputs(part)[1].cpu() for part in index.split(CHUNK["cpu"])])
        with torch.no_grad(), torch_threads(1):  # so that sums come out alike
            scores = np.array([metric.of_all(output, targets) for output in outputs])
            if owner is None:
                return scores, None
            by_owner = np.full((len(outputs), owner.max() + 1), np.nan)
            for one in np.unique(owner):
                mine = torch.from_numpy(np.flatnonzero(owner == one))
                each = (metric.of_all(output[mine], targets[mine]) for output in outputs)
                by_owner[:, one] = [*each]
        return scores, by_owner

    def _measure(
        self, metrics: Sequence[Metric], output: Tensor, targets: Tensor
    ) -> tuple[Tensor, ...]:
        """Of every sample: the metrics that it has, and its loss."""
        each = [metric.of_each(output, targets).double() for metric in metrics if not metric.whole]
        return (*each, per_sample(self.task.loss(output, targets), len(targets)).double())

    def _inputs(self, index: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = self.task.samples.take(index)
        return (self.task.test_transform(inputs) if self.task.test_transform else inputs), targets

    def _stacked(self, models: Tensor, index: Tensor, metrics: Sequence[Metric]) -> list[Tensor]:
        """What `_measure` gives, (m, n) each, and the outputs on the host, (m, n, ...), if needed."""
        views, compute = self.task.layout.views(models), self.task.arithmetic.compute
        keep, measure = any(metric.whole for metric in metrics), partial(self._measure, metrics)
        parts = []
        with torch_threads(self.threads):
            for part in index.split(max(1, STACKED_CHUNK[models.device.type] // len(models))):
                inputs, targets = self._inputs(part)
                output = compute(
                    lambda x: vmap(lambda one: functional_call(self._module, one, (x,)))(views),
                    inputs,
                )
                held = output.cpu() if keep else output.new_empty(len(models), 0)
                parts.append((*vmap(measure, in_dims=(0, None))(output, targets), held))
        return [torch.cat(column, 1) for column in zip(*parts, strict=True)]

    def _one_by_one(self, models: Tensor, index: Tensor, metrics: Sequence[Metric]) -> list[Tensor]:
        """The same, model by model."""
        chunk, keep = self._chunk(models, index), any(metric.whole for metric in metrics)
        jobs = [(m, part) for m in range(len(models)) for part in index.split(chunk)]

        def score(job: tuple[int, Tensor]) -> tuple[Tensor, ...]:
            m, part = job
            with torch.no_grad():
                inputs, targets = self._inputs(part)
                output = self.task.arithmetic.compute(self._loaded(models, m), inputs)
                held = output.cpu() if keep else output.new_empty(len(targets))
                return (*self._measure(metrics, output, targets), held)

        with spread(self.workers) as each:
            scored = list(each(score, jobs))
        return [
            torch.cat(column).unflatten(0, (len(models), -1))
            for column in zip(*scored, strict=True)
        ]

    def _bytes(self, index: Tensor) -> tuple[int, int]:
        """Of one sample: bytes of the largest activation, and of what the model gives."""
        if self._sizes is None:
            module, sizes = copy.deepcopy(self.task.module).eval(), [1]

            def note(_: object, __: object, output: Any) -> None:
                sizes.extend(t.nbytes for t in tree_leaves(output) if isinstance(t, Tensor))

            for part in module.modules():
                part.register_forward_hook(note)
            with torch.no_grad():
                output = module(self._inputs(index[:1])[0])
            self._sizes = max(sizes), output.nbytes
        return self._sizes

    def _chunk(self, models: Tensor, index: Tensor) -> int:
        most = CHUNK[models.device.type]
        if models.device.type != "cpu" or not len(index):
            return most
        return max(LEAST, min(most, ACTIVATION // self._bytes(index)[0]))

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


def _mean(
    metric: Metric, each: Tensor, owner: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The mean over samples (m, n) of each model, and over those of each owner."""
    mean, by_owner = each.mean(1).cpu().numpy(), None
    if owner is not None:
        sums = np.stack([np.bincount(owner, weights=row) for row in each.cpu().numpy()])
        with np.errstate(invalid="ignore"):
            by_owner = sums / np.bincount(owner)
    if metric.after is not None:
        after = np.vectorize(metric.after, otypes=[float])
        mean, by_owner = after(mean), None if by_owner is None else after(by_owner)
    return mean, by_owner
