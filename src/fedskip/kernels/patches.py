"""Convolutions as products of patches: for many small models much faster than grouped convolutions.

A convolution is a product of its weights with the patches of its input. Under `vmap` that product is one
batched matmul for all models. The convolution itself would become a grouped one, whose kernels are made
for few large groups. All sums have a fixed order, so bits repeat. Where the kernels of `convolution.py` can
be used, they compute the same without storing the patches.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDEST = 16  # up to so many channels, `convolution.py` was measured and is faster
ALIGNED = 4  # tensor cores want rows of a multiple of 4 numbers (16 bytes)


class PatchConv2d(nn.Conv2d):
    """An `nn.Conv2d` without stride, padding or groups; it shares the parameters of the one it replaces.

    With `pool` it also computes the ReLU and the 2 × 2 max pool after it: the four patches of a pooled
    pixel lie side by side, so that the maximum follows the products directly.
    """

    precisions = ("fp32", "tf32")  # that the kernels are for

    def __init__(self, conv: nn.Conv2d, pool: bool = False, kernels: bool = False) -> None:
        """`kernels`: use those of `convolution.py` where they can be used."""
        nn.Module.__init__(self)
        self.__dict__.update(conv.__dict__)
        self.pool = pool
        narrow = max(conv.weight.shape[:2]) <= WIDEST
        self.kernels = kernels and pool and conv.bias is not None and narrow

    def try_kernels(self, device: torch.device, precision: str) -> bool:
        """Whether the kernels run here, in this layer's sizes, and give what torch does for whole numbers."""
        from fedskip.kernels.convolution import conv_relu_pool, gradients

        outputs, c, high, wide = self.weight.shape
        exact = precision == "fp32"
        x, w, b = _whole(1, c, high + 3, wide + 6), _whole(outputs, c, high, wide), _whole(outputs)
        with torch.enable_grad():
            y = F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2)
            expected = y, *torch.autograd.grad(y.sum(), (x, w, b))
        x, w, b = (t.detach().to(device)[None] for t in (x, w, b))
        y, where = conv_relu_pool(x, w, b, exact)
        computed = y, *gradients(torch.ones_like(y), x, w, where, exact)
        pairs = zip(computed, expected, strict=True)
        return all(torch.equal(one[0].cpu(), other) for one, other in pairs)

    def forward(self, x: Tensor) -> Tensor:
        device, dtype = x.device.type, x.dtype
        autocast = torch.is_autocast_enabled(device)
        if self.kernels and dtype == torch.float32 and not autocast:
            from fedskip.kernels.convolution import ConvReluPool

            exact = not torch.backends.cuda.matmul.allow_tf32
            found: tuple[Tensor, Tensor] = ConvReluPool.apply(x, self.weight, self.bias, exact)
            return found[0]
        if autocast:  # which reaches neither of the two functions below
            dtype = torch.get_autocast_dtype(device)
        # (B, H', W', 4, K), or 1 for 4
        patches = Patches.apply(x.to(dtype), *self.kernel_size, self.pool)
        weight = self.weight.flatten(1).to(dtype)  # (O, C k l)
        outputs = len(weight)
        wider = 0, patches.shape[-1] - weight.shape[1], 0, -outputs % (2 * ALIGNED)
        weight = F.pad(weight, wider)
        y = Product.apply(patches.flatten(1, 3), weight)[..., :outputs]
        y = pooled(y.unflatten(1, patches.shape[1:4]))  # (B, H', W', 4, O) → (B, H', W', O)
        y = y if self.bias is None else y + self.bias
        y = F.relu(y) if self.pool else y
        return y.permute(0, 3, 1, 2).contiguous()  # as from a convolution


def _whole(*shape: int) -> Tensor:
    """Small whole numbers, not all the same."""
    return (torch.arange(math.prod(shape)) % 7 - 3.0).view(shape).requires_grad_()


