"""Triton kernels: convolution, ReLU and 2 × 2 max pool of many small models in one launch.

Patches are read where they lie in the pictures and never written out, and whatever is computed comes in
blocks of 2 × 2 pixels. A k × l convolution gives such a block, for all outputs, as the product of one window
of (k+1) × (l+1) pixels with a matrix that holds the weights four times, shifted (`spread`). Forwards the
block is pooled on the spot; the gradient of the input is the same product of other windows; the gradient of
the weights is that of the matrix, its four parts summed. All sums have a fixed order, so bits repeat.

Shapes: x (n, B, C, H, W), w (n, O, C, k, l), b (n, O), the pooled y (n, B, O, h, w); and beside y `where`,
which pixel of each block was the largest, or NOWHERE if ReLU cut it off. `exact`: float32 and not tf32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from fedskip.models.vmapped import models_first

NOWHERE = tl.constexpr(4)
# sizes that were fastest for the paper's CNN on an H200 (docs/lab.md)
TILE = 64  # blocks that a program takes at a time
STEP = 16  # and pixels of their windows
WARPS, STAGES = 2, 3
PART = 320  # blocks whose weight gradients one program sums, a multiple of PART_TILE
PART_TILE, PART_STEP = 32, 128
PART_WARPS, PART_STAGES = 4, 2


@triton.jit
def _places(B, HIGH: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr):
    """The row of a program; and of each of its blocks the sample, the pooled pixel, and whether it exists."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    return tl.program_id(1).to(tl.int64), at // (HIGH * WIDE), at % (HIGH * WIDE), at < B * HIGH * WIDE


