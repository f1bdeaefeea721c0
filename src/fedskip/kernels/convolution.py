"""Convolution, ReLU and 2 × 2 max pool for many small models in one launch, by kernels in Triton.

The kernels multiply windows of images by a matrix. Results come in blocks of 2 × 4 pixels, which are two
pooled pixels, for all outputs. A k × l convolution gives such a block as the product of one window of R × S =
(k+1) × (l+3) pixels with a matrix that holds the weights eight times, shifted (`spread`). Windows are read in
place and never copied: the channels of a pixel lie side by side, so that a row of a window is contiguous. The
forward pass pools the products at once. The gradient of the input is the same product with other windows. The
gradient of the weights is that of the matrix, its eight parts summed. All sums have a fixed order, so bits
repeat. An infinite pixel makes its whole block infinite or NaN, since the matrix multiplies it by zeros.

Shapes, as torch has them: x (n, B, C, H, W), w (n, O, C, k, l), b (n, O); the pooled y, its gradient d and
`where` (n, B, O, h, w), which says which pixel of each 2 × 2 was the largest, or NOWHERE if ReLU cut it off.
Kernels take x as (n, B, H, W, C) and the matrix (n, N, R S C). `exact` means float32 instead of tf32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from fedskip.kernels import models_first

NOWHERE = tl.constexpr(4)
CELLS = tl.constexpr(2)  # pooled pixels of a block, side by side
# the fastest sizes for the paper's CNN on an H200 (docs/lab.md)
TILE = 128  # blocks that a program computes at a time
STEP = 32  # numbers of their windows that it multiplies at a time
WARPS, STAGES = 8, 3
PART, PARTS = 640, 3  # a program sums the weight gradients of about 640 blocks; at least 3 programs
PART_STEP = 64  # numbers of their windows that it multiplies at a time
MANY = 1024  # weights of a matrix that a program writes
PRECISION = {True: "ieee", False: "tf32"}  # of products, by `exact`


class ConvReluPool(torch.autograd.Function):
    """The pooled y (B, O, h, w) and `where` of x (B, C, H, W) for one model; under `vmap` for n models."""

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
        return *ConvReluPoolGradients.apply(d, *ctx.saved_tensors, ctx.exact), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        return conv_relu_pool(*models_first(info, in_dims, inputs)), (0, 0)


class ConvReluPoolGradients(torch.autograd.Function):
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
    return windows_pooled(channels_last(x), spread(w), b, window_of(w), exact)


def gradients(
    d: Tensor, x: Tensor, w: Tensor, where: Tensor, exact: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, w and b from d, that of y. Tracing a step leaves out those that are not used."""
    (outputs, high, wide), (k, l), window = d.shape[2:], w.shape[3:], window_of(w)
    corners = torch.arange(4, device=d.device)
    # the gradient goes to the pixel that was the largest
    g = torch.where(where[..., None] == corners, d[..., None], 0.0)
    g = g.unflatten(-1, (2, 2)).transpose(4, 5).flatten(5, 6).flatten(3, 4)  # (n, B, O, 2h, 2w)
    rest = [2 * triton.cdiv(x.shape[3], 2) - 2 * high, x.shape[4] - 2 * wide]
    g = F.pad(g, (l - 1, rest[1], k - 1, rest[0]))
    backwards = spread(w.flip(3, 4).transpose(1, 2))
    dx = windows_joined(channels_last(g), backwards, window, list(x.shape[3:]), x.shape[2], exact)
    dw = windows_gradient(
        channels_last(x), d, where, window, parts_of(d), columns_of(outputs), exact
    )
    return dx, gathered(dw.sum(1), w), torch.where(where < NOWHERE.value, d, 0.0).sum((1, 3, 4))


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 1, 3, 4, 2).contiguous()


def gathered(matrix: Tensor, w: Tensor) -> Tensor:
    """The gradient of w (n, O, C, k, l): the sum of its eight shifted copies in that of the matrix."""
    n, o, c, k, l = w.shape
    parts = matrix.unflatten(1, (2, 2, -1))[:, :, :, : CELLS.value * o]
    parts = parts.reshape(n, 2, 2, CELLS.value, o, *window_of(w), c)
    shifted = [
        parts[:, i, j, cell, :, i : i + k, j + 2 * cell : j + 2 * cell + l]
        for i in (0, 1)
        for j in (0, 1)
        for cell in range(CELLS.value)
    ]
    return sum(shifted[1:], shifted[0]).permute(0, 1, 4, 2, 3)


