"""How numbers are rounded: the precision of products, and whether sums repeat their bits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

# cuBLAS repeats its bits only with this, and reads it once, when it is first used
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

Output = TypeVar("Output", Tensor, tuple[Tensor, Tensor])


@dataclass(frozen=True)
class Arithmetic:
    """Weights, momentum and merges are float32 (float64 for fp64); the model has a `precision` of its own.

    fp32 is exact to float32, tf32 rounds the factors of matrix products and convolutions to 10 bits, bf16
    computes the model in bfloat16. `deterministic` takes only kernels that give the same bits every time.
    """

    precision: str = "fp32"
    deterministic: bool = True

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.precision == "fp64" else torch.float32

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Inside, torch picks kernels accordingly; outside, as before."""
        if not torch.cuda.is_available():
            yield
            return
        before = _flags()
        tf32 = self.precision == "tf32"
        _set_flags(tf32, tf32, self.deterministic, False, self.deterministic, False, False)
        try:
            yield
        finally:
            _set_flags(*before)

    def compute(self, model: Callable[[Tensor], Output], x: Tensor) -> Output:
        """What a model gives for x: computed in the precision, handed over in the weights' own."""
        if self.precision != "bf16":
            return model(x)
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            output = model(x)
        given: Output = tree_map(lambda t: t.to(self.dtype), output)
        return given


def _flags() -> tuple[bool, ...]:
    return (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    )


def _set_flags(
    matmul_tf32: bool,
    cudnn_tf32: bool,
    cudnn: bool,
    benchmark: bool,
    algorithms: bool,
    warn_only: bool,
    fill: bool,
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = matmul_tf32
    torch.backends.cudnn.allow_tf32 = cudnn_tf32
    torch.backends.cudnn.deterministic = cudnn
    torch.backends.cudnn.benchmark = benchmark
    torch.use_deterministic_algorithms(algorithms, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


EXACT = Arithmetic()
