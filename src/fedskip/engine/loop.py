"""The readable truth: a plain module, plain SGD, one visit after another.

On a CPU the visits of a round are spread over `workers` threads with one torch thread each, so the
results do not depend on how many workers there are.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from fedskip.engine.base import Route, Task, Trained, Visits, Work, contrast_loss, features, per_sample, torch_threads
from fedskip.methods.base import Terms
from fedskip.models.dropout import words
from fedskip.rng import fold, mix


class Loop:
    """Trains visits one by one."""

    def __init__(self, task: Task, workers: int = 1) -> None:
        self.task, self.workers = task, workers
        self._own = threading.local()  # each worker has its own modules

    def run(self, work: Work) -> None:
        with torch_threads(1), ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            spread = pool.map if self.workers > 1 else map
            while ready := work.ready():
                jobs = [(visits, k) for visits in ready for k in range(len(visits.routes))]
                results = iter(list(spread(lambda job: self._visit(*job), jobs)))
                for visits in ready:
                    y, loss = zip(*(next(results) for _ in visits.routes), strict=True)
                    work.done(visits, list(range(len(y))), Trained(torch.stack(y), torch.stack(loss)))

    def _visit(self, visits: Visits, k: int) -> tuple[Tensor, Tensor]:
        """Train slot k: x -> y, and the sum of its batch losses."""
        x, terms, route, local = visits.x[k], row(visits.terms, k), visits.routes[k], self.task.local
        trainer = self._trainer()
        module, layout = trainer.module, self.task.layout
        layout.load(module, x)
        if terms.contrast is not None:
            layout.load(trainer.received, x)
            layout.load(trainer.previous, terms.contrast.previous)
        parameters = [p for p in module.parameters() if p.requires_grad]
        bends = trainer.bends(terms)
        optimiser = torch.optim.SGD(
            parameters, lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay
        )
        total = x.new_zeros(())
        for step, (inputs, targets) in enumerate(self._batches(route, x.device)):
            trainer.set_words(route.key, step)
            optimiser.param_groups[0]["lr"] = route.eta[step]
            optimiser.zero_grad()
            loss, objective = trainer.losses(inputs, targets, terms)
            objective.backward()
            if local.clip is not None:
                torch.nn.utils.clip_grad_norm_(parameters, local.clip)
            for p, mu, anchor, linear in bends:
                assert p.grad is not None
                if mu is not None:
                    p.grad.add_(mu * (p.detach() - anchor))
                if linear is not None:
                    p.grad.add_(linear)
            optimiser.step()
            total += loss.detach()
        return layout.pack(module), total

    def _batches(self, route: Route, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        task = self.task
        batches = torch.from_numpy(route.batches).to(device)
        word = fold(torch.tensor(route.key, device=device))
        for step, index in enumerate(batches):
            if task.short_batches:
                index = index[index >= 0]
            inputs, targets = task.samples.take(index)
            if task.train_transform is not None:
                place = torch.arange(len(index), device=device)
                inputs = task.train_transform(inputs, mix(mix(word, step), place))
            yield inputs, targets

    def _trainer(self) -> _Trainer:
        if not hasattr(self._own, "trainer"):
            self._own.trainer = _Trainer(self.task)
        trainer: _Trainer = self._own.trainer
        return trainer


class _Trainer:
    """A worker's own modules: the one in training, and MOON's two frozen ones, made when first needed."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.module = copy.deepcopy(task.module).train()
        self.words = [self.module.get_buffer(name) for name in words(self.module)]
        self._frozen: dict[str, nn.Module] = {}

    @property
    def received(self) -> nn.Module:
        return self._eval("received")

    @property
    def previous(self) -> nn.Module:
        return self._eval("previous")

    def _eval(self, name: str) -> nn.Module:
        if name not in self._frozen:
            self._frozen[name] = copy.deepcopy(self.task.module).eval().requires_grad_(False)
        return self._frozen[name]

    def set_words(self, key: int, step: int) -> None:
        for word in self.words:
            word.copy_(mix(fold(torch.tensor(key)), step))

    def losses(self, inputs: Tensor, targets: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
        """The mean loss of a batch, and what is differentiated: the same plus the method's own loss."""
        if terms.objective is not None:
            objective = terms.objective(self.module, inputs, targets, self.task.loss)
            return objective, objective
        if terms.contrast is None:
            loss = per_sample(self.task.loss(self.module(inputs), targets), len(inputs)).mean()
            return loss, loss
        output, z = features(self.module)(inputs)
        loss = per_sample(self.task.loss(output, targets), len(inputs)).mean()
        with torch.no_grad():
            z_received, z_previous = features(self.received)(inputs)[1], features(self.previous)(inputs)[1]
        apart = contrast_loss(z, z_received, z_previous, terms.contrast.temperature).mean()
        return loss, loss + terms.contrast.weight[0] * apart

    def bends(self, terms: Terms) -> list[tuple[nn.Parameter, Tensor | None, Tensor | None, Tensor | None]]:
        """Each trainable parameter with its mu, anchor and linear term."""
        if terms.mu is None and terms.linear is None:
            return []
        views = self.task.layout.views
        anchor = {} if terms.anchor is None else views(terms.anchor)
        linear = {} if terms.linear is None else views(terms.linear)
        mu = None if terms.mu is None else terms.mu[0]
        named = [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]
        return [(p, mu, anchor.get(name), linear.get(name)) for name, p in named]


def row(terms: Terms, k: int) -> Terms:
    """The terms of one visit."""
    pick = {name: None if (t := getattr(terms, name)) is None else t[k] for name in ("mu", "anchor", "linear")}
    contrast = terms.contrast
    if contrast is not None:
        contrast = type(contrast)(contrast.weight[k], contrast.temperature, contrast.previous[k])
    return Terms(**pick, contrast=contrast, objective=terms.objective)