# --- kernels ----------------------------------------------------------------------------------------------


@triton.jit
def _spread(
    w, matrix, O: tl.constexpr, C: tl.constexpr, TALL: tl.constexpr, BROAD: tl.constexpr, N: tl.constexpr,
    MANY: tl.constexpr,
):  # fmt: skip
    """Write the matrix of a convolution of TALL × BROAD pixels."""
    S: tl.constexpr = BROAD - 1 + 2 * CELLS
    K: tl.constexpr = (TALL + 1) * S * C
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * MANY + tl.arange(0, MANY)
    corner, column, k = at // K // (N // 4), at // K % (N // 4), at % K
    down, right = k // (S * C) - corner // 2, k // C % S - corner % 2 - column // O * 2
    inside = (column < CELLS * O) & (down >= 0) & (down < TALL) & (right >= 0) & (right < BROAD)
    place = ((column % O * C + k % C) * TALL + down) * BROAD + right
    weight = tl.load(w + row * (O * C * TALL * BROAD) + place, inside & (at < N * K), 0.0)
    tl.store(matrix + row * (N * K) + at, weight, at < N * K)


@triton.jit
def _places(at, B, HIGH: tl.constexpr, ACROSS: tl.constexpr):
    """The sample, row and column of each block, and whether it exists."""
    block = at % (HIGH * ACROSS)
    return at // (HIGH * ACROSS), block // ACROSS, block % ACROSS, at < B * HIGH * ACROSS


