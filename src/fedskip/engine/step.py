"""One step of many rows: gather, gradient, update, as a pure function of matrices.

    v <- rho v + grad F(y) + wd y + mu (y - anchor) + linear
    y <- y - eta v

The function is traced once for each number of rows into a flat graph of tensor operations, which is
then compiled by TorchInductor or run as it is. Tracing first keeps vmap and grad out of the inner loop,
and gives every row count its own code, with no guards to check and no limit on recompiling to run into.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.batchnorm import _BatchNorm

from fedskip.engine.base import Task, contrast_loss, features_of, per_sample
from fedskip.models.dropout import words
from fedskip.rng import mix

Rows = dict[str, Tensor]  # one row per seat: y, v, loss, active, word and the terms
STATE = ("y", "v", "loss")  # what a step changes
Compute = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Uses:
    """Which optional terms the rows have; one step serves all rows of a table."""

    pull: bool = False  # mu and anchor
    linear: bool = False
    contrast: bool = False

    def __or__(self, other: Uses) -> Uses:
        return Uses(self.pull or other.pull, self.linear or other.linear, self.contrast or other.contrast)


class StackedStep:
    """The step of one task, traced for each number of rows when it is first needed."""

    def __init__(self, task: Task, uses: Uses, compile: bool) -> None:
        self.task, self.uses, self.compile = task, uses, compile
        self.model = stackable(task.module).train()
        self.frozen = stackable(task.module).eval()
        self.words = words(self.model)
        self.traced: dict[int, Compute] = {}

    def __call__(self, rows: Rows, index: Tensor, eta: Tensor, count: Tensor) -> Rows:
        """Advance all active rows by one step.

        index (n, B) pool indices, eta (n, 1) learning rates, count (n,) steps done in the visit.
        """
        # gathered before the compiled part: torch's own kernel is twice as fast as a generated one
        batch = self.task.samples.take(index.clamp(min=0) if self.task.short_batches else index)
        inputs = [*rows.values(), *batch, index, eta, count]
        if len(index) not in self.traced:
            self.traced[len(index)] = self._trace(list(rows), inputs)
        return rows | dict(zip(STATE, self.traced[len(index)](*inputs), strict=True))

    def _trace(self, names: list[str], inputs: list[Tensor]) -> Compute:
        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            return self.step(dict(zip(names, tensors, strict=False)), *tensors[len(names) :])

        graph = make_fx(flat)(*inputs)
        if not self.compile:
            graph.graph.eliminate_dead_code()  # words that nothing draws from, say
            graph.recompile()
            return graph
        import torch._inductor  # seconds to import, so only where it is used

        compiled: Compute = torch._inductor.compile(graph, [*inputs], options={"size_asserts": False})
        return compiled

    def step(
        self, rows: Rows, inputs: Tensor, targets: Tensor, index: Tensor, eta: Tensor, count: Tensor
    ) -> tuple[Tensor, ...]:
        """The mathematics: the new y (n, P), v (n, D) and loss (n, 1)."""
        local, d = self.task.local, self.task.layout.trainable
        y, v, active = rows["y"], rows["v"], rows["active"]
        w, rest = y[:, :d], y[:, d:]
        word = mix(rows["word"], count)
        inputs, here = self.transformed(inputs, word), index >= 0
        gradients, loss, rest = self.gradients(rows, w, rest, inputs, targets, here, word)
        g = torch.cat([g.reshape(len(w), -1) for g in gradients], 1)
        if local.clip is not None:
            g = g * (local.clip / (g.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)
        if self.uses.pull:
            g = g + rows["mu"] * (w - rows["anchor"])
        if self.uses.linear:
            g = g + rows["linear"]
        v_new = local.momentum * v + (g + local.weight_decay * w)
        y_new = torch.cat([w - eta * v_new, rest], 1)
        return (
            torch.where(active, y_new, y),
            torch.where(active, v_new, v),
            rows["loss"] + torch.where(active, loss[:, None], 0.0),
        )

    def transformed(self, inputs: Tensor, word: Tensor) -> Tensor:
        """Augmented inputs (n, B, ...): each sample draws from the word of its row and its place."""
        if self.task.train_transform is None:
            return inputs
        n, batch = inputs.shape[:2]
        words = mix(word[:, None], torch.arange(batch, device=inputs.device))
        flat = self.task.train_transform(inputs.flatten(0, 1), words.flatten())
        return flat.reshape(n, batch, *flat.shape[1:])

    def gradients(
        self, rows: Rows, w: Tensor, rest: Tensor, inputs: Tensor, targets: Tensor, here: Tensor, word: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """The gradient of every trainable tensor, the losses (n,), and the buffers afterwards."""
        layout, d = self.task.layout, self.task.layout.trainable
        contrast: dict[str, Tensor] = {}
        if self.uses.contrast:
            contrast = {name: self.represent(rows[name], inputs) for name in ("received", "previous")}
            contrast |= {name: rows[name][:, 0] for name in ("weight", "temperature")}

        def objective(
            trainable: dict[str, Tensor],
            rest: Tensor,
            x: Tensor,
            t: Tensor,
            here: Tensor,
            word: Tensor,
            contrast: dict[str, Tensor],
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            # BatchNorm writes its statistics in place; into a view of many rows it would write to nowhere
            buffers = {name: view.clone() for name, view in layout.views(rest, start=d).items()}
            state = {**trainable, **buffers, **dict.fromkeys(self.words, word)}
            output, z = _call(self.model, state, x, with_z=bool(contrast))
            loss = total = self.mean(per_sample(self.task.loss(output, t), len(x)), here)
            if z is not None:
                apart = contrast_loss(z, contrast["received"], contrast["previous"], contrast["temperature"])
                total = loss + contrast["weight"] * self.mean(apart, here)
            return total, (loss, torch.cat([rest[:0], *(b.reshape(-1) for b in buffers.values())]))

        gradients, (_, (loss, rest)) = vmap(grad_and_value(objective, has_aux=True))(
            layout.views(w), rest, inputs, targets, here, word, contrast
        )
        return list(gradients.values()), loss, rest

    def represent(self, models: Tensor, inputs: Tensor) -> Tensor:
        """z of frozen models (n, P) in eval mode, (n, B, d)."""

        def z(model: Tensor, x: Tensor) -> Tensor:
            represented = _call(self.frozen, self.task.layout.views(model), x, with_z=True)[1]
            assert represented is not None
            return represented

        return vmap(z)(models, inputs)

    def mean(self, losses: Tensor, here: Tensor) -> Tensor:
        """The mean over the samples that are really in the batch."""
        if not self.task.short_batches:
            return losses.mean()
        return torch.where(here, losses, 0.0).sum() / here.sum()


class _WithFeatures(nn.Module):
    """Makes `features` callable through functional_call, which only knows forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = features_of(self.inner)(x)
        return found


def _call(
    module: nn.Module, state: dict[str, Tensor], x: Tensor, with_z: bool
) -> tuple[Tensor, Tensor | None]:
    if not with_z:
        return functional_call(module, state, (x,)), None
    output, z = functional_call(_WithFeatures(module), {f"inner.{k}": v for k, v in state.items()}, (x,))
    return output, z


def stackable(template: nn.Module) -> nn.Module:
    """A copy that vmap can take: unrolled where it must be, BatchNorm without its integer counter."""
    module = copy.deepcopy(template)
    unrolled = getattr(module, "stackable", None)
    if callable(unrolled):
        module = unrolled()
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            part.num_batches_tracked = None
    return module


def has_compiler() -> bool:
    """Whether TorchInductor will find a C++ compiler."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))