@triton.jit
def _blocks(
    x, matrix, B, row, sample, pixel, inside, WIDE: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
    W: tl.constexpr, R: tl.constexpr, S: tl.constexpr, N: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The windows (TILE, C R S) of x that begin at even pixels, times the matrix: (TILE, N)."""
    K: tl.constexpr = C * R * S
    corner = x + row * B * (C * H * W) + sample * (C * H * W) + pixel // WIDE * (2 * W) + pixel % WIDE * 2
    matrix += row * (K * N)
    column = tl.arange(0, N)
    total = tl.zeros((TILE, N), tl.float32)
    for first in range(0, K, STEP):
        k = first + tl.arange(0, STEP)
        place = k // (R * S) * (H * W) + k % (R * S) // S * W + k % S
        window = tl.load(corner[:, None] + place[None, :], inside[:, None] & (k < K)[None, :], 0.0)
        weight = tl.load(matrix + k[:, None] * N + column[None, :], (k < K)[:, None], 0.0)
        total = tl.dot(window, weight, total, input_precision=PRECISION)
    return total


@triton.jit
def _pooled_blocks(
    x, matrix, b, y, where, B, O, HIGH: tl.constexpr, WIDE: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
    W: tl.constexpr, R: tl.constexpr, S: tl.constexpr, N: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, sample, pixel, inside = _places(B, HIGH, WIDE, TILE)
    total = _blocks(x, matrix, B, row, sample, pixel, inside, WIDE, C, H, W, R, S, N, TILE, STEP, PRECISION)
    upper, lower = tl.split(tl.permute(tl.reshape(total, (TILE, N // 4, 2, 2)), (0, 1, 3, 2)))
    first, second = tl.split(upper)
    third, fourth = tl.split(lower)
    # the first of equals wins; if none of them is a number, neither is the result
    keep = first >= second
    found, best = tl.where(keep, 0, 1), tl.where(keep, first, second)
    keep = best >= third
    found, best = tl.where(keep, found, 2), tl.where(keep, best, third)
    keep = best >= fourth
    found, best = tl.where(keep, found, 3), tl.where(keep, best, fourth)
    o = tl.arange(0, N // 4)
    best += tl.load(b + row * O + o, o < O, 0.0)[None, :]
    off = best <= 0
    to = row * B * O * (HIGH * WIDE) + ((sample * O)[:, None] + o[None, :]) * (HIGH * WIDE) + pixel[:, None]
    there = inside[:, None] & (o < O)[None, :]
    tl.store(y + to, tl.where(off, 0.0, best), there)
    tl.store(where + to, tl.where(off, NOWHERE, found).to(tl.uint8), there)


@triton.jit
def _joined_blocks(
    x, matrix, out, B, O, OH, OW, HIGH: tl.constexpr, WIDE: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
    W: tl.constexpr, R: tl.constexpr, S: tl.constexpr, N: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, sample, pixel, inside = _places(B, HIGH, WIDE, TILE)
    total = _blocks(x, matrix, B, row, sample, pixel, inside, WIDE, C, H, W, R, S, N, TILE, STEP, PRECISION)
    column = tl.arange(0, N)
    o, i, j = column // 4, column % 4 // 2, column % 2
    down, right = (pixel // WIDE * 2)[:, None] + i[None, :], (pixel % WIDE * 2)[:, None] + j[None, :]
    there = inside[:, None] & (o < O)[None, :] & (down < OH) & (right < OW)
    to = row * B * O * OH * OW + ((sample * O)[:, None] + o[None, :]) * OH * OW + down * OW + right
    tl.store(out + to, total, there)


@triton.jit
def _matrix_gradient(
    x, d, where, out, B, O, PART: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, C: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, R: tl.constexpr, S: tl.constexpr, N: tl.constexpr,
    TILE: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = C * R * S
    row = tl.program_id(2).to(tl.int64)
    k = tl.program_id(0) * STEP + tl.arange(0, STEP)
    place = k // (R * S) * (H * W) + k % (R * S) // S * W + k % S
    column = tl.arange(0, N)
    o, corner = column // 4, column % 4
    x += row * B * (C * H * W)
    d += row * B * O * (HIGH * WIDE)
    where += row * B * O * (HIGH * WIDE)
    total = tl.zeros((STEP, N), tl.float32)
    for first in range(0, PART, TILE):
        at = tl.program_id(1) * PART + first + tl.arange(0, TILE)  # blocks, sample after sample
        sample, pixel = at // (HIGH * WIDE), at % (HIGH * WIDE)
        inside = at < B * HIGH * WIDE
        begin = sample * (C * H * W) + pixel // WIDE * (2 * W) + pixel % WIDE * 2
        window = tl.load(x + place[:, None] + begin[None, :], (k < K)[:, None] & inside[None, :], 0.0)
        of = ((sample * O)[:, None] + o[None, :]) * (HIGH * WIDE) + pixel[:, None]
        there = inside[:, None] & (o < O)[None, :]
        largest = tl.load(where + of, there, NOWHERE) == corner[None, :]
        total = tl.dot(window, tl.load(d + of, there & largest, 0.0), total, input_precision=PRECISION)
    out += (row * tl.num_programs(1) + tl.program_id(1)) * (K * N)
    tl.store(out + k[:, None] * N + column[None, :], total, (k < K)[:, None])


@torch.library.custom_op("fedskip::windows_pooled", mutates_args=())
def windows_pooled(
    x: Tensor, matrix: Tensor, b: Tensor, kernel: list[int], exact: bool
) -> tuple[Tensor, Tensor]:
    """Each window times the matrix (n, C (k+1) (l+1), N), pooled: y and `where`."""
    x, matrix, b = x.contiguous(), matrix.contiguous(), b.contiguous()
    (n, batch, c, height, width), outputs = x.shape, b.shape[1]
    y, where = _windows_pooled(x, matrix, b, kernel, exact)
    high, wide = y.shape[3:]
    _pooled_blocks[(triton.cdiv(batch * high * wide, TILE), n)](
        x, matrix, b, y, where, batch, outputs, high, wide, c, height, width, kernel[0] + 1, kernel[1] + 1,
        N=matrix.shape[2], TILE=TILE, STEP=STEP, PRECISION=_precision(exact),
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return y, where


@windows_pooled.register_fake
def _windows_pooled(
    x: Tensor, matrix: Tensor, b: Tensor, kernel: list[int], exact: bool
) -> tuple[Tensor, Tensor]:
    size = [(side - k + 1) // 2 for side, k in zip(x.shape[3:], kernel, strict=True)]
    shape = (*x.shape[:2], b.shape[1], *size)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)


@torch.library.custom_op("fedskip::windows_joined", mutates_args=())
def windows_joined(
    x: Tensor, matrix: Tensor, kernel: list[int], size: list[int], outputs: int, exact: bool
) -> Tensor:
    """Each window times the matrix, its blocks side by side: (n, B, outputs, *size)."""
    x, matrix = x.contiguous(), matrix.contiguous()
    n, batch, c, height, width = x.shape
    out = _windows_joined(x, matrix, kernel, size, outputs, exact)
    high, wide = (triton.cdiv(side, 2) for side in size)
    _joined_blocks[(triton.cdiv(batch * high * wide, TILE), n)](
        x, matrix, out, batch, outputs, *size, high, wide, c, height, width, kernel[0] + 1, kernel[1] + 1,
        N=matrix.shape[2], TILE=TILE, STEP=STEP, PRECISION=_precision(exact),
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out


@windows_joined.register_fake
def _windows_joined(
    x: Tensor, matrix: Tensor, kernel: list[int], size: list[int], outputs: int, exact: bool
) -> Tensor:
    return x.new_empty(*x.shape[:2], outputs, *size)


@torch.library.custom_op("fedskip::windows_gradient", mutates_args=())
def windows_gradient(
    x: Tensor, d: Tensor, where: Tensor, kernel: list[int], parts: int, columns: int, exact: bool
) -> Tensor:
    """The gradient of the matrix in parts that are still to be summed, (n, parts, C (k+1) (l+1), columns).

    Its shape is said by its arguments: torch's cache of compiled code knows no more of it.
    """
    x, d, where = x.contiguous(), d.contiguous(), where.contiguous()
    (n, batch, c, height, width), (outputs, high, wide) = x.shape, d.shape[2:]
    out = _windows_gradient(x, d, where, kernel, parts, columns, exact)
    _matrix_gradient[(triton.cdiv(out.shape[2], PART_STEP), out.shape[1], n)](
        x, d, where, out, batch, outputs, PART, high, wide, c, height, width, kernel[0] + 1, kernel[1] + 1,
        N=out.shape[3], TILE=PART_TILE, STEP=PART_STEP, PRECISION=_precision(exact),
        num_warps=PART_WARPS, num_stages=PART_STAGES,
    )  # fmt: skip
    return out


@windows_gradient.register_fake
def _windows_gradient(
    x: Tensor, d: Tensor, where: Tensor, kernel: list[int], parts: int, columns: int, exact: bool
) -> Tensor:
    pixels = x.shape[2] * (kernel[0] + 1) * (kernel[1] + 1)
    return x.new_empty(len(x), parts, pixels, columns)


class ConvReluPool(torch.autograd.Function):
    """The pooled y (B, O, h, w) and `where`, for x (B, C, H, W) and one model; under `vmap` for n of them."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor, exact: bool) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in conv_relu_pool(x[None], w[None], b[None], exact))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, w, _, ctx.exact = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, w, output[1])

    @staticmethod
    def backward(ctx: Any, d: Tensor, _: Tensor) -> Any:
        return *Gradients.apply(d, *ctx.saved_tensors, ctx.exact), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        return conv_relu_pool(*models_first(info, in_dims, inputs)), (0, 0)


class Gradients(torch.autograd.Function):
    """The gradients of `ConvReluPool` with respect to x, w and b."""

    @staticmethod
    def forward(d: Tensor, x: Tensor, w: Tensor, where: Tensor, exact: bool) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in gradients(d[None], x[None], w[None], where[None], exact))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        return gradients(*models_first(info, in_dims, inputs)), (0, 0, 0)


