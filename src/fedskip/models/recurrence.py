"""Triton kernels: an LSTM layer of many small models, all its time steps in one launch.

Step by step, an LSTM is a row of small products and cells, each a launch that reads and writes everything
anew. Here a program takes some samples of one model through all steps: h and c stay in registers, the
recurrent weights in shared memory, and the next step's gates are fetched while this one is computed.

The weights fit there as half floats, which have tf32's ten bits of mantissa; sums are float32. Half floats
have fewer exponents: h and weights do not need more, and what flows back is scaled, sample by sample, by a
power of two, so that only what is tiny beside the largest loses bits. All sums have a fixed order, so bits
repeat.

Shapes: gates (n, B, T, 4H) are the input's part, b (n, 4H), w (n, 4H, H); h and c (n, B, T, H) of all steps;
`active` (n, B, T, 4H) are the gates after their activations, in torch's order: input, forget, cell, output.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from fedskip.models.vmapped import models_first

# what was fastest for the paper's LSTM on an H200 (docs/lab.md)
TILE = 16  # samples of a program
WARPS, STAGES = 8, 2


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _weights(w, gate, H: tl.constexpr, WIDE: tl.constexpr, TURNED: tl.constexpr):
    """Those of a gate as half floats: (outputs, inputs), or turned."""
    down, right = tl.arange(0, WIDE)[:, None], tl.arange(0, WIDE)[None, :]
    place = right * H + down if TURNED else down * H + right
    return tl.load(w + gate * (H * H) + place, (down < H) & (right < H), 0.0).to(tl.float16)


@triton.jit
def _bias(b, gate, H: tl.constexpr, WIDE: tl.constexpr):
    unit = tl.arange(0, WIDE)
    return tl.load(b + gate * H + unit, unit < H, 0.0)[None, :]


@triton.jit
def _four(gates, there, H: tl.constexpr):
    """The gates of a step, one after another: input, forget, cell, output."""
    i, f = tl.load(gates, there, 0.0), tl.load(gates + H, there, 0.0)
    return i, f, tl.load(gates + 2 * H, there, 0.0), tl.load(gates + 3 * H, there, 0.0)


@triton.jit
def _put(to, i, f, g, o, there, H: tl.constexpr):
    tl.store(to, i, there)
    tl.store(to + H, f, there)
    tl.store(to + 2 * H, g, there)
    tl.store(to + 3 * H, o, there)


@triton.jit
def _powers(i, f, g, o):
    """For each sample the power of two at or below its largest number, and one over it."""
    largest = tl.maximum(tl.maximum(tl.abs(i), tl.abs(f)), tl.maximum(tl.abs(g), tl.abs(o)))
    exponent = tl.max(largest, 1, keep_dims=True).to(tl.int32, bitcast=True) & 0x7F800000
    exponent = tl.minimum(tl.maximum(exponent, 0x00800000), 0x7E800000)
    return exponent.to(tl.float32, bitcast=True), (0x7F000000 - exponent).to(tl.float32, bitcast=True)


@triton.jit
def _forward(
    gates, b, w, hs, cs, active, B, T, H: tl.constexpr, TILE: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    sample, unit = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None], tl.arange(0, WIDE)[None, :]
    there = (sample < B) & (unit < H)
    w += row * (4 * H * H)
    b += row * (4 * H)
    gates += row * B * T * (4 * H) + sample * (T * 4 * H) + unit
    active += row * B * T * (4 * H) + sample * (T * 4 * H) + unit
    hs += row * B * T * H + sample * (T * H) + unit
    cs += row * B * T * H + sample * (T * H) + unit
    w_i, w_f = _weights(w, 0, H, WIDE, True), _weights(w, 1, H, WIDE, True)
    w_g, w_o = _weights(w, 2, H, WIDE, True), _weights(w, 3, H, WIDE, True)
    b_i, b_f = _bias(b, 0, H, WIDE), _bias(b, 1, H, WIDE)
    b_g, b_o = _bias(b, 2, H, WIDE), _bias(b, 3, H, WIDE)
    h = tl.zeros((TILE, WIDE), tl.float16)
    c = tl.zeros((TILE, WIDE), tl.float32)
    next_i, next_f, next_g, next_o = _four(gates, there, H)
    for t in range(T):
        i, f, g, o = next_i + b_i, next_f + b_f, next_g + b_g, next_o + b_o
        gates += 4 * H
        next_i, next_f, next_g, next_o = _four(gates, there & (t + 1 < T), H)
        i, f = tl.sigmoid(i + tl.dot(h, w_i)), tl.sigmoid(f + tl.dot(h, w_f))
        g, o = _tanh(g + tl.dot(h, w_g)), tl.sigmoid(o + tl.dot(h, w_o))
        c = f * c + i * g
        out = o * _tanh(c)
        h = out.to(tl.float16)
        _put(active, i, f, g, o, there, H)
        tl.store(hs, out, there)
        tl.store(cs, c, there)
        active += 4 * H
        hs += H
        cs += H


@triton.jit
def _backward(
    dhs, w, cs, active, out, d_b, B, T, H: tl.constexpr, TILE: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    sample, unit = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None], tl.arange(0, WIDE)[None, :]
    there = (sample < B) & (unit < H)
    last = row * B * T + (T - 1)
    w += row * (4 * H * H)
    active += last * (4 * H) + sample * (T * 4 * H) + unit
    out += last * (4 * H) + sample * (T * 4 * H) + unit
    dhs += last * H + sample * (T * H) + unit
    cs += last * H + sample * (T * H) + unit
    w_i, w_f = _weights(w, 0, H, WIDE, False), _weights(w, 1, H, WIDE, False)
    w_g, w_o = _weights(w, 2, H, WIDE, False), _weights(w, 3, H, WIDE, False)
    zeros = tl.zeros((TILE, WIDE), tl.float32)
    dh, dc, sum_i, sum_f, sum_g, sum_o = zeros, zeros, zeros, zeros, zeros, zeros
    c = tl.load(cs, there, 0.0)
    for done in range(T):
        before = tl.load(cs - H, there & (done + 1 < T), 0.0)
        dh += tl.load(dhs, there, 0.0)
        i, f, g, o = _four(active, there, H)
        tanh = _tanh(c)
        dc += dh * o * (1 - tanh * tanh)
        d_i, d_f = dc * g * i * (1 - i), dc * before * f * (1 - f)
        d_g, d_o = dc * i * (1 - g * g), dh * tanh * o * (1 - o)
        dc *= f
        c = before
        up, down = _powers(d_i, d_f, d_g, d_o)
        dh = tl.dot((d_i * down).to(tl.float16), w_i)
        dh = tl.dot((d_f * down).to(tl.float16), w_f, dh)
        dh = tl.dot((d_g * down).to(tl.float16), w_g, dh)
        dh = tl.dot((d_o * down).to(tl.float16), w_o, dh) * up
        sum_i, sum_f, sum_g, sum_o = sum_i + d_i, sum_f + d_f, sum_g + d_g, sum_o + d_o
        _put(out, d_i, d_f, d_g, d_o, there, H)
        active -= 4 * H
        out -= 4 * H
        dhs -= H
        cs -= H
    units = tl.arange(0, WIDE)
    d_b += (row * tl.num_programs(0) + tl.program_id(0)) * (4 * H) + units
    _put(d_b, tl.sum(sum_i, 0), tl.sum(sum_f, 0), tl.sum(sum_g, 0), tl.sum(sum_o, 0), units < H, H)


@torch.library.custom_op("fedskip::recurrence", mutates_args=())
def recurrence(gates: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h, c and `active`."""
    gates, b, w = gates.contiguous(), b.contiguous(), w.contiguous()
    n, batch, steps, _ = gates.shape
    h, c, active = _recurrence(gates, b, w)
    _forward[(triton.cdiv(batch, TILE), n)](
        gates, b, w, h, c, active, batch, steps, w.shape[2], TILE=TILE, WIDE=_wide(w.shape[2]),
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return h, c, active


@recurrence.register_fake
def _recurrence(gates: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = (*gates.shape[:3], w.shape[2])
    return gates.new_empty(shape), gates.new_empty(shape), gates.new_empty(gates.shape)


@torch.library.custom_op("fedskip::recurrence_gradient", mutates_args=())
def recurrence_gradient(
    dh: Tensor, w: Tensor, c: Tensor, active: Tensor, parts: int
) -> tuple[Tensor, Tensor]:
    """The gradients of the gates; and of b in parts that are still to be summed, (n, parts, 4H)."""
    dh, w, c, active = dh.contiguous(), w.contiguous(), c.contiguous(), active.contiguous()
    n, batch, steps, units = dh.shape
    d_gates, d_b = _recurrence_gradient(dh, w, c, active, parts)
    _backward[(parts, n)](
        dh, w, c, active, d_gates, d_b, batch, steps, units, TILE=TILE, WIDE=_wide(units),
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return d_gates, d_b


@recurrence_gradient.register_fake
def _recurrence_gradient(
    dh: Tensor, w: Tensor, c: Tensor, active: Tensor, parts: int
) -> tuple[Tensor, Tensor]:
    return active.new_empty(active.shape), active.new_empty(len(active), parts, active.shape[3])


class Fused(torch.autograd.Function):
    """h (B, T, H), c and `active` of one model; under `vmap` of n of them."""

    @staticmethod
    def forward(gates: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in recurrence(gates[None], b[None], w[None]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(inputs[2], *output)

    @staticmethod
    def backward(ctx: Any, dh: Tensor, *_: Tensor) -> Any:
        return FusedGradients.apply(dh, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> Any:
        return recurrence(*models_first(info, in_dims, tensors)), (0, 0, 0)


class FusedGradients(torch.autograd.Function):
    """The gradients of `Fused` with respect to the gates, b and w."""

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in gradients(*(t[None] for t in tensors)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> Any:
        return gradients(*models_first(info, in_dims, tensors)), (0, 0, 0)


def gradients(dh: Tensor, w: Tensor, h: Tensor, c: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From that of h those of the gates, b and w."""
    d_gates, d_b = recurrence_gradient(dh, w, c, active, triton.cdiv(dh.shape[1], TILE))
    before = F.pad(h[:, :, :-1], (0, 0, 1, 0))
    return d_gates, d_b.sum(1), torch.bmm(d_gates.flatten(1, 2).transpose(1, 2), before.flatten(1, 2))


def _wide(units: int) -> int:
    return max(16, int(triton.next_power_of_2(units)))
