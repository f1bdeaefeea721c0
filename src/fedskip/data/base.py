"""What a data set is: one pool of samples, who owns each, and how train and test are told apart.

All splitting is done with indices into the pool: clients, the pooled test set and the validation set
are index arrays, so that runs with different seeds share one copy of the data on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedskip.input.errors import InputError, require, said
from fedskip.input.fit import fit


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


@dataclass(frozen=True, eq=False)  # two are equal if they are one: tensors have no plain equality
class Arrays:
    """Samples held as two arrays, x (n, ...) and y (n, ...)."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        for name in ("x", "y"):
            array = getattr(self, name)
            try:
                array = torch.as_tensor(array)
            except (TypeError, ValueError, RuntimeError) as error:
                rule = "must be a tensor or an array of numbers"
                raise InputError(f"data.{name}", rule, type(array).__name__, said(error)) from error
            require(f"data.{name}", array.dim() > 0, "must hold a number for each sample", array)
            object.__setattr__(self, name, array)
        rule = f"must have {len(self.x)} entries, one for each sample of x"
        require("data.y", len(self.x) == len(self.y), rule, len(self.y))

    def __repr__(self) -> str:
        shown = [f"{name}: {_shape(getattr(self, name).shape)} {getattr(self, name).dtype}" for name in "xy"]
        return f"Arrays({', '.join(shown).replace('torch.', '')})"

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


def _shape(shape: Sequence[int]) -> str:
    return "×".join(f"{size:,}" for size in shape)


Split = tuple[np.ndarray, np.ndarray]
TrainTransform = Callable[[Tensor, Tensor], Tensor]  # x (m, ...), one 32-bit word per sample (m,)
TestTransform = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named pool with its split and the paper's setting for it.

    `split(seed)` gives the pool indices of the training and the test samples; a data set with an
    official test set ignores the seed. `owner` is the natural client of every sample (a writer, a
    role), or None. `defaults` holds what a study uses unless told otherwise, by dotted key:
    `model.name`, `partition.kind`, `clients`, `cohort`, ... `standardize`: inputs get mean 0 and standard
    deviation 1, by the training samples of each partition seed. `notes` are said when a study begins.
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
    standardize: bool = False
    class_names: tuple[str, ...] | None = None
    input_names: tuple[str, ...] | None = None  # of the numbers of a sample
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "standardize", fit("data.standardize", self.standardize, bool))
        whole = all(hasattr(self.samples, name) for name in ("__len__", "take", "labels", "to"))
        fix = "give Arrays(x, y), or what has `take`, `labels`, `to` and a length as it does"
        require("data.samples", whole, "must be a pool of samples", type(self.samples).__name__, fix)
        require("data.split", callable(self.split), "must be a function of the seed", self.split)
        if self.classes is not None:
            object.__setattr__(self, "classes", fit("data.classes", self.classes, int))
            require("data.classes", self.classes >= 1, "must be >= 1", self.classes)
        if self.class_names is not None:
            rule = f"must have a name for each of {self.classes} classes"
            require("data.class_names", len(self.class_names) == self.classes, rule, len(self.class_names))
        if self.owner is None:
            return
        owner, samples = np.asarray(self.owner), len(self.samples)
        fix = "of names, make numbers with `names, owner = np.unique(names, return_inverse=True)`"
        whole = owner.dtype.kind in "iu" and owner.shape == (samples,)
        rule = f"must be {samples} whole numbers, one for each sample"
        require("data.owner", whole, rule, f"{owner.dtype} {owner.shape}", fix)
        least, most = int(owner.min(initial=0)), int(owner.max(initial=-1))
        require("data.owner", least >= -1, "must be numbered from 0 on, -1 for a sample of nobody", least)
        if self.owner_names is not None:
            rule = f"must have a name for each of {most + 1} owners"
            require("data.owner_names", len(self.owner_names) > most, rule, len(self.owner_names))
        object.__setattr__(self, "owner", owner)

    def __repr__(self) -> str:
        parts = [f"{len(self.samples):,} samples"]
        parts += [f"{self.classes:,} classes"] if self.classes else []
        if self.owner is not None:
            parts.append(f"{len(np.unique(self.owner[self.owner >= 0])):,} clients")
        return f"Dataset({self.name!r}: {', '.join(parts)})"

    @property
    def sizes(self) -> dict[str, int]:
        """What a model may want to know: `inputs`, the numbers of a sample, and `classes`, the outputs.

        Where there are no classes, there is an output for each number of a target. If they are single whole
        numbers, they may be classes of which nobody said how many there are.
        """
        held = getattr(self.samples, "x", None)
        device = held.device if isinstance(held, Tensor) else "cpu"
        x, y = self.samples.take(torch.zeros(1, dtype=torch.long, device=device))
        outputs = self.classes
        if outputs is None and (y.is_floating_point() or y.dim() > 1):
            outputs = y[0].numel()
        return {"inputs": x[0].numel()} | ({} if outputs is None else {"classes": outputs})