def conv_relu_pool(x: Tensor, w: Tensor, b: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
    return windows_pooled(x, spread(w), b, list(w.shape[3:]), exact)


def gradients(d: Tensor, x: Tensor, w: Tensor, where: Tensor, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
    """From that of y those of x, w and b; one that nobody asks for is left out when the step is traced."""
    kernel = k, l = list(w.shape[3:])
    corners = torch.arange(4, device=d.device)
    g = torch.where(where[..., None] == corners, d[..., None], 0.0)  # to the pixel that was the largest
    g = g.unflatten(-1, (2, 2)).transpose(4, 5).flatten(5, 6).flatten(3, 4)  # (n, B, O, 2h, 2w)
    high, wide = (2 * triton.cdiv(side, 2) for side in x.shape[3:])
    g = F.pad(g, (l - 1, wide - g.shape[4], k - 1, high - g.shape[3]))
    backwards = spread(w.flip(3, 4).transpose(1, 2))
    dx = windows_joined(g, backwards, kernel, list(x.shape[3:]), x.shape[2], exact)
    parts = triton.cdiv(d.shape[1] * d.shape[3] * d.shape[4], PART)
    dw = gathered(windows_gradient(x, d, where, kernel, parts, _columns(w.shape[1]), exact).sum(1), w)
    return dx, dw, torch.where(where < NOWHERE.value, d, 0.0).sum((1, 3, 4))


def spread(w: Tensor) -> Tensor:
    """The matrix of w (n, O, C, k, l): from windows of (k+1) × (l+1) pixels to 2 × 2 of each output.

    (n, C (k+1) (l+1), N): four columns for each output, which are w shifted by 0 or 1 pixels down and right.
    """
    shifted = torch.stack([F.pad(w, (j, 1 - j, i, 1 - i)) for i in (0, 1) for j in (0, 1)], 2)
    matrix = shifted.permute(0, 3, 4, 5, 1, 2).flatten(4, 5).flatten(1, 3)
    return F.pad(matrix, (0, _columns(w.shape[1]) - matrix.shape[2]))


def gathered(matrix: Tensor, w: Tensor) -> Tensor:
    """The gradient of w (n, O, C, k, l) from that of its matrix."""
    n, o, c, k, l = w.shape
    parts = matrix[..., : 4 * o].reshape(n, c, k + 1, l + 1, o, 2, 2)
    shifted = [parts[:, :, i : i + k, j : j + l, :, i, j] for i in (0, 1) for j in (0, 1)]
    return sum(shifted[1:], shifted[0]).permute(0, 4, 1, 2, 3)


def _columns(outputs: int) -> int:
    return max(16, int(triton.next_power_of_2(4 * outputs)))


def _precision(exact: bool) -> str:
    return "ieee" if exact else "tf32"
