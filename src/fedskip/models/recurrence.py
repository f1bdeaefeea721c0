"""An LSTM layer of many small models on a GPU, all its time steps in one launch (`recurrence.cu`).

Step by step, an LSTM is a row of small products and cells, each a launch that reads and writes everything
anew. Here a block of threads takes some samples of one model through all steps, with the recurrent weights
in its registers. They fit there as half floats, which have tf32's ten bits of mantissa; sums are float32.
Half floats have fewer exponents: h and weights do not need more, and what flows back is scaled by powers of
two, so that only what is tiny beside the largest loses bits. For the way back gates are kept to 1/65535: what
one that is nearer than that to 0 or 1 passes on is lost. All sums have a fixed order, so bits repeat.

Shapes, for n models: w_ih (n, 4H, I) and w_hh (n, 4H, H) as torch has them. Sequences have a slot before the
first step, where h is 0, so that h before a step lies one slot before it: x (n, B, 1 + T, I), h (n, B, 1 + T,
H). `gates` (n, B, 1 + T, 4H) are the input's part; in the kernels the four gates of a unit lie side by side:
input, forget, cell, output. Where the input is an embedding of tokens (n, B, T), x (n, V, I) are its weights,
and gates (n, V, 4H) are looked up. c and `active` are what the kernels keep for the way back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskip.models.cuda import kernel
from fedskip.models.vmapped import models_first

CODE = Path(__file__).with_name("recurrence.cu")
FEW = 16  # models, whose products do not fill a GPU unless they are cut


class Fused(torch.autograd.Function):
    """h of a layer; then c and `active`, which nobody else needs. Of one model, or under `vmap` of n."""

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
    dh: Tensor, x: Tensor, w_ih: Tensor, w_hh: Tensor, tokens: Tensor | None, h: Tensor, *kept: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From that of h those of x, w_ih, w_hh and b."""
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
    """The sum over all samples and slots of d_gates times x, or times x of the slot before, (n, 4H, I)."""
    n, batch = x.shape[:2]
    parts = 4 if n <= FEW and batch % 4 == 0 else 1
    d_gates, x = (t.reshape(n * parts, -1, t.shape[-1]) for t in (d_gates, x))
    if before:  # in the first slot d_gates are 0, so that another sample's x does no harm
        d_gates, x = d_gates[:, 1:], x[:, :-1]
    return torch.bmm(d_gates.transpose(1, 2), x).unflatten(0, (n, parts)).sum(1)


def by_unit(gates: Tensor) -> Tensor:
    """From torch's order (n, 4H, ...), gate by gate, to that of the kernels."""
    return gates.unflatten(1, (4, -1)).transpose(1, 2).flatten(1, 2)


def by_gate(gates: Tensor) -> Tensor:
    """And back."""
    return gates.unflatten(1, (-1, 4)).transpose(1, 2).flatten(1, 2)


@torch.library.custom_op("fedskip::recurrence", mutates_args=())
def recurrence(
    gates: Tensor, b: Tensor, w: Tensor, tokens: Tensor | None, tiles: int
) -> tuple[Tensor, Tensor, Tensor]:
    """h, c and `active`; gates (n, B, 1 + T, 4H), or (n, V, 4H) if they are looked up; b (n, 4H).

    `tiles`: of eight samples in a block. Shapes follow from it, so that compiled code has to know it.
    """
    gates, b, w = gates.contiguous(), b.contiguous(), w.contiguous()
    tokens, looked_up = (None, 0) if tokens is None else (tokens.int().contiguous(), gates.shape[1])
    found = _recurrence(gates, b, w, tokens, tiles)
    n, parts, steps, _, threads = found[1].shape[:-1]
    forward = kernel(CODE, "forward", w.device, H=w.shape[2], T=steps, N=tiles, V=looked_up)
    forward((parts, n), threads, gates, tokens, b, w, *found, found[0].shape[1])
    return found


@recurrence.register_fake
def _recurrence(
    gates: Tensor, b: Tensor, w: Tensor, tokens: Tensor | None, tiles: int
) -> tuple[Tensor, Tensor, Tensor]:
    n, batch = gates.shape[:2] if tokens is None else tokens.shape[:2]
    steps = gates.shape[2] - 1 if tokens is None else tokens.shape[2]
    units = w.shape[2]
    kept = (n, -(-batch // (8 * tiles)), steps, tiles, 32 * -(-units // 8))  # four threads for a unit
    c, active = w.new_empty(*kept, 2), w.new_empty(*kept, 4, dtype=torch.int32)
    return w.new_empty(n, batch, 1 + steps, units), c, active


@torch.library.custom_op("fedskip::recurrence_gradient", mutates_args=())
def recurrence_gradient(dh: Tensor, w: Tensor, c: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the gates, (n, B, 1 + T, 4H); and of b in parts that are still to be summed."""
    dh, w, c, active = (t.contiguous() for t in (dh, w, c, active))
    found = _recurrence_gradient(dh, w, c, active)
    n, parts, steps, tiles = c.shape[:4]
    units = w.shape[2]
    backward = kernel(CODE, "backward", w.device, H=units, T=steps, N=tiles, V=0)
    backward((parts, n), 64 * -(-units // 16), dh, w, c, active, *found, dh.shape[1])
    return found


@recurrence_gradient.register_fake
def _recurrence_gradient(dh: Tensor, w: Tensor, c: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    return w.new_empty(*dh.shape[:3], w.shape[1]), w.new_empty(*c.shape[:2], w.shape[1])


def _tiles(models: int, batch: int, device: torch.device) -> int:
    """Two in a block, where one would give more blocks than there are processors."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return 1 if batch <= 8 or models * -(-batch // 8) <= processors else 2


def _alone(*tensors: Any) -> list[Any]:
    """Those of one model as those of n = 1."""
    return [None if t is None else t[None] for t in tensors]
