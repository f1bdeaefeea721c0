"""Makes a data set from a `torch.utils.data.Dataset`: all samples are read once, into arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedskip.data.build import build_dataset, check_numbers, count_classes
from fedskip.data.dataset import Dataset
from fedskip.data.loaded import user_error
from fedskip.errors import InputError, require


def from_torch(
    dataset: Any,
    *,
    test: Any = None,
    test_fraction: float = 0.1,
    classes: int | None = None,
    standardize: bool = False,
    name: str = "torch",
) -> Dataset:
    """Make a data set from a map-style `torch.utils.data.Dataset`.

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
    x, y, client = _read(dataset, "data")
    tests = None
    if test is not None:
        test_x, test_y, test_client = _read(test, "data.test")
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


def _read(dataset: Any, where: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """All samples: x (n, ...), y (n, ...) and their clients (n,)."""
    is_map = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    rule = "must have a length and give samples by number"
    fix = "one that is only iterated over can be listed first: list(dataset)"
    require(where, is_map, rule, type(dataset).__name__, fix)
    with user_error(where):
        n = len(dataset)
        require(where, n > 0, "must hold at least one sample", n)
        items = [_item(dataset[i], i, where) for i in range(n)]
        again = _item(dataset[0], 0, where)
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


def _item(given: Any, i: int, where: str) -> list[np.ndarray]:
    """x, y and perhaps the client of a sample, as arrays."""
    is_sample = isinstance(given, tuple | list) and len(given) in (2, 3)
    rule = f"must give (x, y) or (x, y, client), and sample {i} is not"
    require(where, is_sample, rule, type(given).__name__)
    return [_array(part) for part in given]


def _array(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return image_array(value) if hasattr(value, "getbands") else np.asarray(value)


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
