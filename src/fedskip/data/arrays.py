"""Makes data sets from arrays: of your own, of an `.npz` file, of a `torch.utils.data.Dataset`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.data.archives import read_npz
from fedskip.data.dataset import Arrays, Dataset, Split, user_error
from fedskip.data.division import split_by_owner
from fedskip.errors import InputError, require, unknown
from fedskip.files import expand_home

UNUSED = 1_000  # labels below the largest one that may be unused, unless `classes` is given
NAMES = ("x", "y", "client", "test_x", "test_y")  # of the arrays in an .npz file
SAVE = "write it with `np.savez(path, x=x, y=y)`, arrays of numbers only"


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
        x, y: inputs and targets (n, ...), test samples included. Bytes stay bytes, other whole numbers
            are ids for an embedding or, as single targets, classes; the rest becomes float32.
        client: the number or name of each sample's client, (n,), or of the training samples alone.
        test: which samples are for testing, a mask (n,). Without it, `test_fraction` of each client's
            samples is (of all samples, without `client`), drawn by the partition seed. Every client
            keeps at least one sample for training.
        defaults: values of a study's keys, beside `partition.kind: natural` where there are clients.
        fields: other fields of `Dataset`.
    """
    if test is None and not 0 < test_fraction < 1:
        raise InputError("data.test_fraction", "must lie between 0 and 1", test_fraction)
    owner, names = np.zeros(len(x), np.int64), None
    if client is not None:
        owner, names = _number_clients(client, np.ones(len(x), bool) if test is None else ~test)

    def split(seed: int) -> Split:
        if test is not None:
            return np.flatnonzero(~test), np.flatnonzero(test)
        train, rest = split_by_owner(owner, round(1 - test_fraction, 12), seed)
        # a client with too few samples for both parts trains on its first one
        missing = ~np.isin(owner[rest], owner[train])
        first = np.flatnonzero(missing)[np.unique(owner[rest][missing], return_index=True)[1]]
        return np.sort(np.concatenate([train, rest[first]])), np.delete(rest, first)

    is_image = x.dtype == np.uint8
    x_type = x.dtype if is_image else np.int64 if x.dtype.kind in "iu" else np.float32
    y_type = np.int64 if y.ndim == 1 and y.dtype.kind in "iu" else np.float32
    natural = {} if client is None else {"partition.kind": "natural"}
    return Dataset(
        name=name,
        samples=Arrays(torch.from_numpy(x.astype(x_type)), torch.from_numpy(y.astype(y_type))),
        split=split,
        owner=None if client is None else owner,
        owner_names=names,
        train_transform=as_train_input if is_image else None,
        test_transform=as_input if is_image else None,
        defaults=natural | dict(defaults or {}),
        **fields,
    )


