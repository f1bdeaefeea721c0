"""How numbers are rounded: the precision of products, and whether sums repeat their bits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

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

    @classmethod
    def on(
        cls, device: torch.device, precision: str | None = None, deterministic: bool = True
    ) -> Arithmetic:
        """The arithmetic of a device; `precision`: None for tf32 on a GPU, fp32 on a CPU."""
        return cls(precision or ("fp32" if device.type == "cpu" else "tf32"), deterministic)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.precision == "fp64" else torch.float32

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Inside, torch picks kernels accordingly; outside, as before."""
        if not torch.cuda.is_available():
            yield
            return
        before = [getattr(*flag) for flag in _FLAGS], torch.are_deterministic_algorithms_enabled()
        warned = torch.is_deterministic_algorithms_warn_only_enabled()
        tf32, sure = self.precision == "tf32", self.deterministic
        _set_flags([tf32, tf32, sure, False, False], sure, False)
        try:
            yield
        finally:
            _set_flags(*before, warned)

    def compute(self, model: Callable[[Tensor], Output], x: Tensor) -> Output:
        """What a model gives for x: computed in the precision, handed over in the weights' own."""
        if self.precision != "bf16":
            return model(x)
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            output = model(x)
        given: Output = tree_map(lambda t: t.to(self.dtype), output)
        return given


EXACT = Arithmetic()


# what torch picks kernels by, besides `use_deterministic_algorithms`
_FLAGS: list[tuple[Any, str]] = [
    (torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cudnn, "deterministic"), (torch.backends.cudnn, "benchmark"),
    (torch.utils.deterministic, "fill_uninitialized_memory"),
]  # fmt: skip


def _set_flags(values: list[bool], sure: bool, warn_only: bool) -> None:
    for (owner, name), value in zip(_FLAGS, values, strict=True):
        setattr(owner, name, value)
    torch.use_deterministic_algorithms(sure, warn_only=warn_only)


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Inside, torch has this number of threads. Sums come out alike only for the same number."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def spread(workers: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` over several threads with one torch thread each: results do not depend on their number."""
    with (
        torch_threads(1),
        ThreadPoolExecutor(workers, "fedskip", torch.set_num_threads, (1,)) as pool,
    ):
        yield pool.map if workers > 1 else map
