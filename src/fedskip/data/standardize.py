"""Gives inputs mean 0 and standard deviation 1, by the training samples: `data.standardize: true`.

Vectors are standardised number by number, images (C, H, W) channel by channel, samples of two
dimensions as a whole. Numbers that are the same in all training samples stay as they are.

The training samples may depend on the seed, and the runs of all seeds share one pool on the device. So
`Standardized` is a pool of S n samples: sample i by the s-th scale is number s n + i.
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
from fedskip.data.dataset import Arrays, Dataset, Samples, TestTransform, user_error
from fedskip.errors import InputError, require
from fedskip.files import write_bytes

SUMMED = 1 << 22  # numbers that are summed at once
KEPT = 1 << 30  # standardised samples of at most so many bytes are kept in memory
WORDS = 64  # random words that a training transform is tried with


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean and standard deviation of the training samples; their shapes broadcast over a sample."""

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
        """Write to an npz file, which is needed to use the trained model elsewhere."""
        content = io.BytesIO()
        named: dict[str, Any] = {} if names is None else {"names": np.array(names)}
        np.savez(content, mean=self.mean, std=self.std, **named)
        write_bytes(path, content.getvalue())


@dataclass(frozen=True, eq=False)
class Standardized:
    """A pool that standardises samples by one of several scales when they are taken."""

    samples: Samples
    transform: TestTransform | None  # of the data set; it comes before the scale
    mean: Tensor  # (S, ...)
    std: Tensor  # (S, ...)

    @classmethod
    def of(cls, dataset: Dataset, scales: list[Scale]) -> Standardized:
        """The pool of a data set, standardised by S scales."""
        mean, std = np.stack([s.mean for s in scales]), np.stack([s.std for s in scales])
        return cls(
            dataset.samples, dataset.test_transform, torch.from_numpy(mean), torch.from_numpy(std)
        )

    def __len__(self) -> int:
        return len(self.samples) * len(self.mean)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        flat, n = index.reshape(-1), len(self.samples)
        x, y = self.samples.take(flat % n if len(self.mean) > 1 else flat)
        x = _untransformed(x, self.transform).to(self.mean.dtype)
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
        """The pool on a device. Small pools are standardised once and kept, with the same bits."""
        scale = [tensor.to(device, dtype) for tensor in (self.mean, self.std)]
        samples = self.samples.to(device, dtype)
        require(
            "data.samples.to", hasattr(samples, "take"), "must give samples", type(samples).__name__
        )
        moved = Standardized(samples, self.transform, *scale)
        everything = torch.arange(len(moved), device=device)
        size = moved.take(everything[:1])[0].nbytes * len(moved)
        return Arrays(*moved.take(everything)) if size <= KEPT else moved


def measure_scale(dataset: Dataset, train: np.ndarray) -> Scale:
    """The scale of the samples `train`, indices into the pool; computed on the CPU in float64."""
    order = np.sort(train)
    first = _inputs(dataset, order[:1])
    axes = (0,) if first.ndim == 2 else (0, 1, 2) if first.ndim == 3 else (0, *range(2, first.ndim))
    step = max(1, SUMMED // max(1, first[0].size))
    chunks = [order[i : i + step] for i in range(0, len(order), step)]
    total, low, high = np.zeros(()), np.asarray(np.inf), np.asarray(-np.inf)
    for chunk in chunks:
        x = _inputs(dataset, chunk)
        total = total + x.sum(axes, keepdims=True)
        low = np.minimum(low, x.min(axes, keepdims=True))
        high = np.maximum(high, x.max(axes, keepdims=True))
    each = len(order) * first[0].size / total.size  # how many numbers each mean is over
    mean = total / each
    squares = sum(
        np.square(_inputs(dataset, chunk) - mean).sum(axes, keepdims=True) for chunk in chunks
    )
    constant = low == high
    std = np.sqrt(squares / each)
    return Scale(np.where(constant, 0.0, mean)[0], np.where(constant, 1.0, std)[0])


def refuse_unfit(dataset: Dataset) -> None:
    """Refuse data sets whose inputs are ids, or whose training transform is random."""
    x, _ = dataset.take([0])
    with user_error("data.test_transform"):
        plain = _untransformed(x, dataset.test_transform)
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


def _untransformed(x: Tensor, transform: TestTransform | None) -> Tensor:
    return x if transform is None else transform(x)


def _inputs(dataset: Dataset, index: np.ndarray) -> np.ndarray:
    x, _ = dataset.take(index)
    inputs: np.ndarray = _untransformed(x, dataset.test_transform).double().cpu().numpy()
    return inputs
