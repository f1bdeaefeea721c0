"""What a data set is: one pool of samples, who owns each of them, and which are for testing.

Everything is split by indices into the pool: the samples of a client, the test set and the validation
set are index arrays. So runs with different seeds share one copy of the samples on the device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedskip.errors import InputError, first_line, require
from fedskip.files import digest
from fedskip.parsing import fit

TRIED = 256  # samples that a user's own pool is tried with


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
            dense = array.layout == torch.strided and not array.is_nested
            rule, fix = "must be a dense tensor", "use its to_dense()"
            require(f"data.{name}", dense, rule, str(array.layout), fix)
            require(f"data.{name}", array.dim() > 0, "must hold a number for each sample", array)
            object.__setattr__(self, name, array.detach())
        rule = f"must have {len(self.x)} entries, one for each sample of x"
        require("data.y", len(self.x) == len(self.y), rule, len(self.y))

    def __repr__(self) -> str:
        shapes = ("×".join(f"{size:,}" for size in array.shape) for array in (self.x, self.y))
        x, y = shapes
        return f"Arrays(x: {x} {self.x.dtype}, y: {y} {self.y.dtype})".replace("torch.", "")

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets at an index tensor of any shape."""
        if index.dim() == 1:
            return self.x.index_select(0, index), self.y.index_select(0, index)
        flat = index.reshape(-1)  # index_select is several times faster than x[index]
        x, y = self.x.index_select(0, flat), self.y.index_select(0, flat)
        return x.reshape(index.shape + self.x.shape[1:]), y.reshape(index.shape + self.y.shape[1:])

    def labels(self) -> np.ndarray:
        """All targets."""
        return self.y.cpu().numpy()

    def to(self, device: torch.device, dtype: torch.dtype) -> Arrays:
        """The same on a device, with floats in `dtype`."""
        x, y = (t.to(device, dtype if t.is_floating_point() else t.dtype) for t in (self.x, self.y))
        return Arrays(x, y)


MOST_OWNERS = 1_000_000  # or as many as there are samples
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
        named = isinstance(self.name, str) and bool(self.name.strip())
        require("data.name", named, "must be text", self.name, "such as name='hospitals'")
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
            owner, samples = np.asarray(self.owner), len(self.samples)
            is_numbered = owner.dtype.kind in "iu" and owner.shape == (samples,)
            rule = f"must be {samples} whole numbers, one for each sample"
            fix = "turn names into numbers with `names, owner = np.unique(names, return_inverse=True)`"
            require("data.owner", is_numbered, rule, f"{owner.dtype} {owner.shape}", fix)
            rule = "must be numbered from 0 on, -1 for a sample of nobody"
            most = max(samples, MOST_OWNERS)
            for number in (int(owner.min(initial=0)), int(owner.max(initial=0))):
                require("data.owner", -1 <= number < most, f"{rule}, below {most:,}", number, fix)
            if self.owner_names is not None:
                owners, names = int(owner.max(initial=-1)) + 1, len(self.owner_names)
                rule = f"must have a name for each of {owners} owners"
                require("data.owner_names", names >= owners, rule, names)
            object.__setattr__(self, "owner", owner)

    def __repr__(self) -> str:
        parts = [f"{len(self.samples):,} samples"]
        parts += [f"{self.classes:,} classes"] if self.classes else []
        if self.owner is not None:
            parts.append(f"{len(np.unique(self.owner[self.owner >= 0])):,} clients")
        return f"Dataset({self.name!r}: {', '.join(parts)})"

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digests of the arrays that the samples hold in memory, and of their owners."""
        held, owner = getattr(self.samples, "__dict__", {}), self.owner
        owned = {} if owner is None else {"owner": digest(owner.astype("<i8").tobytes())}
        return owned | {
            name: digest(array.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            for name, array in held.items() if isinstance(array, Tensor)
        }  # fmt: skip

    def take(self, index: np.ndarray | list[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some samples, on the device where they are."""
        x = getattr(self.samples, "x", None)
        device = x.device if isinstance(x, Tensor) else torch.device("cpu")
        return self.samples.take(torch.as_tensor(index, device=device))

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that a model may need: `inputs`, numbers in a sample, and `classes`, its outputs.

        Without classes there is an output for each number of a target. `classes` is left out if
        targets are single whole numbers: they may be classes whose number is not known.
        """
        x, y = self.take([0])
        outputs = self.classes
        if outputs is None and (y.is_floating_point() or y.dim() > 1):
            outputs = y[0].numel()
        return {"inputs": x[0].numel()} | ({} if outputs is None else {"classes": outputs})


# --- what is made in Python -----------------------------------------------------------------------


@contextlib.contextmanager
def user_error(field: str) -> Iterator[None]:
    """Turn any error of a user's function into an `InputError` for `field`."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        rule = f"cannot be had ({type(error).__name__}: {first_line(error)})"
        raise InputError(field, rule) from error


def check_samples(dataset: Dataset) -> None:
    """Refuse samples with NaN or infinity, and a pool that does not give what it is asked for."""
    samples = dataset.samples
    for name in ("x", "y"):
        array = getattr(samples, name, None)
        if isinstance(array, Tensor) and array.is_floating_point():
            broken = ~torch.isfinite(array)
            if broken.any():
                sample = int(broken.nonzero()[0, 0])
                rule = f"must be finite; sample {sample} of {dataset.name!r} is not"
                raise InputError(f"data.{name}", rule, fix="remove or fill it")
    if type(samples) is Arrays:
        return
    n = len(samples)
    require("data.samples", n > 0, "must hold at least one sample", n)
    with user_error("data.samples.labels"):
        labels = np.asarray(samples.labels())
    rule = f"must give {n} targets, one for each sample"
    require("data.samples.labels", labels.shape[:1] == (n,), rule, labels.shape)
    some = torch.tensor([0, n - 1, 0, *range(min(n, TRIED))])
    flat, column = _take(samples, some), _take(samples, some[:2].reshape(2, 1))
    for name, first, second in zip(("inputs", "targets"), flat, column, strict=True):
        again = second.squeeze(1)
        rule = f"must give the same {name} whenever it is asked for a sample, in any shape"
        same = first.dtype == again.dtype and torch.equal(first[:2], again)
        require("data.samples.take", same, rule)


def _take(samples: Samples, index: Tensor) -> tuple[Tensor, Tensor]:
    """x and y at `index`, if they are two tensors with a sample for each entry."""
    field, fix = "data.samples.take", "x and y have the shape of index, then that of a sample"
    with user_error(field):
        given = samples.take(index)
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    is_pair = is_pair and all(isinstance(t, Tensor) for t in given)
    require(field, is_pair, "must give two tensors, x and y", type(given).__name__, fix)
    for name, tensor in zip("xy", given, strict=True):
        rule = f"must give as many samples as it is asked for, {tuple(index.shape)}; {name} has another shape"
        fits = tensor.shape[: index.dim()] == index.shape
        require(field, fits, rule, tuple(tensor.shape), fix)
    return given[0], given[1]
