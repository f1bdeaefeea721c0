"""A user's own data: an `.npz` file with `x` and `y`, and optionally `client`, `test_x` and `test_y`."""

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedskip.data.arrays import read_npz
from fedskip.data.base import Arrays, Dataset, Split
from fedskip.data.split import within_owners
from fedskip.files import expanded
from fedskip.input.errors import InputError, unknown

KEYS = ("x", "y", "client", "test_x", "test_y")
SAVED = "write it with `np.savez(path, x=x, y=y)`, arrays of numbers only"
UNUSED = 1_000  # classes that labels may leave out below the largest, unless the number of classes is given


def load(path: str | os.PathLike[str], test_fraction: float = 0.1, classes: int | None = None) -> Dataset:
    """The data set in a file.

    Args:
        path: of the file.
        test_fraction: of each client's samples (of all, without `client`) that a file without test arrays
            keeps for testing; which ones follows the partition's seed.
        classes: their number; the largest label + 1 unless given.
    """
    path = expanded(path, "data.name")
    arrays = _read(path)
    x, y = arrays["x"], arrays["y"]
    n = len(x)
    if "test_x" in arrays:
        x, y = np.concatenate([x, arrays["test_x"]]), np.concatenate([y, arrays["test_y"]])
    elif not 0 < test_fraction < 1:
        raise InputError("data.test_fraction", "must lie between 0 and 1", test_fraction)

    names, client = np.unique(arrays.get("client", np.zeros(n, np.int64)), return_inverse=True)
    owner = np.full(len(x), -1)  # test arrays belong to nobody
    owner[:n] = client

    def split(seed: int) -> Split:
        if "test_x" in arrays:
            return np.arange(n), np.arange(n, len(x))
        train, test = within_owners(client, round(1 - test_fraction, 12), seed)
        # every client trains: one with too few samples for both has its first here
        without = ~np.isin(client[test], client[train])
        first = np.flatnonzero(without)[np.unique(client[test][without], return_index=True)[1]]
        return np.sort(np.concatenate([train, test[first]])), np.delete(test, first)

    pictures = x.dtype == np.uint8
    return Dataset(
        name=path.stem,
        samples=Arrays(_inputs(x), _targets(y)),
        split=split,
        classes=_classes(path, y, classes),
        owner=owner if "client" in arrays else None,
        owner_names=tuple(map(_text, names.tolist())) if "client" in arrays else None,
        train_transform=as_train_input if pictures else None,
        test_transform=as_input if pictures else None,
        defaults={"partition.kind": "natural"} if "client" in arrays else {},
    )


def as_input(x: Tensor) -> Tensor:
    """Bytes as float32 in [0, 1]."""
    return x.to(torch.float32) / 255


def as_train_input(x: Tensor, word: Tensor) -> Tensor:
    """The same: nothing is random here."""
    return as_input(x)


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, if their names and values are such that training can work."""
    arrays = read_npz(path, "data.name", SAVED)
    for key in sorted(arrays.keys() - set(KEYS)):
        raise unknown(f"{path}: an array", key, KEYS)
    needed = {"x", "y"} | ({"test_x", "test_y"} if {"test_x", "test_y"} & arrays.keys() else set())
    if missing := needed - arrays.keys():
        raise InputError(str(path), f"lacks {', '.join(sorted(missing))}", fix=SAVED)
    for key, array in arrays.items():
        where = f"{path}: {key}"
        if array.ndim == 0 or not array.size:
            raise InputError(where, "must hold at least one sample, and numbers for each", array.shape)
        _check_client(where, array) if key == "client" else _check_numbers(where, array)
        samples = len(arrays["test_x" if key.startswith("test_") else "x"])
        if len(array) != samples:
            raise InputError(where, f"must have {samples} entries, one per sample", len(array))
        like, found = (f"{_kind(a)} {a.shape[1:]}" for a in (arrays[key.removeprefix("test_")], array))
        if found != like:
            raise InputError(where, f"must have samples of {like} as the training data do", found)
    return arrays


def _text(name: object) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _kind(array: np.ndarray) -> str:
    return "float" if array.dtype.kind == "f" else str(array.dtype)


def _check_client(where: str, client: np.ndarray) -> None:
    if client.ndim != 1:
        raise InputError(where, "must hold one number or name per sample", client.shape)
    rule = "must hold whole numbers or names"
    if client.dtype.kind not in "biufUS":
        raise InputError(where, rule, str(client.dtype))
    if client.dtype.kind == "f":
        _refuse_any(where, client, ~np.isfinite(client), "must be finite")
        _refuse_any(where, client, client != np.floor(client), rule)


def _check_numbers(where: str, array: np.ndarray) -> None:
    """Refuse what training cannot hold: floats become float32 there, whole numbers int64."""
    if array.dtype.kind not in "biuf":
        fix = "number names with `np.unique(names, return_inverse=True)[1]`" * (array.dtype.kind in "US")
        raise InputError(where, "must hold numbers", str(array.dtype), fix)
    if array.dtype.kind == "f":
        _refuse_any(where, array, ~np.isfinite(array), "must be finite")
        large = np.abs(array) > np.finfo(np.float32).max
        _refuse_any(where, array, large, "must fit into float32", "scale the data first")
    elif array.dtype.kind == "u":
        _refuse_any(where, array, array > np.uint64(np.iinfo(np.int64).max), "must fit into int64")


def _refuse_any(
    where: str, array: np.ndarray, wrong: np.ndarray, rule: str, fix: str = "clean the data first"
) -> None:
    if wrong.any():
        first = tuple(np.argwhere(wrong)[0])
        raise InputError(where, f"{rule}, and sample {first[0]} is not", array[first].item(), fix)


def _inputs(x: np.ndarray) -> Tensor:
    """Bytes stay bytes, other whole numbers are ids for an embedding, all else is float32."""
    if x.dtype == np.uint8:
        return torch.from_numpy(x)
    return torch.from_numpy(x.astype(np.int64 if x.dtype.kind in "iu" else np.float32))


def _targets(y: np.ndarray) -> Tensor:
    """One whole number per sample is a class; all else is float32, for regression and multi-label tasks."""
    return torch.from_numpy(y.astype(np.int64 if _is_class(y) else np.float32))


def _is_class(y: np.ndarray) -> bool:
    return y.ndim == 1 and y.dtype.kind in "iu"


def _classes(path: Path, y: np.ndarray, classes: int | None) -> int | None:
    if not _is_class(y):
        return None
    least, different = int(y.max()) + 1, len(np.unique(y))
    if y.min() < 0:
        raise InputError(f"{path}: y", "must hold labels from 0 on", f"{y.min()} to {y.max()}")
    if classes is None and least - different > UNUSED:  # a model would have a score for each of them
        rule = f"must hold labels that count classes from 0 on; there are {different} different ones"
        fix = "number them with `np.unique(y, return_inverse=True)[1]`, or, "
        fix += f"if there are so many classes, set data.classes={least}"
        raise InputError(f"{path}: y", rule, least - 1, fix)
    if classes is not None and classes < least:
        raise InputError("data.classes", f"must be >= {least}, for the labels in {path}", classes)
    return classes or least
