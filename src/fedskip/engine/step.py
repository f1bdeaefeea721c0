"""One step of many rows: gather, gradient, update, as a pure function of matrices.

    v <- rho v + grad F(y) + wd y + mu (y - anchor) + linear
    y <- y - eta v

The function is traced once for each number of rows into a flat graph of tensor operations, which is
then compiled by TorchInductor or run as it is. Tracing first keeps vmap and grad out of the inner loop,
and gives every row count its own code, with no guards to check and no limit on recompiling to run into.
On a GPU the step is recorded as a CUDA graph and replayed. There, large models do better with each row on
one of several parallel streams inside that graph than with all rows in one batched kernel.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, grad_and_value, vmap
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from fedskip.engine.base import Stopwatch, Task, contrast_loss, features_of, per_sample
from fedskip.engine.graph import STATE, Graphs, Rows
from fedskip.errors import InputError, said
from fedskip.methods.base import Terms
from fedskip.models.batchnorm import batch_statistics
from fedskip.models.dropout import words
from fedskip.models.patches import as_patches
from fedskip.rng import mix

BLOCK = 256  # steps whose indices are sent to the device together
Compute = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Uses:
    """Which optional terms the rows have; one step serves all rows of a table."""

    pull: bool = False  # mu and anchor
    linear: bool = False
    contrast: bool = False

    @classmethod
    def of(cls, terms: Terms) -> Uses:
        return cls(terms.mu is not None, terms.linear is not None, terms.contrast is not None)

    def __or__(self, other: Uses) -> Uses:
        return Uses(self.pull or other.pull, self.linear or other.linear, self.contrast or other.contrast)


class StackedStep:
    """The step of one task, traced for each number of rows when it is first needed."""

    def __init__(
        self, task: Task, uses: Uses, compile: bool, streams: int = 0, kernels: bool = False
    ) -> None:
        """`streams`: on how many streams rows run side by side; 0 for all rows in one batch.

        `kernels`: whether those of `models/kernels.py` are to be used.
        """
        self.task, self.uses = task, uses
        # convolutions of one row read their weights where they lie in it, unless they begin at odd places
        self.odd = bool(streams) and any(e.start % 4 for e in task.layout.entries if len(e.shape) == 4)
        self.compile = compile and not self.odd
        self.in_place = task.device.type == "cuda"  # what a recorded graph reads lies at fixed addresses
        patches = self.in_place and not streams
        self.model = functional(task.module, patches, kernels).train()
        self.frozen = functional(task.module, patches, kernels).eval() if uses.contrast else None
        self.words = words(self.model)
        self.traced: dict[int, Compute] = {}
        self.preparing = Stopwatch()  # runs while a step is traced, compiled or recorded
        self.graphs = None
        if self.in_place:
            self.graphs = Graphs(self, BLOCK, self.preparing, spaced_rows=streams > 0)
        self.streams = [torch.cuda.Stream(task.device) for _ in range(streams)]

    def advance(self, rows: Rows, block: tuple[Tensor, Tensor, Tensor]) -> Rows:
        """Take the steps of a block: index (s, n, B), eta (s, n, 1) and count (s, n)."""
        with self.task.arithmetic.kernels():
            if self.graphs is not None:
                return self.graphs(rows, block)
            for index, eta, count in zip(*block, strict=True):
                rows = self(rows, index, eta, count)
        return rows

    def __call__(self, rows: Rows, index: Tensor, eta: Tensor, count: Tensor) -> Rows:
        """Advance all active rows by one step.

        index (n, B) pool indices, eta (n, 1) learning rates, count (n,) steps done in the visit.
        """
        if not self.streams:
            return self._together(rows, index, eta, count)
        here = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(here)
        for i in range(len(index)):
            with torch.cuda.stream(self.streams[i % len(self.streams)]):
                one = {name: t[i : i + 1] for name, t in rows.items()}
                self._together(one, index[i : i + 1], eta[i : i + 1], count[i : i + 1])
        for stream in self.streams:
            here.wait_stream(stream)
        return rows

    def _together(self, rows: Rows, index: Tensor, eta: Tensor, count: Tensor) -> Rows:
        # gathered before the compiled part: torch's own kernel is twice as fast as a generated one
        batch = self.task.samples.take(index.clamp(min=0) if self.task.short_batches else index)
        inputs = [*rows.values(), *batch, index, eta, count]
        if len(index) not in self.traced:
            with self.preparing:
                self.traced[len(index)] = self._trace(list(rows), inputs)
        new = self.traced[len(index)](*inputs)
        return rows if self.in_place else rows | dict(zip(STATE, new, strict=True))

    def _trace(self, names: list[str], inputs: list[Tensor]) -> Compute:
        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            rows = dict(zip(names, tensors, strict=False))
            new = self.step(rows, *tensors[len(names) :])
            if not self.in_place:
                return new
            for name, tensor in zip(STATE, new, strict=True):
                rows[name].copy_(tensor)
            return ()

        graph = make_fx(flat)(*inputs)
        if not self.compile:
            graph.graph.eliminate_dead_code()  # words that nothing draws from, say
            graph.recompile()
            return graph
        return compiled(graph, inputs)

    def once(self, rows: Rows, index: Tensor, eta: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        """A step neither traced nor recorded, to try it or to measure it."""
        batch = self.task.samples.take(index.clamp(min=0))
        return self.step(rows, *batch, index, eta, count)

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
            state = {**self.laid_out(trainable), **buffers, **dict.fromkeys(self.words, word)}
            if contrast:
                output, z = self.compute(_WithFeatures(self.model), under("inner", state), x)
            else:
                output = self.compute(self.model, state, x)
            loss = total = self.mean(per_sample(self.task.loss(output, t), len(x)), here)
            if contrast:
                apart = contrast_loss(z, contrast["received"], contrast["previous"], contrast["temperature"])
                total = loss + contrast["weight"] * self.mean(apart, here)
            return total, (loss, torch.cat([rest[:0], *(b.reshape(-1) for b in buffers.values())]))

        gradients, (_, (loss, rest)) = self.each(grad_and_value(objective, has_aux=True))(
            layout.views(w), rest, inputs, targets, here, word, contrast
        )
        return list(gradients.values()), loss, rest

    def represent(self, models: Tensor, inputs: Tensor) -> Tensor:
        """z of frozen models (n, P) in eval mode, (n, B, d)."""

        def z(model: Tensor, x: Tensor) -> Tensor:
            state = under("inner", self.laid_out(self.task.layout.views(model)))
            assert self.frozen is not None
            represented: Tensor = self.compute(_WithFeatures(self.frozen), state, x)[1]
            return represented

        found: Tensor = self.each(z)(models, inputs)
        return found

    def each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function for every row: by vmap, or, where rows have streams, for the only row there is."""
        if not self.streams:
            return vmap(function)
        return lambda *rows: tree_map(lambda t: t[None], function(*tree_map(lambda t: t[0], rows)))

    def compute(self, module: nn.Module, state: dict[str, Tensor], x: Tensor) -> Any:
        """What a module of this state gives for x, in the precision of the task."""
        x = self.channels_last(x) if self.streams else x
        return self.task.arithmetic.compute(lambda x: functional_call(module, state, (x,)), x)

    def laid_out(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights as their kernels like them best."""
        return {name: self.channels_last(w) for name, w in weights.items()} if self.streams else weights

    def channels_last(self, tensor: Tensor) -> Tensor:
        """The layout in which convolutions of one model are fastest."""
        if tensor.dim() != 4:
            return tensor
        if self.odd:
            return tensor.clone(memory_format=torch.channels_last)
        return tensor.contiguous(memory_format=torch.channels_last)

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


def under(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in state.items()}


def functional(template: nn.Module, patches: bool = False, kernels: bool = False) -> nn.Module:
    """A copy that `torch.func` can take: in its stackable form, BatchNorm without integer counters.

    `patches`: with convolutions as products of patches, in a layout that BatchNorm does not take under vmap;
    `kernels`: small ones by kernels of our own.
    """
    module = copy.deepcopy(template)
    unrolled = getattr(module, "stackable", None)
    if callable(unrolled):
        module = unrolled()
    normed = batch_statistics(module)
    for part in normed:
        part.num_batches_tracked = None
    return as_patches(module, kernels) if patches and not normed else module


def compiled(graph: GraphModule, inputs: Sequence[Tensor]) -> Compute:
    """Code of TorchInductor for just these shapes, which torch keeps on disk for the next process."""
    import torch._inductor  # seconds to import, so only where it is used
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # torch traces once more, with other strides than the tensors had here: what was a view may need a copy
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default
    graph.recompile()
    # the cache takes no graph without an environment for open shapes, which stays empty
    fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    shaped: list[Any] = [fake.from_tensor(tensor, static_shapes=True) for tensor in inputs]
    try:
        code: Compute = torch._inductor.compile(graph, shaped, options={"size_asserts": False})
    except Exception as error:  # of the compiler, which has many kinds
        fix = f"set compile=false; torch says: {said(error)}"
        raise InputError("compile", "does not work for this model", True, fix) from error
    return code


def has_compiler() -> bool:
    """Whether TorchInductor will find a C++ compiler."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))