def pooled(y: Tensor) -> Tensor:
    """The maximum over the last dimension but one; of equal numbers the first gets the gradient."""
    first, *others = y.unbind(-2)
    for other in others:
        first = torch.where(first >= other, first, other)
    return first


def as_patches(module: nn.Module, kernels: bool = False) -> nn.Module:
    """Replace the convolutions of a module by `PatchConv2d` where possible, in place."""
    children = list(module.named_children())
    in_a_row = type(module).forward is nn.Sequential.forward
    for i, (name, child) in enumerate(children):
        if type(child) is nn.Conv2d and _is_plain(child):
            after = [part for _, part in children[i + 1 : i + 3]] if in_a_row else []
            pool = len(after) == 2 and type(after[0]) is nn.ReLU and _halves(after[1])
            pool = pool and not any(hooked(part) for part in after)
            setattr(module, name, PatchConv2d(child, pool, kernels))
            if pool:
                for done, _ in children[i + 1 : i + 3]:
                    setattr(module, done, nn.Identity())
        else:
            as_patches(child, kernels)
    return module


def hooked(part: nn.Module) -> bool:
    """Whether a module has hooks, which a layer in its place would not call."""
    return any(hooks for name, hooks in vars(part).items() if name.endswith("_hooks"))


def _is_plain(conv: nn.Conv2d) -> bool:
    shape = conv.stride, conv.padding, conv.dilation, conv.groups
    return shape == ((1, 1), (0, 0), (1, 1), 1) and not hooked(conv)


def _halves(pool: nn.Module) -> bool:
    plain = type(pool) is nn.MaxPool2d and not pool.return_indices and not pool.ceil_mode
    sizes = [getattr(pool, name, None) for name in ("kernel_size", "stride", "padding", "dilation")]
    return plain and [size if isinstance(size, int) else None for size in sizes] == [2, 2, 0, 1]


class Patches(torch.autograd.Function):
    """All k × l windows of x (B, C, H, W) as rows, (B, H', W', 1, C k l), filled up with zeros.

    With `pool`, (B, H'/2, W'/2, 4, C k l): the four windows of a pooled pixel together, without an odd rest.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, k: int, l: int, pool: bool) -> Tensor:  # noqa: E741
        windows = x.unfold(2, k, 1).unfold(3, l, 1)  # (B, C, H', W', k, l)
        side = 2 if pool else 1
        high, wide = (s // side for s in windows.shape[2:4])
        windows = windows[:, :, : high * side, : wide * side]
        # (B, C, h, 2, w, 2, k, l)
        windows = windows.unflatten(3, (wide, side)).unflatten(2, (high, side))
        rows = windows.permute(0, 2, 4, 3, 5, 1, 6, 7).flatten(5).flatten(3, 4)
        return F.pad(rows, (0, -rows.shape[-1] % ALIGNED))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, *ctx.kernel, ctx.pool = inputs
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:
        (k, l), (_, c, height, width) = ctx.kernel, ctx.shape  # noqa: E741
        side = 2 if ctx.pool else 1
        # (B, h, w, 2, 2, c, k, l)
        d = d[..., : c * k * l].unflatten(4, (c, k, l)).unflatten(3, (side, side))
        d = d.permute(6, 7, 0, 5, 1, 3, 2, 4).flatten(6, 7).flatten(4, 5)  # (k, l, B, C, H', W')
        below, beside = height - d.shape[4], width - d.shape[5]
        # a pixel is in up to k l windows: each place in the window is a picture of its own, shifted
        shifted = [
            F.pad(d[i, j], (j, beside - j, i, below - i)) for i in range(k) for j in range(l)
        ]
        return sum(shifted[1:], shifted[0]), None, None, None


class Product(torch.autograd.Function):
    """patches (B, L, K) times weight (O, K): (B, L, O)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(patches: Tensor, weight: Tensor) -> Tensor:
        return F.linear(patches, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:
        patches, weight = ctx.saved_tensors
        # sample by sample and then summed: one long sum for each row would leave most of a GPU idle
        return d @ weight, (d.transpose(1, 2) @ patches).sum(0)
