"""An LSTM layer of many small models on a GPU, all its time steps in one launch (`recurrence.cu`).

Computed step by step, an LSTM is a sequence of small products and cells, each a launch that reads and
writes all its numbers. Here a block of threads takes some samples of one model through all steps, with
the recurrent weights in its registers.

Precision. The weights fit the registers as half floats, which have tf32's ten bits of mantissa; sums are
float32. Half floats have fewer exponents. That is enough for h and the weights. Gradients are scaled by
powers of two, so that only numbers that are tiny beside the largest lose bits. For the backward pass,
gates are stored to 1/65535: a gate that is nearer than that to 0 or 1 passes no gradient. All sums have
a fixed order, so bits repeat.

Shapes, for n models: w_ih (n, 4H, I) and w_hh (n, 4H, H) as in torch. Sequences have a place before the
first step, where h is 0, so that the h before a step lies one place before it: x (n, B, 1 + T, I), h (n,
B, 1 + T, H). `gates` (n, B, 1 + T, 4H) are the input's part. In the kernels the four gates of a unit lie
side by side: input, forget, cell, output. If the input is an embedding of tokens (n, B, T), x (n, V, I)
are its weights, and gates (n, V, 4H) are looked up. The kernels keep c and `active` for the backward pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskip.kernels import models_first
from fedskip.kernels.cuda import kernel

CODE = Path(__file__).with_name("recurrence.cu")
FEW = 16  # the products of so few models fill a GPU only if they are split


class Fused(torch.autograd.Function):
    """h of a layer, and c and `active` for its gradient; for one model, under `vmap` for n models."""

    @staticmethod
    def forward(
        x: Tensor, w_ih: Tensor, w_hh: Tensor, b: Tensor, tokens: Tensor | None
    ) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in layer(*_alone(x, w_ih, w_hh, b, tokens)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w_ih, w_hh, _, tokens = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, w_ih, w_hh, tokens, *output)

    @staticmethod
    def backward(ctx: Any, dh: Tensor, *_: Tensor) -> Any:
        return *FusedGradients.apply(dh, *ctx.saved_tensors), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: Any) -> Any:
        return layer(*models_first(info, in_dims, tensors)), (0, 0, 0)


class FusedGradients(torch.autograd.Function):
    """The gradients of `Fused` with respect to x, w_ih, w_hh and b."""

    @staticmethod
    def forward(*tensors: Any) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in gradients(*_alone(*tensors)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: Any) -> Any:
        return gradients(*models_first(info, in_dims, tensors)), (0, 0, 0, 0)


def layer(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b: Tensor, tokens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """h, c and `active`."""
    gates = torch.bmm(x.flatten(1, -2), by_unit(w_ih).transpose(1, 2)).view(*x.shape[:-1], -1)
    batch = x.shape[1] if tokens is None else tokens.shape[1]
    return recurrence(gates, by_unit(b), w_hh, tokens, _tiles(len(x), batch, x.device))


def gradients(
    dh: Tensor,
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    tokens: Tensor | None,
    h: Tensor,
    *kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, w_ih, w_hh and b from that of h."""
    d_gates, d_b = recurrence_gradient(dh, w_hh, *kept)
    d_w_hh, w = weights_gradient(d_gates, h, before=True), by_unit(w_ih)
    if tokens is None:
        d_x, d_w_ih = torch.bmm(d_gates.flatten(1, 2), w).view_as(x), weights_gradient(d_gates, x)
    else:
        here = F.pad(tokens, (1, 0))[..., None] == torch.arange(x.shape[1], device=x.device)
        looked_up = weights_gradient(d_gates, here.to(x.dtype))  # (n, 4H, V)
        d_x, d_w_ih = torch.bmm(looked_up.transpose(1, 2), w), torch.bmm(looked_up, x)
    return d_x, by_gate(d_w_ih), by_gate(d_w_hh), by_gate(d_b.sum(1))


