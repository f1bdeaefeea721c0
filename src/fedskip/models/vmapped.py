"""What `vmap` gives to an `autograd.Function` with a rule of its own."""

from typing import Any

from torch import Tensor


def models_first(info: Any, dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> list[Any]:
    """The inputs with their models first; a tensor that all models share stands for each of them."""
    found = []
    for value, dim in zip(inputs, dims, strict=True):
        if isinstance(value, Tensor):
            value = value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
        found.append(value)
    return found
