"""What a data set is: one pool of samples, who owns each, and how train and test are told apart.

All splitting is done with indices into the pool: clients, the pooled test set and the validation set
are index arrays, so that runs with different seeds share one copy of the data on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Samples(Protocol):
    """The pool: `take` gathers samples by index, for index tensors of any shape."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets at `index` (...): x (..., *sample shape), y (..., *target shape)."""
        ...

    def labels(self) -> np.ndarray:
        """The targets of the whole pool on the host, (n, ...): what partitioners look at."""
        ...

    def to(self, device: torch.device, dtype: torch.dtype) -> Samples:
        """The pool on a device; floating inputs and targets in `dtype`, integers as they are."""
        ...


@dataclass(frozen=True)
class Arrays:
    """Samples held as two arrays, x (n, ...) and y (n, ...)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        if index.dim() == 1:
            return self.x.index_select(0, index), self.y.index_select(0, index)
        flat = index.reshape(-1)  # index_select on a flat index is several times faster than x[index]
        x, y = self.x.index_select(0, flat), self.y.index_select(0, flat)
        return x.reshape(index.shape + self.x.shape[1:]), y.reshape(index.shape + self.y.shape[1:])

    def labels(self) -> np.ndarray:
        return self.y.cpu().numpy()

    def to(self, device: torch.device, dtype: torch.dtype) -> Arrays:
        def moved(t: Tensor) -> Tensor:
            return t.to(device, dtype if t.is_floating_point() else t.dtype)

        return Arrays(moved(self.x), moved(self.y))


Split = tuple[np.ndarray, np.ndarray]
TrainTransform = Callable[[Tensor, Tensor], Tensor]  # x (m, ...), one 32-bit word per sample (m,)
TestTransform = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Dataset:
    """A named pool with its split and the paper's setting for it.

    `split(seed)` gives the pool indices of the training and the test samples; a data set with an
    official test set ignores the seed. `owner` is the natural client of every sample (a writer, a
    role), or None. `defaults` holds what a study uses unless told otherwise, by dotted key:
    `model.name`, `partition.kind`, `clients`, `cohort`, ...
    """

    name: str
    samples: Samples
    split: Callable[[int], Split]
    classes: int | None = None
    owner: np.ndarray | None = None
    owner_names: tuple[str, ...] | None = None
    train_transform: TrainTransform | None = None
    test_transform: TestTransform | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
