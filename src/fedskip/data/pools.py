"""What a study holds of each data set, once, whatever the number of its settings."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.data.base import Arrays, Dataset, Samples
from fedskip.data.catalogue import load
from fedskip.files import digest
from fedskip.input.errors import InputError, require, said

TRIED = 256  # samples of a pool of one's own


@dataclass(frozen=True, eq=False)
class Pool:
    """A data set, and what is known of it."""

    dataset: Dataset

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """Of the arrays that the samples hold in memory, and of who owns them."""
        held, owner = getattr(self.dataset.samples, "__dict__", {}), self.dataset.owner
        owned = {} if owner is None else {"owner": digest(owner.astype("<i8").tobytes())}
        return owned | {
            name: digest(array.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            for name, array in held.items() if isinstance(array, Tensor)
        }  # fmt: skip


class Pools:
    """The data sets of a study: each is loaded and checked once."""

    def __init__(self) -> None:
        self._found: list[tuple[Mapping[str, Any] | Dataset, Pool]] = []

    def get(self, data: Mapping[str, Any] | Dataset) -> Pool:
        for known, pool in self._found:
            if known == data:
                return pool
        dataset = data if isinstance(data, Dataset) else load(**data)
        _check_finite(dataset)
        if type(dataset.samples) is not Arrays:
            check_samples(dataset.samples)
        pool = Pool(dataset)
        self._found.append((data, pool))
        return pool


def _check_finite(dataset: Dataset) -> None:
    """Refuse NaN and infinity before they spread."""
    for name in ("x", "y"):
        array = getattr(dataset.samples, name, None)
        if isinstance(array, Tensor) and array.is_floating_point() and not bool(torch.isfinite(array).all()):
            bad = int((~torch.isfinite(array)).reshape(len(array), -1).any(1).nonzero()[0])
            raise InputError(
                f"data.{name}",
                f"must be finite; sample {bad} of {dataset.name!r} is not",
                ...,
                "remove or fill it",
            )


def check_samples(samples: Samples) -> None:
    """Refuse a pool of one's own that does not give what it is asked for: tried on some of its samples."""
    n = len(samples)
    require("data.samples", n > 0, "must hold at least one sample", n)
    some = torch.tensor([0, n - 1, 0, *range(min(n, TRIED))])
    with user_error("data.samples.labels"):
        labels = np.asarray(samples.labels())
    rule = f"must give {n} targets, one for each sample"
    require("data.samples.labels", labels.shape[:1] == (n,), rule, labels.shape)
    flat, square = _taken(samples, some), _taken(samples, some[:2].reshape(2, 1))
    for name, one, other in zip(("inputs", "targets"), flat, square, strict=True):
        again = other.squeeze(1)
        if one.dtype != again.dtype or one.shape[1:] != again.shape[1:] or not _equal(one[:2], again):
            rule = f"must give the same {name} whenever it is asked for a sample, in any shape"
            raise InputError("data.samples.take", rule)


def _taken(samples: Samples, index: Tensor) -> tuple[Tensor, Tensor]:
    fix = "x and y of take(index) have the shape of index, then that of a sample"
    with user_error("data.samples.take"):
        given = samples.take(index)
    pair = isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(t, Tensor) for t in given)
    require("data.samples.take", pair, "must give two tensors, x and y", type(given).__name__, fix)
    for name, tensor in zip("xy", given, strict=True):
        fits = tensor.shape[: index.dim()] == index.shape
        rule = f"must give as many samples as it is asked for, {tuple(index.shape)}; {name} has another shape"
        require("data.samples.take", fits, rule, tuple(tensor.shape), fix)
    return given[0], given[1]


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=one.is_floating_point())


@contextlib.contextmanager
def user_error(field: str) -> Iterator[None]:
    """What a user's function raises, by the name of that function."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # whatever it may be
        rule = f"cannot be had ({type(error).__name__}: {said(error)})"
        raise InputError(field, rule) from error
