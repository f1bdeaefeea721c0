"""A user's own data: an `.npz` file with `x` and `y`, and optionally `client`, `test_x` and `test_y`."""

import os
from pathlib import Path

import numpy as np

from fedskip.data.arrays import read_npz
from fedskip.data.base import Dataset
from fedskip.data.own import assemble, check_numbers, count_classes, refuse_any
from fedskip.files import expanded
from fedskip.input.errors import InputError, unknown

KEYS = ("x", "y", "client", "test_x", "test_y")
SAVED = "write it with `np.savez(path, x=x, y=y)`, arrays of numbers only"


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
    test = None
    if "test_x" in arrays:
        test = np.arange(len(x) + len(arrays["test_x"])) >= len(x)
        x, y = np.concatenate([x, arrays["test_x"]]), np.concatenate([y, arrays["test_y"]])
    return assemble(
        path.stem, x, y, client=arrays.get("client"), test=test, test_fraction=test_fraction,
        classes=count_classes(str(path), y, classes),
    )  # fmt: skip


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
        _check_client(where, array) if key == "client" else check_numbers(where, array)
        samples = len(arrays["test_x" if key.startswith("test_") else "x"])
        if len(array) != samples:
            raise InputError(where, f"must have {samples} entries, one per sample", len(array))
        like, found = (f"{_kind(a)} {a.shape[1:]}" for a in (arrays[key.removeprefix("test_")], array))
        if found != like:
            raise InputError(where, f"must have samples of {like} as the training data do", found)
    return arrays


def _kind(array: np.ndarray) -> str:
    return "float" if array.dtype.kind == "f" else str(array.dtype)


def _check_client(where: str, client: np.ndarray) -> None:
    if client.ndim != 1:
        raise InputError(where, "must hold one number or name per sample", client.shape)
    rule = "must hold whole numbers or names"
    if client.dtype.kind not in "biufUS":
        raise InputError(where, rule, str(client.dtype))
    if client.dtype.kind == "f":
        refuse_any(where, client, ~np.isfinite(client), "must be finite")
        refuse_any(where, client, client != np.floor(client), rule)
