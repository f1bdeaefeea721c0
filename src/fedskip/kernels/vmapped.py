"""Prepares the inputs that `vmap` gives to an `autograd.Function` with its own batching rule."""

from typing import Any

from torch import Tensor


def models_first(info: Any, dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> list[Any]:
    """The inputs with the dimension of models first; tensors that all models share are expanded."""
    moved = []
    for value, dim in zip(inputs, dims, strict=True):
        if isinstance(value, Tensor):
            n = info.batch_size
            value = value.expand(n, *value.shape) if dim is None else value.movedim(dim, 0)
        moved.append(value)
    return moved
