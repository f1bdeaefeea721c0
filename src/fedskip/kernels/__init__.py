"""Layers computed for many small models at once, and their GPU kernels (Triton and CUDA C++)."""

from typing import Any

from torch import Tensor


def models_first(info: Any, dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> list[Any]:
    """What `vmap` gives to an `autograd.Function` with its own batching rule, the dimension of models first.

    Tensors that all models share are expanded.
    """
    moved = []
    for value, dim in zip(inputs, dims, strict=True):
        if isinstance(value, Tensor):
            n = info.batch_size
            value = value.expand(n, *value.shape) if dim is None else value.movedim(dim, 0)
        moved.append(value)
    return moved
