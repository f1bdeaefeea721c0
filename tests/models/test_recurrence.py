"""An LSTM layer in one kernel, beside single steps; Triton's interpreter has no loops over a number as T."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from fedskip.engine.arithmetic import Arithmetic

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICE = torch.device("cuda")


@pytest.mark.parametrize("size", [1.0, 1e-9])
@pytest.mark.parametrize(("batch", "steps", "units"), [(64, 80, 100), (5, 3, 17), (16, 1, 128)])
def test_recurrence_kernels(batch: int, steps: int, units: int, size: float) -> None:
    """A layer of two models under vmap, beside single steps in float64; also where gradients are tiny.

    Its error is that of products in tf32, which cuBLAS has in single steps unless their sizes are odd.
    """
    from fedskip.models.lstm import Recurrence
    from fedskip.models.recurrence import Fused

    torch.manual_seed(0)
    gates = torch.randn(2, batch, steps, 4 * units, device=DEVICE)
    b, w = (
        torch.randn(2, 4 * units, device=DEVICE),
        torch.randn(2, 4 * units, units, device=DEVICE) / units**0.5,
    )
    d = size * torch.randn(batch, steps, units, device=DEVICE)

    def one_by_one(gates: Tensor, b: Tensor, w: Tensor) -> Tensor:
        return Recurrence.apply(gates + b, w)[0]  # type: ignore[no-any-return]

    def together(gates: Tensor, b: Tensor, w: Tensor) -> Tensor:
        return Fused.apply(gates, b, w)[0]  # type: ignore[no-any-return]

    def found(function: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        def loss(*tensors: Tensor) -> tuple[Tensor, Tensor]:
            h = function(*tensors)
            return (h * d.to(dtype)).sum(), h

        inputs = (t.to(dtype) for t in (gates, b, w))
        gradients, h = vmap(grad(loss, argnums=(0, 1, 2), has_aux=True))(*inputs)
        return [h.double(), *(g.double() for g in gradients)]

    expected = found(one_by_one, torch.float64)
    with Arithmetic("tf32", deterministic=True).kernels():
        stepwise, fused = found(one_by_one, torch.float32), found(together, torch.float32)
    for exact, before, here in zip(expected, stepwise, fused, strict=True):
        assert here.shape == exact.shape
        assert (here - exact).norm() <= 1.25 * max((before - exact).norm(), 2e-4 * exact.norm())
