"""The data sets of a study: each is loaded, checked and kept once, however many settings use it."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.data.catalogue import load
from fedskip.data.dataset import Arrays, Dataset, Samples
from fedskip.errors import InputError, first_line, require
from fedskip.files import digest

TRIED = 256  # samples that a user's own pool is tried with


@dataclass(frozen=True, eq=False)
class LoadedDataset:
    """A data set that was loaded and checked, and digests of its arrays."""

    dataset: Dataset

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """Digests of the arrays that the samples hold in memory, and of their owners."""
        held, owner = getattr(self.dataset.samples, "__dict__", {}), self.dataset.owner
        owned = {} if owner is None else {"owner": digest(owner.astype("<i8").tobytes())}
        return owned | {
            name: digest(array.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            for name, array in held.items() if isinstance(array, Tensor)
        }  # fmt: skip


class LoadedDatasets:
    """Loads data sets, each once."""

    def __init__(self) -> None:
        self._loaded: list[tuple[Mapping[str, Any] | Dataset, LoadedDataset]] = []

    def get(self, data: Mapping[str, Any] | Dataset) -> LoadedDataset:
        """The data set that is given, or that the options of `data` (`name`, ...) describe."""
        for known, loaded in self._loaded:
            if known == data:
                return loaded
        dataset = data if isinstance(data, Dataset) else load(**data)
        _check_finite(dataset)
        if type(dataset.samples) is not Arrays:
            _check_samples(dataset.samples)
        self._loaded.append((data, LoadedDataset(dataset)))
        return self._loaded[-1][1]


@contextlib.contextmanager
def user_error(field: str) -> Iterator[None]:
    """Turn any error of a user's function into an `InputError` for `field`."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            field, f"cannot be had ({type(error).__name__}: {first_line(error)})"
        ) from error


def _check_finite(dataset: Dataset) -> None:
    """Refuse NaN and infinity before they spread."""
    for name in ("x", "y"):
        array = getattr(dataset.samples, name, None)
        if not isinstance(array, Tensor) or not array.is_floating_point():
            continue
        finite = torch.isfinite(array)
        if not bool(finite.all()):
            first = int((~finite).reshape(len(array), -1).any(1).nonzero()[0])
            rule = f"must be finite; sample {first} of {dataset.name!r} is not"
            raise InputError(f"data.{name}", rule, fix="remove or fill it")


def _check_samples(samples: Samples) -> None:
    """Try a user's own pool on some samples: it gives what it is asked for, and the same each time."""
    n = len(samples)
    require("data.samples", n > 0, "must hold at least one sample", n)
    some = torch.tensor([0, n - 1, 0, *range(min(n, TRIED))])
    with user_error("data.samples.labels"):
        labels = np.asarray(samples.labels())
    rule = f"must give {n} targets, one for each sample"
    require("data.samples.labels", labels.shape[:1] == (n,), rule, labels.shape)
    flat, column = _take(samples, some), _take(samples, some[:2].reshape(2, 1))
    for name, first, second in zip(("inputs", "targets"), flat, column, strict=True):
        again = second.squeeze(1)
        alike = first.dtype == again.dtype and first.shape[1:] == again.shape[1:]
        if not alike or not _equal(first[:2], again):
            rule = f"must give the same {name} whenever it is asked for a sample, in any shape"
            raise InputError("data.samples.take", rule)


def _take(samples: Samples, index: Tensor) -> tuple[Tensor, Tensor]:
    """x and y at `index`, if they are two tensors with a sample for each entry."""
    field = "data.samples.take"
    with user_error(field):
        given = samples.take(index)
    fix = "x and y of take(index) have the shape of index, then that of a sample"
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    is_pair = is_pair and all(isinstance(t, Tensor) for t in given)
    require(field, is_pair, "must give two tensors, x and y", type(given).__name__, fix)
    for name, tensor in zip("xy", given, strict=True):
        fits = tensor.shape[: index.dim()] == index.shape
        rule = f"must give as many samples as it is asked for, {tuple(index.shape)}; {name} has another shape"
        require(field, fits, rule, tuple(tensor.shape), fix)
    return given[0], given[1]


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=one.is_floating_point())
