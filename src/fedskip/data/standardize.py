"""Inputs with mean 0 and standard deviation 1, by the training samples alone: `data.standardize: true`.

Vectors are standardised number by number, images (C, H, W) channel by channel, samples of two dimensions as
a whole. What is the same in all training samples is left as it is. Which samples train may depend on the
seed, and the runs of all seeds share one pool on the device. So `Standardized` is a pool of S times n
samples: sample i as the s-th statistics make it is number s n + i.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip import rng
from fedskip.data.base import Arrays, Dataset, Samples, TestTransform
from fedskip.data.pools import user_error
from fedskip.files import write_bytes
from fedskip.input.errors import InputError, require

CHUNK = 1 << 22  # numbers that are looked at together
KEPT = 1 << 30  # bytes of standardised samples that are kept
WORDS = 64  # random words with which a transform is tried


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean and standard deviation of the training samples; they broadcast over a sample."""

    mean: np.ndarray  # float64; 0 where all are the same
    std: np.ndarray  # float64; 1 where all are the same

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scale) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    @property
    def _bytes(self) -> bytes:
        return self.mean.tobytes() + self.std.tobytes()

    def save(self, path: Path, names: tuple[str, ...] | None = None) -> None:
        """Write as npz: who uses a trained model elsewhere needs it."""
        content = io.BytesIO()
        named: dict[str, Any] = {} if names is None else {"names": np.array(names)}
        np.savez(content, mean=self.mean, std=self.std, **named)
        write_bytes(path, content.getvalue())


@dataclass(frozen=True, eq=False)
class Standardized:
    """A pool as each of several scales makes it, when samples are taken."""

    samples: Samples
    transform: TestTransform | None  # of the data set, which comes first
    mean: Tensor  # (S, ...)
    std: Tensor  # (S, ...)

    @classmethod
    def of(cls, dataset: Dataset, scales: list[Scale]) -> Standardized:
        mean, std = np.stack([one.mean for one in scales]), np.stack([one.std for one in scales])
        return cls(dataset.samples, dataset.test_transform, torch.from_numpy(mean), torch.from_numpy(std))

    def __len__(self) -> int:
        return len(self.samples) * len(self.mean)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        flat, n = index.reshape(-1), len(self.samples)
        x, y = self.samples.take(flat % n if len(self.mean) > 1 else flat)
        x = _plain(x, self.transform).to(self.mean.dtype)
        if len(self.mean) > 1:
            mean, std = (t.index_select(0, flat // n) for t in (self.mean, self.std))
        else:
            mean, std = self.mean, self.std
        x = (x - mean) / std
        return x.reshape(index.shape + x.shape[1:]), y.reshape(index.shape + y.shape[1:])

    def labels(self) -> np.ndarray:
        labels = self.samples.labels()
        return np.tile(labels, (len(self.mean), *[1] * (labels.ndim - 1)))

    def to(self, device: torch.device, dtype: torch.dtype) -> Samples:
        """On a device; what takes little memory is made once and kept, to the same bits."""
        scale = [tensor.to(device, dtype) for tensor in (self.mean, self.std)]
        samples = self.samples.to(device, dtype)
        require("data.samples.to", hasattr(samples, "take"), "must give samples", type(samples).__name__)
        moved = Standardized(samples, self.transform, *scale)
        everything = torch.arange(len(moved), device=device)
        size = moved.take(everything[:1])[0].nbytes * len(moved)
        return Arrays(*moved.take(everything)) if size <= KEPT else moved


def measure_scale(dataset: Dataset, train: np.ndarray) -> Scale:
    """The scale of the samples `train`, pool indices in any order: computed on the host, in float64."""
    order = np.sort(train)
    first = _inputs(dataset, order[:1])
    axes = (0,) if first.ndim == 2 else (0, 1, 2) if first.ndim == 3 else (0, *range(2, first.ndim))
    step = max(1, CHUNK // max(1, first[0].size))
    chunks = [order[i : i + step] for i in range(0, len(order), step)]
    total, low, high = np.zeros(()), np.asarray(np.inf), np.asarray(-np.inf)
    for chunk in chunks:
        x = _inputs(dataset, chunk)
        total = total + x.sum(axes, keepdims=True)
        low = np.minimum(low, x.min(axes, keepdims=True))
        high = np.maximum(high, x.max(axes, keepdims=True))
    each = len(order) * first[0].size / total.size  # numbers behind each mean
    mean = total / each
    squares = sum(np.square(_inputs(dataset, chunk) - mean).sum(axes, keepdims=True) for chunk in chunks)
    constant = low == high
    std = np.sqrt(squares / each)
    return Scale(np.where(constant, 0.0, mean)[0], np.where(constant, 1.0, std)[0])


def refuse_unfit(dataset: Dataset) -> None:
    """Refuse data sets whose inputs are no numbers to scale, or are drawn anew each time."""
    x, _ = dataset.samples.take(_index(dataset, np.zeros(1, np.int64)))
    with user_error("data.test_transform"):
        plain = _plain(x, dataset.test_transform)
        numbers = plain.is_floating_point()
    if not numbers:
        rule = f"cannot be had for {dataset.name!r}: its inputs are ids, which have no scale"
        raise InputError("data.standardize", rule, True, "leave it out")
    if dataset.train_transform is not None:
        words = rng.mix(torch.zeros(WORDS, dtype=torch.long), torch.arange(WORDS)).to(x.device)
        with user_error("data.train_transform"):
            drawn = dataset.train_transform(x.repeat(WORDS, *[1] * (x.dim() - 1)), words)
            same = drawn.shape[1:] == plain.shape[1:] and bool((drawn == plain).all())
        rule = f"cannot be had for {dataset.name!r}: its training transform draws, and scales by itself"
        require("data.standardize", same, rule, True, "leave it out")


def _plain(x: Tensor, transform: TestTransform | None) -> Tensor:
    return x if transform is None else transform(x)


def _index(dataset: Dataset, index: np.ndarray) -> Tensor:
    """On the device where samples are, if they are on one."""
    held = getattr(dataset.samples, "x", None)
    return torch.from_numpy(index).to(held.device if isinstance(held, Tensor) else "cpu")


def _inputs(dataset: Dataset, index: np.ndarray) -> np.ndarray:
    x, _ = dataset.samples.take(_index(dataset, index))
    found: np.ndarray = _plain(x, dataset.test_transform).double().cpu().numpy()
    return found
