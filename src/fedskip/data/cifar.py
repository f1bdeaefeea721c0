"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the official python files, which are read, not executed."""

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

from fedskip.data import archive, augment, cache
from fedskip.data.base import Arrays, Dataset, Split, TestTransform, TrainTransform
from fedskip.input.errors import InputError


@dataclass(frozen=True)
class Cifar:
    """What tells the two apart. `files` maps the official names, in pool order, to their md5."""

    name: str
    classes: int
    label_key: bytes
    files: Mapping[str, str]
    source: cache.Source
    model: str
    train_transform: TrainTransform
    test_transform: TestTransform
    train: int = 50_000
    test: int = 10_000


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
        ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",), "md5:c58f30108f718f92721af3b95e74349a"
    ),
    model="cnn",
    train_transform=augment.cifar10_train,
    test_transform=augment.cifar10_test,
)
CIFAR100 = Cifar(
    name="cifar100",
    classes=100,
    label_key=b"fine_labels",
    files={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    source=cache.Source(
        ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",), "md5:eb9058c3a382ffc7106e4002c42a8d85"
    ),
    model="resnet50",
    train_transform=augment.cifar100_train,
    test_transform=augment.cifar100_test,
)


def cifar10() -> Dataset:
    """50,000 training and 10,000 test images of 10 classes."""
    return load(CIFAR10)


def cifar100() -> Dataset:
    """50,000 training and 10,000 test images of 100 classes (the fine labels)."""
    return load(CIFAR100)


def load(cifar: Cifar) -> Dataset:
    """One pool from the cache, training images first; uint8 until a batch is transformed on its device."""
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
    """The official tar, or the folder it unpacks to, as x (60000, 3, 32, 32) uint8 and y (60000,) int64."""
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, raw in archive.contents(path, cifar.files.__contains__):
        md5 = hashlib.md5(raw, usedforsecurity=False).hexdigest()
        if md5 != cifar.files[name]:
            rule = f"has a {name} that is not the official one: its md5 is {md5}, not {cifar.files[name]}"
            raise InputError(str(path), rule, fix=f"fetch {cifar.source.urls[0]} again")
        parts[name] = images(cifar, raw, where=f"{path}: {name}")
    if missing := cifar.files.keys() - parts.keys():
        rule = f"lacks {', '.join(sorted(missing))}"
        raise InputError(str(path), rule, fix=f"give {cifar.source.file} or the folder that it unpacks to")
    x, y = (np.concatenate([parts[name][i] for name in cifar.files]) for i in (0, 1))
    if len(x) != cifar.train + cifar.test:
        raise InputError(str(path), f"must hold {cifar.train + cifar.test} images", len(x))
    return {"x": x, "y": y}


def images(cifar: Cifar, raw: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) uint8 and labels (n,) int64 of one official file."""
    content = unpickle(raw, where)
    try:
        pixels, labels = content[b"data"].array, np.array(content[cifar.label_key], np.int64)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(where, f"lacks the arrays of a CIFAR file ({error!r})") from error
    if pixels.ndim != 2 or pixels.shape[1] != 3 * 32 * 32:
        raise InputError(where, "must hold images as rows of 3 x 32 x 32 bytes", pixels.shape)
    if labels.shape != pixels.shape[:1]:
        raise InputError(where, f"must hold one label for each of its {len(pixels)} images", labels.shape)
    if len(wrong := labels[(labels < 0) | (labels >= cifar.classes)]):
        raise InputError(where, f"must hold labels 0 to {cifar.classes - 1}", int(wrong[0]))
    return pixels.reshape(-1, 3, 32, 32), labels


class _Array:
    """Stands for the numpy array in a CIFAR pickle, without calling numpy's own reconstruction."""

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


# All that the official files name. No function among them, so that unpickling can call nothing of ours.
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
    """The dict in a CIFAR pickle. Anything that the official files do not hold is refused, and never run."""
    try:
        content = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can fail in any way
        fix = "do not trust it, and fetch the official one"
        raise InputError(where, f"is not an official CIFAR file ({error})", fix=fix) from error
    if not isinstance(content, dict):
        raise InputError(where, "is not an official CIFAR file (it holds no dict)")
    return content
