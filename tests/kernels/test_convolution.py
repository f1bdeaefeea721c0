"""Convolutions by our kernels beside torch's: on a GPU, or number by number on a CPU by Triton's interpreter.

    TRITON_INTERPRET=1 python -m pytest tests/kernels/test_convolution.py

The interpreter has no tf32, and says nothing of speed; but a wrong place or mask shows in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from fedskip.kernels.patches import PatchConv2d
from fedskip.models import build
from fedskip.models.forms import functional

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() or INTERPRETED),
    reason="neither a CUDA device nor Triton's interpreter",
)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")


@pytest.mark.parametrize(("exact", "far"), [(True, 1e-5), (False, 0.05)])
@pytest.mark.parametrize(
    ("batch", "shape", "outputs", "kernel"),
    [
        (4, (3, 32, 32), 6, (5, 5)),
        (3, (6, 14, 14), 16, (5, 5)),
        (2, (3, 9, 12), 20, (3, 4)),
        (5, (2, 7, 13), 3, (1, 1)),
        (2, (2, 11, 17), 3, (2, 7)),
        (1, (1, 4, 4), 1, (3, 3)),
    ],
)
def test_convolution_kernels(
    batch: int,
    shape: tuple[int, ...],
    outputs: int,
    kernel: tuple[int, int],
    exact: bool,
    far: float,
) -> None:
    """Two models on the same pictures under vmap, next to torch's convolution, ReLU and pool in float64."""
    from fedskip.kernels.convolution import ConvReluPool

    torch.manual_seed(0)
    x = torch.randn(batch, *shape, device=DEVICE)
    w = torch.randn(2, outputs, shape[0], *kernel, device=DEVICE)
    b = torch.randn(2, outputs, device=DEVICE)

    def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return ConvReluPool.apply(x, w, b, exact)[0]  # type: ignore[no-any-return]

    def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(F.conv2d(x.double(), w.double(), b.double())), 2)

    def loss(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
        def squares(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            y = function(x, w, b)
            return (y * y).sum(), y

        return squares

    found, expected = (
        vmap(grad(loss(function), argnums=(0, 1, 2), has_aux=True), in_dims=(None, 0, 0))(x, w, b)
        for function in (ours, plain)
    )
    for here, there in zip((*found[0], found[1]), (*expected[0], expected[1]), strict=True):
        assert here.shape == there.shape
        assert (here - there).norm() < far * there.norm()


def test_a_model_that_is_broken_breaks_no_other() -> None:
    """Not a bit of another model's row, wherever a window of the broken one may reach."""
    from fedskip.kernels.convolution import conv_relu_pool, gradients

    torch.manual_seed(0)
    x, w = torch.randn(3, 2, 3, 9, 10, device=DEVICE), torch.randn(3, 5, 3, 3, 4, device=DEVICE)
    b = torch.randn(3, 5, device=DEVICE)

    def found(x: Tensor, w: Tensor) -> list[Tensor]:
        y, where = conv_relu_pool(x, w, b, True)
        return [y, *gradients(torch.ones_like(y), x, w, where, True)]

    whole = found(x, w)
    x[1], w[1] = torch.nan, torch.inf
    for before, after in zip(whole, found(x, w), strict=True):
        assert torch.equal(before[::2], after[::2])


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("name", ["cnn", "cnn-femnist"])
def test_the_trial_before_a_study_passes(name: str, precision: str) -> None:
    form = functional(build(name), patches=True, kernels=True)
    parts = [part for part in form.modules() if isinstance(part, PatchConv2d)]
    assert [part.try_kernels(DEVICE, precision) for part in parts] == [True, True]


def test_what_comes_out_may_be_viewed() -> None:
    """As what comes from a convolution, which people flatten with `view`."""

    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2))

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layers(x)
            return found.view(len(x), -1)

    form = functional(Viewed(), patches=True, kernels=True).to(DEVICE)
    assert any(isinstance(part, PatchConv2d) and part.kernels for part in form.modules())
    x = torch.randn(2, 1, 8, 8, device=DEVICE)
    assert form(x).shape == (2, 27)
    assert vmap(form)(x[None]).shape == (1, 2, 27)
