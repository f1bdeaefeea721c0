"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), read from the official python files.

The files are pickles. They are read by an unpickler that can build nothing but plain arrays, so that no
code in a file ever runs.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedskip.data import archives, augmentation, cache
from fedskip.data.dataset import Arrays, Dataset, Split, TestTransform, TrainTransform
from fedskip.errors import InputError


@dataclass(frozen=True)
class Cifar:
    """What differs between CIFAR-10 and CIFAR-100."""

    name: str
    classes: int
    label_key: bytes  # of the labels in a file
    files: Mapping[str, str]  # official names, in the order of the pool -> md5
    source: cache.Source
    model: str
    train_transform: TrainTransform
    test_transform: TestTransform
    train: int = 50_000
    test: int = 10_000

    @property
    def accepts(self) -> str:
        """What `import` takes."""
        return f"{self.source.file} or the folder that it unpacks to"


CIFAR10 = Cifar(
    name="cifar10",
    classes=10,
    label_key=b"labels",
    files={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    source=cache.Source(
        ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
        "md5:c58f30108f718f92721af3b95e74349a",
    ),
    model="cnn",
    train_transform=augmentation.cifar10_train,
    test_transform=augmentation.cifar10_test,
)
CIFAR100 = Cifar(
    name="cifar100",
    classes=100,
    label_key=b"fine_labels",
    files={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    source=cache.Source(
        ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
        "md5:eb9058c3a382ffc7106e4002c42a8d85",
    ),
    model="resnet50",
    train_transform=augmentation.cifar100_train,
    test_transform=augmentation.cifar100_test,
)


def cifar10() -> Dataset:
    """50,000 training and 10,000 test images of 10 classes."""
    return load(CIFAR10)


def cifar100() -> Dataset:
    """50,000 training and 10,000 test images of 100 classes (the fine labels)."""
    return load(CIFAR100)


def load(cifar: Cifar) -> Dataset:
    """One pool from the cache, training images first. Pixels are bytes until a batch is transformed."""
    x, y = cache.read(cifar.name, "x", "y")

    def split(seed: int) -> Split:
        return np.arange(cifar.train), np.arange(cifar.train, cifar.train + cifar.test)

    return Dataset(
        name=cifar.name,
        samples=Arrays(torch.from_numpy(x), torch.from_numpy(y)),
        split=split,
        classes=cifar.classes,
        train_transform=cifar.train_transform,
        test_transform=cifar.test_transform,
        defaults={
            "model.name": cifar.model,
            "partition.kind": "dirichlet",
            "partition.beta": 0.5,
            "clients": 10,
            "cohort": 10,
            "rounds": 200,
        },
    )


def read(cifar: Cifar, path: Path) -> dict[str, np.ndarray]:
    """Read the official tar or its folder: x (60000, 3, 32, 32) uint8 and y (60000,) int64."""
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, raw in archives.contents(path, cifar.files.__contains__):
        md5 = hashlib.md5(raw, usedforsecurity=False).hexdigest()
        if md5 != cifar.files[name]:
            rule = f"has a {name} that is not the official one: its md5 is {md5}, not {cifar.files[name]}"
            raise InputError(str(path), rule, fix=f"fetch {cifar.source.urls[0]} again")
        parts[name] = images(cifar, raw, where=f"{path}: {name}")
    if missing := cifar.files.keys() - parts.keys():
        rule = f"lacks {', '.join(sorted(missing))}"
        raise InputError(str(path), rule, fix=f"give {cifar.accepts}")
    x, y = (np.concatenate([parts[name][i] for name in cifar.files]) for i in (0, 1))
    if len(x) != cifar.train + cifar.test:
        raise InputError(str(path), f"must hold {cifar.train + cifar.test} images", len(x))
    return {"x": x, "y": y}


def images(cifar: Cifar, raw: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """The images (n, 3, 32, 32) uint8 and labels (n,) int64 of one official file."""
    content = unpickle(raw, where)
    labels = np.array(content[cifar.label_key], np.int64)
    return content[b"data"].array.reshape(-1, 3, 32, 32), labels


class _Array:
    """Takes the place of numpy's array in a pickle, so that none of numpy's code is called."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Dtype, bool, bytes]) -> None:
        _, shape, dtype, fortran_order, data = state
        if dtype.code != b"u1" or fortran_order:
            raise pickle.UnpicklingError("its array is not of plain bytes")
        self.array = np.frombuffer(data, np.uint8).reshape(shape)


class _Dtype:
    def __init__(self, code: bytes, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        pass


# All names in the official files. None is a function, so unpickling can call nothing.
_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it wants to run {module}.{name}") from None


def unpickle(raw: bytes, where: str) -> dict[bytes, Any]:
    """The dict in a CIFAR pickle; anything else than in the official files is refused, and never run."""
    try:
        content = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except Exception as error:  # a damaged pickle fails in many ways
        fix = "do not trust it, and fetch the official one"
        raise InputError(where, f"is not an official CIFAR file ({error})", fix=fix) from error
    if not isinstance(content, dict):
        raise InputError(where, "is not an official CIFAR file (it holds no dict)")
    return content
