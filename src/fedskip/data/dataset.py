"""What a data set is: one pool of samples, who owns each of them, and which are for testing.

Everything is split by indices into the pool: the samples of a client, the test set and the validation
set are index arrays. So runs with different seeds share one copy of the samples on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedskip.errors import InputError, first_line, require
from fedskip.parsing import fit


class Samples(Protocol):
    """The pool of samples. `Arrays` is one; any class with these methods will do."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets at `index` (...): x (..., *sample shape), y (..., *target shape)."""
        ...

    def labels(self) -> np.ndarray:
        """The targets of the whole pool on the CPU, (n, ...). Partitions are drawn from them."""
        ...

    def to(self, device: torch.device, dtype: torch.dtype) -> Samples:
        """The pool on a device: floating-point numbers in `dtype`, integers as they are."""
        ...


@dataclass(frozen=True, eq=False)  # equal only if identical: `==` of tensors gives a tensor
class Arrays:
    """Samples as two arrays, x (n, ...) and y (n, ...).

    >>> Arrays([[0.0, 1.0], [2.0, 3.0]], [0, 1])
    Arrays(x: 2×2 float32, y: 2 int64)
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        for name in ("x", "y"):
            array = getattr(self, name)
            try:
                array = torch.as_tensor(array)
            except (TypeError, ValueError, RuntimeError) as error:
                rule = "must be a tensor or an array of numbers"
                raise InputError(
                    f"data.{name}", rule, type(array).__name__, first_line(error)
                ) from error
            require(f"data.{name}", array.dim() > 0, "must hold a number for each sample", array)
            object.__setattr__(self, name, array)
        rule = f"must have {len(self.x)} entries, one for each sample of x"
        require("data.y", len(self.x) == len(self.y), rule, len(self.y))

    def __repr__(self) -> str:
        shapes = ("×".join(f"{size:,}" for size in array.shape) for array in (self.x, self.y))
        x, y = shapes
        return f"Arrays(x: {x} {self.x.dtype}, y: {y} {self.y.dtype})".replace("torch.", "")

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        if index.dim() == 1:
            return self.x.index_select(0, index), self.y.index_select(0, index)
        flat = index.reshape(-1)  # index_select is several times faster than x[index]
        x, y = self.x.index_select(0, flat), self.y.index_select(0, flat)
        return x.reshape(index.shape + self.x.shape[1:]), y.reshape(index.shape + self.y.shape[1:])

    def labels(self) -> np.ndarray:
        return self.y.cpu().numpy()

    def to(self, device: torch.device, dtype: torch.dtype) -> Arrays:
        def moved(t: Tensor) -> Tensor:
            return t.to(device, dtype if t.is_floating_point() else t.dtype)

        return Arrays(moved(self.x), moved(self.y))


Split = tuple[np.ndarray, np.ndarray]  # indices of the training samples, of the test samples
TrainTransform = Callable[[Tensor, Tensor], Tensor]  # x (m, ...), one 32-bit word per sample (m,)
TestTransform = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set: a pool of samples, its split, and defaults for a study.

    Args:
        name: how tables and files call it.
        samples: the pool, as `Arrays(x, y)` or any object with the methods of `Samples`.
        split: gives the indices of the training and of the test samples for a seed. A data set with
            an official test set ignores the seed.
        classes: the number of classes; None if targets are numbers.
        owner: the natural client of each sample (a writer, a hospital), numbered from 0; -1 for a
            sample that belongs to nobody.
        owner_names: their names.
        train_transform, test_transform: what happens to inputs on their way to the model.
        defaults: values of a study's keys, such as `model.name`, `partition.kind` or `clients`,
            where the study does not set them.
        standardize: give inputs mean 0 and standard deviation 1 (see `standardize.py`).
        class_names: names of the classes.
        input_names: names of the numbers in a sample.
        notes: messages that a study shows when it begins.
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
    input_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "standardize", fit("data.standardize", self.standardize, bool))
        is_pool = all(hasattr(self.samples, name) for name in ("__len__", "take", "labels", "to"))
        fix = "give Arrays(x, y), or an object with `take`, `labels`, `to` and a length"
        given = type(self.samples).__name__
        require("data.samples", is_pool, "must be a pool of samples", given, fix)
        require("data.split", callable(self.split), "must be a function of the seed", self.split)
        if self.classes is not None:
            object.__setattr__(self, "classes", fit("data.classes", self.classes, int))
            require("data.classes", self.classes >= 1, "must be >= 1", self.classes)
        if self.class_names is not None:
            names = len(self.class_names)
            rule = f"must have a name for each of {self.classes} classes"
            require("data.class_names", names == self.classes, rule, names)
        if self.owner is not None:
            object.__setattr__(self, "owner", self._checked_owner(np.asarray(self.owner)))

    def _checked_owner(self, owner: np.ndarray) -> np.ndarray:
        samples = len(self.samples)
        fix = "turn names into numbers with `names, owner = np.unique(names, return_inverse=True)`"
        rule = f"must be {samples} whole numbers, one for each sample"
        is_numbered = owner.dtype.kind in "iu" and owner.shape == (samples,)
        require("data.owner", is_numbered, rule, f"{owner.dtype} {owner.shape}", fix)
        least, most = int(owner.min(initial=0)), int(owner.max(initial=-1))
        rule = "must be numbered from 0 on, -1 for a sample of nobody"
        require("data.owner", least >= -1, rule, least)
        if self.owner_names is not None:
            rule = f"must have a name for each of {most + 1} owners"
            require("data.owner_names", len(self.owner_names) > most, rule, len(self.owner_names))
        return owner

    def __repr__(self) -> str:
        parts = [f"{len(self.samples):,} samples"]
        parts += [f"{self.classes:,} classes"] if self.classes else []
        if self.owner is not None:
            parts.append(f"{len(np.unique(self.owner[self.owner >= 0])):,} clients")
        return f"Dataset({self.name!r}: {', '.join(parts)})"

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that a model may need: `inputs`, numbers in a sample, and `classes`, its outputs.

        Without classes there is an output for each number of a target. `classes` is left out if
        targets are single whole numbers: they may be classes whose number is not known.
        """
        x, y = self.samples.take(torch.zeros(1, dtype=torch.long, device=device_of(self.samples)))
        outputs = self.classes
        if outputs is None and (y.is_floating_point() or y.dim() > 1):
            outputs = y[0].numel()
        return {"inputs": x[0].numel()} | ({} if outputs is None else {"classes": outputs})


def device_of(samples: Samples) -> torch.device:
    """The device where the samples are; the CPU if they are in no tensor `x`."""
    x = getattr(samples, "x", None)
    return x.device if isinstance(x, Tensor) else torch.device("cpu")