def weights_gradient(d_gates: Tensor, x: Tensor, before: bool = False) -> Tensor:
    """The sum over samples and places of d_gates times x, or times the x one place before, (n, 4H, I)."""
    n, batch = x.shape[:2]
    parts = 4 if n <= FEW and batch % 4 == 0 else 1
    d_gates, x = (t.reshape(n * parts, -1, t.shape[-1]) for t in (d_gates, x))
    if before:  # d_gates are 0 in the first place, so the x of the sample before adds nothing
        d_gates, x = d_gates[:, 1:], x[:, :-1]
    return torch.bmm(d_gates.transpose(1, 2), x).unflatten(0, (n, parts)).sum(1)


def by_unit(gates: Tensor) -> Tensor:
    """From torch's order (n, 4H, ...), gate by gate, to the kernels' order, unit by unit."""
    return gates.unflatten(1, (4, -1)).transpose(1, 2).flatten(1, 2)


def by_gate(gates: Tensor) -> Tensor:
    """From the kernels' order to torch's."""
    return gates.unflatten(1, (-1, 4)).transpose(1, 2).flatten(1, 2)


@torch.library.custom_op("fedskip::recurrence", mutates_args=())
def recurrence(
    gates: Tensor, b: Tensor, w: Tensor, tokens: Tensor | None, tiles: int
) -> tuple[Tensor, Tensor, Tensor]:
    """h, c and `active` of gates (n, B, 1 + T, 4H), or (n, V, 4H) if they are looked up, and b (n, 4H).

    `tiles`: how many tiles of eight samples a block takes. Shapes depend on it, so it is an argument:
    compiled code has to know them.
    """
    gates, b, w = gates.contiguous(), b.contiguous(), w.contiguous()
    tokens, looked_up = (None, 0) if tokens is None else (tokens.int().contiguous(), gates.shape[1])
    outputs = _recurrence(gates, b, w, tokens, tiles)
    n, parts, steps, _, threads = outputs[1].shape[:-1]
    forward = kernel(CODE, "forward", w.device, H=w.shape[2], T=steps, N=tiles, V=looked_up)
    forward((parts, n), threads, gates, tokens, b, w, *outputs, outputs[0].shape[1])
    return outputs


@recurrence.register_fake
def _recurrence(
    gates: Tensor, b: Tensor, w: Tensor, tokens: Tensor | None, tiles: int
) -> tuple[Tensor, Tensor, Tensor]:
    n, batch = gates.shape[:2] if tokens is None else tokens.shape[:2]
    steps = gates.shape[2] - 1 if tokens is None else tokens.shape[2]
    units = w.shape[2]
    threads = 32 * -(-units // 8)  # four for a unit
    kept = (n, -(-batch // (8 * tiles)), steps, tiles, threads)
    c, active = w.new_empty(*kept, 2), w.new_empty(*kept, 4, dtype=torch.int32)
    return w.new_empty(n, batch, 1 + steps, units), c, active


@torch.library.custom_op("fedskip::recurrence_gradient", mutates_args=())
def recurrence_gradient(dh: Tensor, w: Tensor, c: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the gates, (n, B, 1 + T, 4H), and of b in parts that the caller sums."""
    dh, w, c, active = (t.contiguous() for t in (dh, w, c, active))
    outputs = _recurrence_gradient(dh, w, c, active)
    n, parts, steps, tiles = c.shape[:4]
    units = w.shape[2]
    backward = kernel(CODE, "backward", w.device, H=units, T=steps, N=tiles, V=0)
    backward((parts, n), 64 * -(-units // 16), dh, w, c, active, *outputs, dh.shape[1])
    return outputs


@recurrence_gradient.register_fake
def _recurrence_gradient(dh: Tensor, w: Tensor, c: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    return w.new_empty(*dh.shape[:3], w.shape[1]), w.new_empty(*c.shape[:2], w.shape[1])


def _tiles(models: int, batch: int, device: torch.device) -> int:
    """Tiles in a block: two if one would give more blocks than the GPU has multiprocessors."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return 1 if batch <= 8 or models * -(-batch // 8) <= processors else 2


def _alone(*tensors: Any) -> list[Any]:
    """The tensors of one model with a dimension of n = 1 models."""
    return [None if t is None else t[None] for t in tensors]
