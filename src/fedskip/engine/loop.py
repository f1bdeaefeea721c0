"""The readable truth: a plain module, plain SGD, one visit after another.

On a CPU the visits of a round are spread over `workers` threads with one torch thread each, so the
results do not depend on how many workers there are.
"""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim.sgd import sgd

from fedskip.engine.arithmetic import spread
from fedskip.engine.local import Route
from fedskip.engine.task import Job, Notify, Preparing, Task, Trained
from fedskip.methods.terms import Contrast, Terms
from fedskip.models.forms import Dropout, features_of, words
from fedskip.models.metrics import contrast_loss, per_sample
from fedskip.rng import fold, mix, torch_scope


class Loop:
    """The engine that trains visits one by one: all that wait, in every `advance`.

    `workers`: threads that share the visits of a round, on a CPU; results do not depend on it.
    """

    preparing = Preparing()

    def __init__(self, task: Task, workers: int = 1) -> None:
        self.task = task
        self.workers = 1 if task.draws else workers  # torch's one generator cannot be shared
        self._waiting: list[Job] = []
        self._map: Callable[..., Iterable[Any]] = map
        self._own = threading.local()

    @property
    def busy(self) -> bool:
        """Whether visits are under way, or wait."""
        return bool(self._waiting)

    @contextmanager
    def open(self) -> Iterator[None]:
        """A context in which torch's threads and kernels are the engine's."""
        # torch's choice of kernels is the process's, not a thread's: made before they start
        with self.task.arithmetic.kernels(), spread(self.workers) as self._map:
            yield

    def watch(self, notify: Notify) -> None:
        """Nothing is prepared here."""

    def join(self, jobs: Iterable[Job]) -> None:
        """Take jobs whose visits may start."""
        self._waiting += jobs

    def advance(self) -> Iterator[Trained]:
        """Train until visits end, and give those."""
        jobs, self._waiting = self._waiting, []
        visits = [(job, k) for job in jobs for k in range(len(job.routes))]
        ended = iter(list(self._map(lambda visit: self.visit(*visit), visits)))
        for job in jobs:
            y, loss = zip(*(next(ended) for _ in job.routes), strict=True)
            yield Trained(job, list(range(len(y))), torch.stack(y), torch.stack(loss))

    def visit(self, job: Job, k: int) -> tuple[Tensor, Tensor]:
        """Train visit number k: gives y (P,) and the sum of the batch losses."""
        if not hasattr(self._own, "trainer"):  # each worker has its own modules
            self._own.trainer = Trainer(self.task)
        keyed = torch_scope(job.routes[k].key, "module", device=self.task.device)
        with keyed if self.task.draws else nullcontext():
            y, loss = self._own.trainer.visit(job.x[k], job.terms.row(k), job.routes[k])
        return y, loss


class Trainer:
    """Trains one visit at a time, in a module of its own."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.module = copy.deepcopy(task.module).train()
        self.parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self.words = [self.module.get_buffer(name) for name in words(self.module)]
        # counters, say: not of the model that travels, so they begin every visit as they were made
        self.counters = [
            (part, name, buffer.clone())
            for part in self.module.modules() if not isinstance(part, Dropout)
            for name, buffer in part.named_buffers(recurse=False) if not buffer.is_floating_point()
        ]  # fmt: skip
        self.received = self.previous = self.module  # MOON's frozen models, made when first needed

    def visit(self, x: Tensor, terms: Terms, route: Route) -> tuple[Tensor, Tensor]:
        """Train from x: gives y (P,) and the sum of the batch losses."""
        layout, local = self.task.layout, self.task.local
        layout.load(self.module, x)
        for part, name, made in self.counters:
            setattr(part, name, made.clone())
        if terms.contrast is not None:
            self._freeze(x, terms.contrast)
        momenta: list[Tensor | None] = [None] * len(self.parameters)
        losses = []
        for eta, (inputs, targets) in zip(route.eta, self._batches(route, x.device), strict=True):
            self.module.zero_grad()
            loss, objective = self._losses(inputs, targets, terms)
            objective.backward()
            if local.clip is not None:
                clip_grad_norm_(self.parameters.values(), local.clip)
            self._bend(terms)
            self._step(eta, momenta)
            losses.append(loss.detach())
        return layout.pack(self.module), torch.stack(losses).sum()

    def _step(self, eta: float, momenta: list[Tensor | None]) -> None:
        """A step of torch.optim.SGD, by the function that it calls.

        The class would import torch's compiler, which takes a second or two. That matters where each visit
        has a process of its own, as at the sites of a federation.
        """
        local, parameters = self.task.local, list(self.parameters.values())
        gradients = {i: p.grad for i, p in enumerate(parameters) if p.grad is not None}
        which, kept = list(gradients), [momenta[i] for i in gradients]
        sparse = any(gradient.is_sparse for gradient in gradients.values())
        with torch.no_grad():
            sgd(
                [parameters[i] for i in which], list(gradients.values()), kept, sparse, lr=eta, dampening=0.0,
                momentum=local.momentum, weight_decay=local.weight_decay, nesterov=False, maximize=False,
            )  # fmt: skip
        for i, momentum in zip(which, kept, strict=True):
            momenta[i] = momentum

    def _batches(self, route: Route, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        task, key = self.task, fold(torch.tensor(route.key, device=device))
        for step, index in enumerate(torch.from_numpy(route.batches).to(device)):
            if task.local.short_batches:
                index = index[index >= 0]
            inputs, targets = task.samples.take(index)
            if self.words or task.train_transform is not None:
                word = mix(key, step)
                for buffer in self.words:
                    buffer.copy_(word)
                if task.train_transform is not None:
                    inputs = task.train_transform(
                        inputs, mix(word, torch.arange(len(index), device=device))
                    )
            yield inputs, targets

    def _losses(self, inputs: Tensor, targets: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
        """The mean loss of a batch, and what is differentiated: that plus the method's own part."""
        compute = self.task.arithmetic.compute
        if terms.objective is not None:
            own = terms.objective
            objective = compute(lambda x: own(self.module, x, targets, self.task.loss), inputs)
            return objective, objective
        if terms.contrast is None:
            output = compute(self.module, inputs)
            loss = per_sample(self.task.loss(output, targets), len(inputs)).mean()
            return loss, loss
        output, z = compute(features_of(self.module), inputs)
        loss = per_sample(self.task.loss(output, targets), len(inputs)).mean()
        with torch.no_grad():
            z_received = compute(features_of(self.received), inputs)[1]
            z_previous = compute(features_of(self.previous), inputs)[1]
        apart = contrast_loss(z, z_received, z_previous, terms.contrast.temperature).mean()
        return loss, loss + terms.contrast.weight[0] * apart

    def _bend(self, terms: Terms) -> None:
        """Add mu (y - anchor) + linear to the gradient, which is zero for what the loss does not use."""
        views = self.task.layout.views
        anchor = None if terms.anchor is None else views(terms.anchor)
        linear = None if terms.linear is None else views(terms.linear)
        for name, p in self.parameters.items():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            if terms.mu is not None and anchor is not None:
                p.grad += terms.mu[0] * (p.detach() - anchor[name])
            if linear is not None:
                p.grad += linear[name]

    def _freeze(self, x: Tensor, contrast: Contrast) -> None:
        if self.received is self.module:
            self.received = copy.deepcopy(self.task.module).eval().requires_grad_(False)
            self.previous = copy.deepcopy(self.received)
        self.task.layout.load(self.received, x)
        self.task.layout.load(self.previous, contrast.previous)
