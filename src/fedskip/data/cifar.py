"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): the images, their augmentation, and the official files.

The official python files are pickles. They are read by an unpickler that can build nothing but plain
arrays, so that no code in a file ever runs.

Augmentation and normalisation are the reference code's, in batches on the device. Every step moves pixels
without mixing them. So each output pixel is followed back through all steps to the input pixel that it
comes from. Positions are whole numbers, so an image gets the same pixels on every device. The random
numbers of a sample are `rng.uniform(word, counter)` of its random word:

| counter | draw |
|---|---|
| 0, 1 | top and left of the 32×32 crop inside the image padded to 40×40, each in 0..8 |
| 2 | mirrored if below ½ |
| 3 | angle, -15° to 15° (CIFAR-100 only) |
"""

from __future__ import annotations

import hashlib
import io
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.data import archives, cache
from fedskip.data.dataset import Arrays, Dataset, Split, TestTransform, TrainTransform
from fedskip.errors import InputError
from fedskip.rng import uniform

DRAWS, SIDE, PAD, DEGREES = 4, 32, 4, 15.0

MEAN10, STD10 = (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)
MEAN100 = (0.5070751592371323, 0.48654887331495095, 0.4409178433670343)
STD100 = (0.2673342858792401, 0.2564384629170883, 0.27615047132568404)


# --- augmentation ---------------------------------------------------------------------------------


def cifar10_train(x: Tensor, word: Tensor) -> Tensor:
    """Pad by reflection, crop, flip and normalise: x (m, 3, 32, 32) uint8, word (m,) -> float32."""
    top, left, flip, _ = _draws(word)
    row, column = _crop_and_flip(top, left, flip, *_grid(x.device))
    # rows and columns move independently: first whole rows, which is fast, then columns
    first_row = SIDE * torch.arange(
        x.shape[0] * x.shape[1], device=x.device
    )  # of each channel of the batch
    at = first_row.view(-1, x.shape[1], 1) + _reflect(row).view(-1, 1, SIDE)  # (m, 3, 32)
    pixels = x.reshape(-1, SIDE).index_select(0, at.flatten()).view(x.shape)
    return normalise(pixels.gather(3, _reflect(column).unsqueeze(1).expand_as(x)), MEAN10, STD10)


def cifar10_test(x: Tensor) -> Tensor:
    """Normalise."""
    return normalise(x, MEAN10, STD10)


def cifar100_train(x: Tensor, word: Tensor) -> Tensor:
    """Pad with black, crop, flip, rotate (with black corners) and normalise; shapes as above."""
    top, left, flip, angle = _draws(word)
    row, column = _rotate(angle, *_grid(x.device))
    seen = _inside(row) & _inside(column)
    row, column = _crop_and_flip(top, left, flip, row, column)
    seen = seen & _inside(row) & _inside(column)
    index = row.clamp(0, SIDE - 1) * SIDE + column.clamp(0, SIDE - 1)  # (m, 32, 32)
    pixels = (
        x.flatten(2).gather(2, index.flatten(1).unsqueeze(1).expand_as(x.flatten(2))).view(x.shape)
    )
    return normalise(pixels * seen.unsqueeze(1), MEAN100, STD100)


def cifar100_test(x: Tensor) -> Tensor:
    """Normalise."""
    return normalise(x, MEAN100, STD100)


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x / 255 - mean) / std per channel, x (m, 3, h, w) -> float32."""

    def per_channel(values: Sequence[float]) -> Tensor:
        # filled on the device: a copy from the host cannot be part of a CUDA graph
        return torch.stack([torch.full((1, 1), value, device=x.device) for value in values])

    scale = per_channel([1 / (255 * s) for s in std])
    shift = per_channel([-m / s for m, s in zip(mean, std, strict=True)])
    return x.to(torch.float32).mul_(scale).add_(shift)  # in place: new memory is slow


def _grid(device: torch.device) -> tuple[Tensor, Tensor]:
    """Row (1, 32, 1) and column (1, 1, 32) of every output pixel."""
    line = torch.arange(SIDE, device=device)
    return line.view(1, SIDE, 1), line.view(1, 1, SIDE)


def _draws(word: Tensor) -> tuple[Tensor, ...]:
    """The draws of the table above, each (m, 1, 1)."""
    counter = torch.arange(DRAWS, device=word.device)
    return uniform(word.view(-1, 1), counter).view(-1, DRAWS, 1, 1).unbind(1)


def _crop_and_flip(
    top: Tensor, left: Tensor, flip: Tensor, row: Tensor, column: Tensor
) -> tuple[Tensor, Tensor]:
    """The place, in the image without padding, of a pixel of the cropped and flipped image."""
    places = 2 * PAD + 1
    column = torch.where(flip < 0.5, SIDE - 1 - column, column)
    return row + (top * places).long() - PAD, column + (left * places).long() - PAD


def _rotate(angle: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
    """The place, in the upright image, of a pixel of the image rotated about its centre.

    This is the arithmetic of Pillow (and so of torchvision), in 1/65536 of a pixel, to the nearest
    pixel. Sine and cosine are computed in float64, so that devices that round them differently still
    agree after the rounding here.
    """
    radians = (2 * angle.double() - 1) * math.radians(DEGREES)
    cos, sin = radians.cos(), radians.sin()
    centre, first = SIDE / 2, (SIDE - 1) / 2  # the middle of pixel 0 lies 15.5 from the centre
    column_of_first, row_of_first = centre - first * (cos - sin), centre - first * (cos + sin)

    def fixed(t: Tensor) -> Tensor:
        return (t * 65536 + 0.5).floor().long()

    return (
        (fixed(row_of_first) + fixed(sin) * column + fixed(cos) * row) >> 16,
        (fixed(column_of_first) + fixed(cos) * column - fixed(sin) * row) >> 16,
    )


def _reflect(position: Tensor) -> Tensor:
    """Mirror positions -4..35 at the first and the last pixel, which are not repeated."""
    return SIDE - 1 - (SIDE - 1 - position.abs()).abs()


def _inside(position: Tensor) -> Tensor:
    """Whether positions lie in the image."""
    return (position >= 0) & (position < SIDE)


# --- the two data sets ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Cifar:
    """What differs between CIFAR-10 and CIFAR-100."""

    name: str
    classes: int
    label_key: bytes  # of the labels in a file
    files: Mapping[str, str]  # official names, in the order of the pool -> md5
    source: cache.Source
    accepts: str  # what `import` takes
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
        ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
        "md5:c58f30108f718f92721af3b95e74349a",
    ),
    accepts="cifar-10-python.tar.gz or the folder that it unpacks to",
    model="cnn",
    train_transform=cifar10_train,
    test_transform=cifar10_test,
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
    accepts="cifar-100-python.tar.gz or the folder that it unpacks to",
    model="resnet50",
    train_transform=cifar100_train,
    test_transform=cifar100_test,
)


def cifar10() -> Dataset:
    """50,000 training and 10,000 test images of 10 classes."""
    return _load(CIFAR10)


def cifar100() -> Dataset:
    """50,000 training and 10,000 test images of 100 classes (the fine labels)."""
    return _load(CIFAR100)


def _load(cifar: Cifar) -> Dataset:
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
            "model.name": cifar.model, "partition.kind": "dirichlet", "partition.beta": 0.5,
            "clients": 10, "cohort": 10, "rounds": 200,
        },
    )  # fmt: skip


# --- the official files ---------------------------------------------------------------------------


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
