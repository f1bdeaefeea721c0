"""Convolution, ReLU and 2 × 2 max pool for many small models in one launch, by the kernels of `windows.py`.

The forward pass pools the products of windows at once. The gradient of the input is the same product
with other windows. The gradient of the weights is that of the matrix, its eight parts summed.

Shapes, as torch has them: x (n, B, C, H, W), w (n, O, C, k, l), b (n, O), y and `where` (n, B, O, h, w).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from fedskip.kernels.vmapped import models_first
from fedskip.kernels.windows import (
    CELLS,
    NOWHERE,
    columns_of,
    parts_of,
    spread,
    window_of,
    windows_gradient,
    windows_joined,
    windows_pooled,
)


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