@triton.jit
def _windows(
    x, sample, down, right, inside, k, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    S: tl.constexpr,
):  # fmt: skip
    """The k-th numbers of the windows of these blocks; zero beyond the edge of the image."""
    column = (right * (2 * CELLS * C))[:, None] + (k % (S * C))[None, :]
    corner = sample * (H * W * C) + down * (2 * W * C)
    place = corner[:, None] + (k // (S * C) * (W * C))[None, :] + column
    return tl.load(x + place, inside[:, None] & (k < R * S * C)[None, :] & (column < W * C), 0.0)


@triton.jit
def _blocks(
    x, matrix, B, row, sample, down, right, inside, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, N: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The windows (TILE, R S C) of x at these blocks, times the matrix: (TILE, N)."""
    K: tl.constexpr = R * S * C
    x += row * B * (H * W * C)
    matrix += row * (N * K)
    column = tl.arange(0, N)
    total = tl.zeros((TILE, N), tl.float32)
    for first in range(0, K, STEP):
        k = first + tl.arange(0, STEP)
        window = _windows(x, sample, down, right, inside, k, C, H, W, R, S)
        weight = tl.load(matrix + (column[None, :] * K + k[:, None]), (k < K)[:, None], 0.0)
        total = tl.dot(window, weight, total, input_precision=PRECISION)
    return total


@triton.jit
def _pooled_places(
    sample, down, right, inside, column, O: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """The places in (B, O, h, w) of the pooled pixels of these blocks, and whether they exist."""
    wide = (right * CELLS)[:, None] + (column // O)[None, :]
    to = (
        (sample * (O * HIGH * WIDE) + down * WIDE)[:, None]
        + (column % O * (HIGH * WIDE))[None, :]
        + wide
    )
    return to, inside[:, None] & (column < CELLS * O)[None, :] & (wide < WIDE)


@triton.jit
def _pooled_blocks(
    x, matrix, b, y, where, B, O: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, C: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, R: tl.constexpr, S: tl.constexpr, N: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    sample, down, right, inside = _places(at, B, HIGH, tl.cdiv(WIDE, CELLS))
    total = _blocks(
        x, matrix, B, row, sample, down, right, inside, C, H, W, R, S, N, TILE, STEP, PRECISION
    )  # fmt: skip
    upper, lower = tl.split(tl.permute(tl.reshape(total, (TILE, 2, 2, N // 4)), (0, 3, 2, 1)))
    first, second = tl.split(upper)
    third, fourth = tl.split(lower)
    # the first of equal numbers wins; if all are NaN, so is the result
    keep = first >= second
    found, best = tl.where(keep, 0, 1), tl.where(keep, first, second)
    keep = best >= third
    found, best = tl.where(keep, found, 2), tl.where(keep, best, third)
    keep = best >= fourth
    found, best = tl.where(keep, found, 3), tl.where(keep, best, fourth)
    column = tl.arange(0, N // 4)
    best += tl.load(b + row * O + column % O, column < CELLS * O, 0.0)[None, :]
    off = best <= 0
    to, there = _pooled_places(sample, down, right, inside, column, O, HIGH, WIDE)
    to += row * B * (O * HIGH * WIDE)
    tl.store(y + to, tl.where(off, 0.0, best), there)
    tl.store(where + to, tl.where(off, NOWHERE, found).to(tl.uint8), there)


@triton.jit
def _joined_blocks(
    x, matrix, out, B, O: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, C: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, R: tl.constexpr, S: tl.constexpr, N: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    sample, down, right, inside = _places(at, B, tl.cdiv(HIGH, 2), tl.cdiv(WIDE, 2 * CELLS))
    total = _blocks(
        x, matrix, B, row, sample, down, right, inside, C, H, W, R, S, N, TILE, STEP, PRECISION
    )  # fmt: skip
    corner, column = tl.arange(0, N) // (N // 4), tl.arange(0, N) % (N // 4)
    high = (down * 2)[:, None] + (corner // 2)[None, :]
    wide = (right * (2 * CELLS))[:, None] + (column // O * 2 + corner % 2)[None, :]
    to = row * B * (O * HIGH * WIDE) + (sample * (O * HIGH * WIDE))[:, None]
    to += (column % O * (HIGH * WIDE))[None, :] + high * WIDE + wide
    there = inside[:, None] & (column < CELLS * O)[None, :] & (high < HIGH) & (wide < WIDE)
    tl.store(out + to, total, there)


@triton.jit
def _matrix_gradient(
    x, d, where, out, B, O: tl.constexpr, PART: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, R: tl.constexpr, S: tl.constexpr, N: tl.constexpr,
    TILE: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = R * S * C
    row = tl.program_id(2).to(tl.int64)
    k = tl.program_id(0) * STEP + tl.arange(0, STEP)
    column = tl.arange(0, N // 4)
    corner = tl.arange(0, N) // (N // 4)
    x += row * B * (H * W * C)
    d += row * B * (HIGH * WIDE * O)
    where += row * B * (HIGH * WIDE * O)
    total = tl.zeros((STEP, N), tl.float32)
    for first in range(0, PART, TILE):
        at = tl.program_id(1) * PART + first + tl.arange(0, TILE)
        sample, down, right, inside = _places(at, B, HIGH, tl.cdiv(WIDE, CELLS))
        window = _windows(x, sample, down, right, inside, k, C, H, W, R, S)
        # changes nothing, but makes Triton transpose windows in registers instead of while loading
        window = tl.where(inside[:, None], window, 0.0)
        of, there = _pooled_places(sample, down, right, inside, column, O, HIGH, WIDE)
        of, there = tl.trans(of), tl.trans(there)
        g, largest = tl.load(d + of, there, 0.0), tl.load(where + of, there, NOWHERE)
        g = tl.reshape(tl.broadcast_to(g[None, :, :], (4, N // 4, TILE)), (N, TILE))
        largest = tl.reshape(tl.broadcast_to(largest[None, :, :], (4, N // 4, TILE)), (N, TILE))
        g = tl.where(largest == corner[:, None], g, 0.0)
        total = tl.dot(tl.trans(window), tl.trans(g), total, input_precision=PRECISION)
    out += (row * tl.num_programs(1) + tl.program_id(1)) * (N * K)
    tl.store(out + tl.arange(0, N)[None, :] * K + k[:, None], total, (k < K)[:, None])


@torch.library.custom_op("fedskip::spread", mutates_args=())
def spread(w: Tensor) -> Tensor:
    """The matrix of w, (n, N, R S C): from windows of R × S pixels to the 2 × 4 pixels of a block.

    Its rows are w, shifted by 0 or 1 pixels down and 0 to 3 right, in the order of the corners of 2 × 2
    pixels, then of the pooled pixels, then of outputs. The rows of a corner are padded with zeros.
    """
    w, matrix = w.contiguous(), _matrix(w)
    _spread[(triton.cdiv(matrix[0].numel(), MANY), len(w))](
        w, matrix, *w.shape[1:], N=matrix.shape[1], MANY=MANY
    )
    return matrix


@spread.register_fake
def _matrix(w: Tensor) -> Tensor:
    high, wide = window_of(w)
    return w.new_empty(len(w), columns_of(w.shape[1]), high * wide * w.shape[2])


@torch.library.custom_op("fedskip::windows_pooled", mutates_args=())
def windows_pooled(
    x: Tensor, matrix: Tensor, b: Tensor, window: list[int], exact: bool
) -> tuple[Tensor, Tensor]:
    """y and `where`: each window of R × S pixels times the matrix (n, N, R S C), pooled."""
    x, matrix, b = x.contiguous(), matrix.contiguous(), b.contiguous()
    n, batch, height, width, c = x.shape
    y, where = _windows_pooled(x, matrix, b, window, exact)
    outputs, high, wide = y.shape[2:]
    _pooled_blocks[(triton.cdiv(blocks_of(batch, high, wide), TILE), n)](
        x, matrix, b, y, where, batch, outputs, high, wide, c, height, width, *window,
        N=matrix.shape[1], TILE=TILE, STEP=STEP, PRECISION=PRECISION[exact],
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return y, where


@windows_pooled.register_fake
def _windows_pooled(
    x: Tensor, matrix: Tensor, b: Tensor, window: list[int], exact: bool
) -> tuple[Tensor, Tensor]:
    margin = [window[0] - 2, window[1] - 2 * CELLS.value]  # what a convolution takes off
    size = [(side - off) // 2 for side, off in zip(x.shape[2:4], margin, strict=True)]
    shape = (*x.shape[:2], b.shape[1], *size)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)


@torch.library.custom_op("fedskip::windows_joined", mutates_args=())
def windows_joined(
    x: Tensor, matrix: Tensor, window: list[int], size: list[int], outputs: int, exact: bool
) -> Tensor:
    """Each window times the matrix, as images (n, B, outputs, *size)."""
    x, matrix = x.contiguous(), matrix.contiguous()
    (n, batch, height, width, c), (high, wide) = x.shape, size
    out = _windows_joined(x, matrix, window, size, outputs, exact)
    blocks = blocks_of(batch, triton.cdiv(high, 2), triton.cdiv(wide, 2))
    _joined_blocks[(triton.cdiv(blocks, TILE), n)](
        x, matrix, out, batch, outputs, high, wide, c, height, width, *window,
        N=matrix.shape[1], TILE=TILE, STEP=STEP, PRECISION=PRECISION[exact],
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out


@windows_joined.register_fake
def _windows_joined(
    x: Tensor, matrix: Tensor, window: list[int], size: list[int], outputs: int, exact: bool
) -> Tensor:
    return x.new_empty(*x.shape[:2], outputs, *size)


@torch.library.custom_op("fedskip::windows_gradient", mutates_args=())
def windows_gradient(
    x: Tensor, d: Tensor, where: Tensor, window: list[int], parts: int, columns: int, exact: bool
) -> Tensor:
    """The gradient of the matrix in parts that the caller sums, (n, parts, columns, R S C).

    Its shape follows from its arguments alone: torch's cache of compiled code knows nothing else.
    """
    x, d, where = x.contiguous(), d.contiguous(), where.contiguous()
    (n, batch, height, width, c), (outputs, high, wide) = x.shape, d.shape[2:]
    out = _windows_gradient(x, d, where, window, parts, columns, exact)
    # exact products keep all their numbers in registers
    tile, warps = (16, 8) if exact else (64, 4)
    part = triton.cdiv(blocks_of(batch, high, wide), parts * tile) * tile
    _matrix_gradient[(triton.cdiv(out.shape[3], PART_STEP), parts, n)](
        x, d, where, out, batch, outputs, part, high, wide, c, height, width, *window,
        N=columns, TILE=tile, STEP=PART_STEP, PRECISION=PRECISION[exact],
        num_warps=warps, num_stages=1,
    )  # fmt: skip
    return out


@windows_gradient.register_fake
def _windows_gradient(
    x: Tensor, d: Tensor, where: Tensor, window: list[int], parts: int, columns: int, exact: bool
) -> Tensor:
    return x.new_empty(len(x), parts, columns, window[0] * window[1] * x.shape[4])


def window_of(w: Tensor) -> list[int]:
    """R × S, the size of the window that a block depends on."""
    return [w.shape[3] + 1, w.shape[4] - 1 + 2 * CELLS.value]


def columns_of(outputs: int) -> int:
    """N, the columns of a product: the same power of two for each of the four corners of 2 × 2 pixels."""
    return 4 * max(4, int(triton.next_power_of_2(CELLS.value * outputs)))


def parts_of(d: Tensor) -> int:
    """The number of parts in which the gradient of the matrix is summed."""
    _, batch, _, high, wide = d.shape
    return max(PARTS, blocks_of(batch, high, wide) // PART)


def blocks_of(batch: int, high: int, wide: int) -> int:
    """The number of blocks in `batch` images of `high` × `wide` pooled pixels."""
    return batch * high * int(triton.cdiv(wide, CELLS.value))
