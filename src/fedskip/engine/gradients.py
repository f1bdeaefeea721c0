"""The gradients of all rows: together by vmap, or of one row alone where rows have streams."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_map

from fedskip.engine.task import Task
from fedskip.models.forms import WithFeatures, functional, words
from fedskip.models.metrics import contrast_loss, per_sample

State = dict[str, Tensor]  # tensors by name


class Gradients:
    """The gradients of one task."""

    def __init__(
        self,
        task: Task,
        contrast: bool,
        *,
        alone: bool = False,
        patches: bool = False,
        kernels: bool = False,
    ) -> None:
        """`contrast`: whether MOON's loss is part of it; `alone`: there is one row, and no vmap.

        `patches` and `kernels`: how convolutions and recurrent layers are computed, see `models/forms.py`.
        """
        self.task, self.contrast, self.alone = task, contrast, alone
        # convolutions of one row read their weights where they lie in it, unless they begin at odd places
        spans = task.layout.spans
        self.odd = alone and any(span.start % 4 for span in spans if len(span.shape) == 4)
        self.model = functional(task.module, patches, kernels).train()
        self.frozen = functional(task.module, patches, kernels).eval() if contrast else None
        self.words = words(self.model)

    def __call__(
        self, rows: State, w: Tensor, rest: Tensor, x: Tensor, t: Tensor, here: Tensor, word: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients (n, D), the losses (n,), and the buffers afterwards (n, P - D).

        w (n, D) and rest (n, P - D) are the models, x and t (n, B, ...) inputs and targets; `here` (n, B)
        says which samples are really in the batch.
        """
        contrast: State = {}
        if self.contrast:
            contrast = {name: self._represent(rows[name], x) for name in ("received", "previous")}
            contrast |= {name: rows[name][:, 0] for name in ("weight", "temperature")}
        gradients, (_, (loss, rest)) = self._each(grad_and_value(self._objective, has_aux=True))(
            self.task.layout.views(w), contrast, rest, x, t, here, word
        )
        return torch.cat([g.reshape(len(w), -1) for g in gradients.values()], 1), loss, rest

    def _objective(
        self,
        w: State,
        contrast: State,
        rest: Tensor,
        x: Tensor,
        t: Tensor,
        here: Tensor,
        word: Tensor,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Of one row: what is differentiated, and beside it the loss alone and the buffers afterwards."""
        layout = self.task.layout
        # BatchNorm writes its statistics in place; into a view of many rows it would write to nowhere
        buffers = {
            name: view.clone() for name, view in layout.views(rest, start=layout.trainable).items()
        }
        state = {**self._laid_out(w), **buffers, **dict.fromkeys(self.words, word)}
        if contrast:
            output, z = self._compute(WithFeatures(self.model), WithFeatures.named(state), x)
        else:
            output = self._compute(self.model, state, x)
        loss = total = self._mean(per_sample(self.task.loss(output, t), len(x)), here)
        if contrast:
            apart = contrast_loss(
                z, contrast["received"], contrast["previous"], contrast["temperature"]
            )
            total = loss + contrast["weight"] * self._mean(apart, here)
        return total, (loss, torch.cat([rest[:0], *(b.reshape(-1) for b in buffers.values())]))

    def _represent(self, models: Tensor, inputs: Tensor) -> Tensor:
        """z of frozen models (n, P) in eval mode, (n, B, d)."""

        def z(model: Tensor, x: Tensor) -> Tensor:
            state = WithFeatures.named(self._laid_out(self.task.layout.views(model)))
            assert self.frozen is not None
            represented: Tensor = self._compute(WithFeatures(self.frozen), state, x)[1]
            return represented

        outputs: Tensor = self._each(z)(models, inputs)
        return outputs

    def _each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function for every row."""
        if not self.alone:
            return vmap(function)
        return lambda *rows: tree_map(lambda t: t[None], function(*tree_map(lambda t: t[0], rows)))

    def _compute(self, module: nn.Module, state: State, x: Tensor) -> Any:
        """What a module of this state gives for x, in the precision of the task."""
        x = self._channels_last(x) if self.alone else x
        return self.task.arithmetic.compute(lambda x: functional_call(module, state, (x,)), x)

    def _laid_out(self, weights: State) -> State:
        """Weights as their kernels like them best."""
        if not self.alone:
            return weights
        return {name: self._channels_last(w) for name, w in weights.items()}

    def _channels_last(self, tensor: Tensor) -> Tensor:
        """The layout in which convolutions of one model are fastest."""
        if tensor.dim() != 4:
            return tensor
        to = tensor.clone if self.odd else tensor.contiguous
        return to(memory_format=torch.channels_last)

    def _mean(self, losses: Tensor, here: Tensor) -> Tensor:
        """The mean over the samples that are really in the batch."""
        if not self.task.local.short_batches:
            return losses.mean()
        return torch.where(here, losses, 0.0).sum() / here.sum()