def _number_clients(client: np.ndarray, trains: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number the owners of samples from 0 on, and name them.

    A test sample of a client without training samples belongs to nobody, -1.
    """
    names, number = np.unique(client, return_inverse=True)
    known = np.isin(np.arange(len(names)), number[trains[: len(client)]])
    owner = np.full(len(trains), -1)
    owner[: len(client)] = np.where(known, np.cumsum(known) - 1, -1)[number]
    texts = (
        n.decode(errors="replace") if isinstance(n, bytes) else str(n)
        for n in names[known].tolist()
    )
    return owner, tuple(texts)


def as_input(x: Tensor) -> Tensor:
    """Bytes as float32 in [0, 1]."""
    return x.to(torch.float32) / 255


def as_train_input(x: Tensor, word: Tensor) -> Tensor:
    """The same as `as_input`: nothing is random."""
    return as_input(x)


# --- checks ---------------------------------------------------------------------------------------


def check_numbers(where: str, array: np.ndarray, rows: Sequence[int] | None = None) -> None:
    """Refuse numbers that training cannot hold: floats become float32, whole numbers int64."""
    if array.dtype.kind not in "biuf":
        fix = "number names with `np.unique(names, return_inverse=True)[1]`"
        raise InputError(where, "must hold numbers", str(array.dtype), fix)
    if array.dtype.kind == "f":
        refuse_any(where, array, ~np.isfinite(array), "must be finite", rows=rows)
        large = np.abs(array) > np.finfo(np.float32).max
        refuse_any(where, array, large, "must fit into float32", "scale the data first", rows)
    elif array.dtype.kind == "u":
        refuse_any(where, array, array > np.uint64(np.iinfo(np.int64).max), "must fit into int64")


def refuse_any(
    where: str,
    array: np.ndarray,
    wrong: np.ndarray,
    rule: str,
    fix: str = "clean the data first",
    rows: Sequence[int] | None = None,
) -> None:
    """Refuse an array if any entry is wrong; the error names the first such sample.

    Args:
        rows: the row of each sample in a table, as `row_name` takes it.
    """
    if wrong.any():
        first = tuple(np.argwhere(wrong)[0])
        value = array[first]
        row = f"sample {first[0]}" if rows is None else row_name(rows[first[0]])
        value = value.item() if isinstance(value, np.generic) else value
        raise InputError(where, f"{rule}, and {row} is not", value, fix)


def row_name(row: int) -> str:
    """How errors call a row of a table. Rows count from 1, those of a test table from -1 down."""
    return f"row {row:,}" if row > 0 else f"row {-row:,} of the test table"


def count_classes(where: str, y: np.ndarray, classes: int | None) -> int | None:
    """The number of classes: `classes` if given, else the largest label + 1; None without classes."""
    if y.ndim != 1 or y.dtype.kind not in "iu":
        return None
    needed, different = int(y.max()) + 1, len(np.unique(y))
    if y.min() < 0:
        raise InputError(f"{where}: y", "must hold labels from 0 on", f"{y.min()} to {y.max()}")
    if classes is None and needed - different > UNUSED:  # a model has an output for each of them
        rule = (
            f"must hold labels from 0 on, without large gaps; there are {different} different ones"
        )
        fix = "number them with `np.unique(y, return_inverse=True)[1]`, or, "
        fix += f"if there are so many classes, set data.classes={needed}"
        raise InputError(f"{where}: y", rule, needed - 1, fix)
    if classes is not None and classes < needed:
        rule = f"must be >= {needed}, for the labels in {where}"
        raise InputError("data.classes", rule, classes)
    return classes or needed


# --- .npz -----------------------------------------------------------------------------------------


def load_arrays(
    path: str | os.PathLike[str], *, test_fraction: float = 0.1, classes: int | None = None
) -> Dataset:
    """Load an .npz file with `x` and `y`, and optionally `client`, `test_x` and `test_y`.

    Args:
        path: of the file.
        test_fraction: without test arrays, the share of each client's samples (of all, without
            `client`) that is for testing, drawn by the partition seed.
        classes: their number; the largest label + 1 unless given.
    """
    path = expand_home(path, "data.name")
    arrays = read_npz(path, "data.name", SAVE)
    for key in sorted(arrays.keys() - set(NAMES)):
        raise unknown(f"{path}: an array", key, NAMES)
    needed = {"x", "y"} | ({"test_x", "test_y"} if {"test_x", "test_y"} & arrays.keys() else set())
    if missing := needed - arrays.keys():
        raise InputError(str(path), f"lacks {', '.join(sorted(missing))}", fix=SAVE)
    for key, array in arrays.items():
        where, samples = f"{path}: {key}", arrays["test_x" if key.startswith("test_") else "x"]
        rule = "must hold at least one sample, and numbers for each"
        require(where, array.ndim > 0 and array.size > 0, rule, array.shape)
        if key == "client":
            rule = "must be whole numbers or names, one per sample"
            is_named = array.ndim == 1 and array.dtype.kind in "biufUS"
            require(where, is_named, rule, f"{array.dtype} {array.shape}")
            if array.dtype.kind == "f":
                wrong = ~np.isfinite(array) | (array != np.floor(array))
                refuse_any(where, array, wrong, rule)
        else:
            check_numbers(where, array)
        rule = f"must have {len(samples)} entries, one per sample"
        require(where, len(array) == len(samples), rule, len(array))
        # floats of all widths are alike, as they become float32
        given, expected = (
            f"{'float' if a.dtype.kind == 'f' else a.dtype} {a.shape[1:]}"
            for a in (array, arrays[key.removeprefix("test_")])
        )
        rule = f"must have samples of {expected} as the training data do"
        require(where, given == expected, rule, given)
    x, y, test = arrays["x"], arrays["y"], None
    if "test_x" in arrays:
        test = np.arange(len(x) + len(arrays["test_x"])) >= len(x)
        x, y = np.concatenate([x, arrays["test_x"]]), np.concatenate([y, arrays["test_y"]])
    return build_dataset(
        path.stem, x, y, client=arrays.get("client"), test=test, test_fraction=test_fraction,
        classes=count_classes(str(path), y, classes),
    )  # fmt: skip


# --- PyTorch --------------------------------------------------------------------------------------


def from_torch(
    dataset: Any,
    *,
    test: Any = None,
    test_fraction: float = 0.1,
    classes: int | None = None,
    standardize: bool = False,
    name: str = "torch",
) -> Dataset:
    """Make a data set from a map-style `torch.utils.data.Dataset`, whose samples are read once.

    Args:
        dataset: gives (x, y) or (x, y, client) for 0, 1, ...: tensors, arrays, numbers or images.
        test: another one, for testing.
        test_fraction: without `test`, the share of each client's samples that is for testing, drawn
            by the partition seed.
        classes: their number; the largest label + 1 unless given.
        standardize: give inputs mean 0 and standard deviation 1, by the training samples.
        name: of the data set.

    >>> from torch.utils.data import TensorDataset
    >>> from_torch(TensorDataset(torch.zeros(8, 3), torch.arange(8) % 2))
    Dataset('torch': 8 samples, 2 classes)
    """
    x, y, client = _read_samples(dataset, "data")
    tests = None
    if test is not None:
        test_x, test_y, test_client = _read_samples(test, "data.test")
        for axis, array, test_array in (("x", x, test_x), ("y", y, test_y)):
            expected, given = (f"{a.dtype} {a.shape[1:]}" for a in (array, test_array))
            rule = f"must be like those for training, {expected}"
            require(f"data.test {axis}", given == expected, rule, given)
        tests = np.arange(len(x) + len(test_x)) >= len(x)
        x, y = np.concatenate([x, test_x]), np.concatenate([y, test_y])
        if client is not None and test_client is not None:
            client = np.concatenate([client, test_client])
    return build_dataset(
        name, x, y, client=client, test=tests, test_fraction=test_fraction,
        classes=count_classes("data", y, classes), standardize=standardize,
    )  # fmt: skip


def _read_samples(dataset: Any, where: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """All samples: x (n, ...), y (n, ...) and their clients (n,)."""
    is_map = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    rule = "must have a length and give samples by number"
    fix = "one that is only iterated over can be listed first: list(dataset)"
    require(where, is_map, rule, type(dataset).__name__, fix)
    with user_error(where):
        n = len(dataset)
        require(where, n > 0, "must hold at least one sample", n)
        items = [_as_arrays(dataset[i], i, where) for i in range(n)]
        again = _as_arrays(dataset[0], 0, where)
    if not all(map(np.array_equal, items[0][:2], again[:2])):
        rule = "must give the same sample whenever it is asked for it"
        fix = "leave random transforms out here; Dataset(train_transform=...) draws new ones at each visit"
        raise InputError(where, rule, fix=fix)
    x, y = (stack([item[k] for item in items], f"{where} {'xy'[k]}") for k in (0, 1))
    if len(items[0]) == 2:
        return x, y, None
    client = np.array([item[2].item() for item in items])
    rule = "must name clients by whole numbers or texts"
    require(f"{where} client", client.dtype.kind in "biuU", rule, str(client.dtype))
    return x, y, client


def _as_arrays(given: Any, i: int, where: str) -> list[np.ndarray]:
    """x, y and perhaps the client of sample i, as arrays."""
    is_sample = isinstance(given, tuple | list) and len(given) in (2, 3)
    rule = f"must give (x, y) or (x, y, client), and sample {i} is not"
    require(where, is_sample, rule, type(given).__name__)
    return [
        part.detach().cpu().numpy() if isinstance(part, Tensor)
        else image_array(part) if hasattr(part, "getbands") else np.asarray(part)
        for part in given
    ]  # fmt: skip


def image_array(image: Any) -> np.ndarray:
    """A Pillow image as an array: (H, W) if it is grey, else (C, H, W).

    Numbers are bytes, or float32 for images of 16 or 32 bits.
    """
    if image.mode[0] in "IF":
        return np.asarray(image).astype(np.float32)
    array = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    return array if array.ndim == 2 else np.moveaxis(array, -1, 0)


def stack(values: Sequence[np.ndarray], where: str) -> np.ndarray:
    """Arrays of one shape and type as one array of numbers."""
    first = values[0]
    for i, value in enumerate(values):
        expected, given = f"{first.dtype} {first.shape}", f"{value.dtype} {value.shape}"
        rule = f"must be alike in all samples; sample 0 is {expected}, sample {i} another"
        require(where, given == expected, rule, given, "cut, pad or resize them to one shape")
    stacked = np.stack(values)
    check_numbers(where, stacked)
    return stacked
