"""Data of one's own, wherever they come from: arrays that training can hold, put together as a `Dataset`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.data.base import Arrays, Dataset, Split
from fedskip.data.split import within_owners
from fedskip.input.errors import InputError

UNUSED = 1_000  # classes that labels may leave out below the largest, unless the number of classes is given


def assemble(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    *,
    client: np.ndarray | None = None,
    test: np.ndarray | None = None,
    test_fraction: float = 0.1,
    defaults: Mapping[str, Any] | None = None,
    **about: Any,
) -> Dataset:
    """A data set of arrays that were checked.

    Args:
        x, y: (n, ...), test samples included.
        client: the number or name of each sample's client, (n,), or of as many as there are for training.
        test: which samples are for testing, a mask (n,). Without it, a share of each client's samples (of
            all, without `client`) is, by the partition's seed; every client keeps one to train on.
        about: what else a `Dataset` may have.
    """
    trains = np.ones(len(x), bool) if test is None else ~test
    if test is None and not 0 < test_fraction < 1:
        raise InputError("data.test_fraction", "must lie between 0 and 1", test_fraction)
    owner, names = np.zeros(len(x), np.int64), None
    if client is not None:
        owner, names = _owners(client, trains)

    def split(seed: int) -> Split:
        if test is not None:
            return np.flatnonzero(~test), np.flatnonzero(test)
        train, rest = within_owners(owner, round(1 - test_fraction, 12), seed)
        # every client trains: one with too few samples for both has its first here
        without = ~np.isin(owner[rest], owner[train])
        first = np.flatnonzero(without)[np.unique(owner[rest][without], return_index=True)[1]]
        return np.sort(np.concatenate([train, rest[first]])), np.delete(rest, first)

    pictures = x.dtype == np.uint8
    natural = {} if client is None else {"partition.kind": "natural"}
    return Dataset(
        name=name, samples=Arrays(inputs(x), targets(y)), split=split,
        owner=None if client is None else owner, owner_names=names,
        train_transform=as_train_input if pictures else None,
        test_transform=as_input if pictures else None,
        defaults=natural | dict(defaults or {}), **about,
    )  # fmt: skip


def _owners(client: np.ndarray, trains: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """The owner of each sample, from 0 on, and their names; test samples of others are everyone's, -1."""
    trained = trains[: len(client)]
    known, place = np.unique(client[trained], return_inverse=True)
    owner = np.full(len(trains), -1)
    owner[trains] = place
    tests = np.flatnonzero(~trained)
    at = np.searchsorted(known, client[tests]).clip(max=len(known) - 1)
    owner[tests] = np.where(known[at] == client[tests], at, -1)
    return owner, tuple(map(_text, known.tolist()))


def _text(name: object) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def as_input(x: Tensor) -> Tensor:
    """Bytes as float32 in [0, 1]."""
    return x.to(torch.float32) / 255


def as_train_input(x: Tensor, word: Tensor) -> Tensor:
    """The same: nothing is random here."""
    return as_input(x)


def inputs(x: np.ndarray) -> Tensor:
    """Bytes stay bytes, other whole numbers are ids for an embedding, all else is float32."""
    if x.dtype == np.uint8:
        return torch.from_numpy(x)
    return torch.from_numpy(x.astype(np.int64 if x.dtype.kind in "iu" else np.float32))


def targets(y: np.ndarray) -> Tensor:
    """One whole number per sample is a class; all else is float32, for regression and multi-label tasks."""
    return torch.from_numpy(y.astype(np.int64 if _is_class(y) else np.float32))


def _is_class(y: np.ndarray) -> bool:
    return y.ndim == 1 and y.dtype.kind in "iu"


def count_classes(where: str, y: np.ndarray, classes: int | None) -> int | None:
    """How many classes there are: as many as given, or as labels from 0 to the largest need.

    `where`: what errors call the data.
    """
    if not _is_class(y):
        return None
    least, different = int(y.max()) + 1, len(np.unique(y))
    if y.min() < 0:
        raise InputError(f"{where}: y", "must hold labels from 0 on", f"{y.min()} to {y.max()}")
    if classes is None and least - different > UNUSED:  # a model would have a score for each of them
        rule = f"must hold labels that count classes from 0 on; there are {different} different ones"
        fix = "number them with `np.unique(y, return_inverse=True)[1]`, or, "
        fix += f"if there are so many classes, set data.classes={least}"
        raise InputError(f"{where}: y", rule, least - 1, fix)
    if classes is not None and classes < least:
        raise InputError("data.classes", f"must be >= {least}, for the labels in {where}", classes)
    return classes or least


def check_numbers(where: str, array: np.ndarray) -> None:
    """Refuse what training cannot hold: floats become float32 there, whole numbers int64."""
    if array.dtype.kind not in "biuf":
        fix = "number names with `np.unique(names, return_inverse=True)[1]`" * (array.dtype.kind in "US")
        raise InputError(where, "must hold numbers", str(array.dtype), fix)
    if array.dtype.kind == "f":
        refuse_any(where, array, ~np.isfinite(array), "must be finite")
        large = np.abs(array) > np.finfo(np.float32).max
        refuse_any(where, array, large, "must fit into float32", "scale the data first")
    elif array.dtype.kind == "u":
        refuse_any(where, array, array > np.uint64(np.iinfo(np.int64).max), "must fit into int64")


def refuse_any(
    where: str, array: np.ndarray, wrong: np.ndarray, rule: str, fix: str = "clean the data first"
) -> None:
    """Refuse an array of which something is wrong, and name the first sample."""
    if wrong.any():
        first = tuple(np.argwhere(wrong)[0])
        raise InputError(where, f"{rule}, and sample {first[0]} is not", array[first].item(), fix)
