"""Builds a `Dataset` from arrays of your own: checks them, numbers clients, chooses test samples."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.data.dataset import Arrays, Dataset, Split
from fedskip.data.division import split_by_owner
from fedskip.errors import InputError

UNUSED = 1_000  # labels below the largest one that may be unused, unless `classes` is given


def build_dataset(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    *,
    client: np.ndarray | None = None,
    test: np.ndarray | None = None,
    test_fraction: float = 0.1,
    defaults: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Dataset:
    """Build a data set from arrays that `check_numbers` accepts.

    Args:
        name: of the data set.
        x, y: inputs and targets (n, ...), test samples included.
        client: the number or name of each sample's client, (n,), or of the training samples alone.
        test: which samples are for testing, a mask (n,). Without it, `test_fraction` of each client's
            samples is (of all samples, without `client`), drawn by the partition seed. Every client
            keeps at least one sample for training.
        defaults: values of a study's keys, beside `partition.kind: natural` where there are clients.
        fields: other fields of `Dataset`.
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
        train, rest = split_by_owner(owner, round(1 - test_fraction, 12), seed)
        # a client with too few samples for both parts trains on its first one
        missing = ~np.isin(owner[rest], owner[train])
        first = np.flatnonzero(missing)[np.unique(owner[rest][missing], return_index=True)[1]]
        return np.sort(np.concatenate([train, rest[first]])), np.delete(rest, first)

    is_image = x.dtype == np.uint8
    natural = {} if client is None else {"partition.kind": "natural"}
    return Dataset(
        name=name, samples=Arrays(_inputs(x), _targets(y)), split=split,
        owner=None if client is None else owner, owner_names=names,
        train_transform=as_train_input if is_image else None,
        test_transform=as_input if is_image else None,
        defaults=natural | dict(defaults or {}), **fields,
    )  # fmt: skip


def as_input(x: Tensor) -> Tensor:
    """Bytes as float32 in [0, 1]."""
    return x.to(torch.float32) / 255


def as_train_input(x: Tensor, word: Tensor) -> Tensor:
    """The same as `as_input`: nothing is random."""
    return as_input(x)


def check_numbers(where: str, array: np.ndarray) -> None:
    """Refuse numbers that training cannot hold: floats become float32, whole numbers int64."""
    if array.dtype.kind not in "biuf":
        is_text = array.dtype.kind in "US"
        fix = "number names with `np.unique(names, return_inverse=True)[1]`" if is_text else ""
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
    """Refuse an array if any entry is wrong; the error names the first such sample."""
    if wrong.any():
        first = tuple(np.argwhere(wrong)[0])
        raise InputError(where, f"{rule}, and sample {first[0]} is not", array[first].item(), fix)


def count_classes(where: str, y: np.ndarray, classes: int | None) -> int | None:
    """The number of classes: `classes` if given, else the largest label + 1; None without classes."""
    if not _is_class(y):
        return None
    needed, different = int(y.max()) + 1, len(np.unique(y))
    if y.min() < 0:
        raise InputError(f"{where}: y", "must hold labels from 0 on", f"{y.min()} to {y.max()}")
    if classes is None and needed - different > UNUSED:  # a model has an output for each of them
        rule = (
            f"must hold labels that count classes from 0 on; there are {different} different ones"
        )
        fix = "number them with `np.unique(y, return_inverse=True)[1]`, or, "
        fix += f"if there are so many classes, set data.classes={needed}"
        raise InputError(f"{where}: y", rule, needed - 1, fix)
    if classes is not None and classes < needed:
        rule = f"must be >= {needed}, for the labels in {where}"
        raise InputError("data.classes", rule, classes)
    return classes or needed


def _is_class(y: np.ndarray) -> bool:
    return y.ndim == 1 and y.dtype.kind in "iu"


def _inputs(x: np.ndarray) -> Tensor:
    """Bytes stay bytes, other whole numbers are ids for an embedding, the rest is float32."""
    if x.dtype == np.uint8:
        return torch.from_numpy(x)
    return torch.from_numpy(x.astype(np.int64 if x.dtype.kind in "iu" else np.float32))


def _targets(y: np.ndarray) -> Tensor:
    """One whole number per sample is a class; the rest is float32, for regression and multi-label."""
    return torch.from_numpy(y.astype(np.int64 if _is_class(y) else np.float32))


def _owners(client: np.ndarray, trains: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number the owners of samples from 0 on, and name them.

    A test sample of a client without training samples belongs to nobody, -1.
    """
    trained = trains[: len(client)]
    known, number = np.unique(client[trained], return_inverse=True)
    owner = np.full(len(trains), -1)
    owner[trains] = number
    tests = np.flatnonzero(~trained)
    at = np.searchsorted(known, client[tests]).clip(max=len(known) - 1)
    owner[tests] = np.where(known[at] == client[tests], at, -1)
    texts = (n.decode(errors="replace") if isinstance(n, bytes) else str(n) for n in known.tolist())
    return owner, tuple(texts)
