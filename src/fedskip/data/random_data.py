"""Random images and texts in the shape of the real data, to measure speed."""

import numpy as np
import torch
from torch import Tensor

from fedskip.data.dataset import Arrays, Dataset

TEST = 100  # test samples, beside those of the clients


def images(
    clients: int = 50,
    size: int = 1000,
    classes: int = 10,
    shape: tuple[int, int, int] = (3, 32, 32),
) -> Dataset:
    """Random pixels in the shape of CIFAR."""
    rng, samples = np.random.default_rng(0), clients * size + TEST
    x = torch.from_numpy(rng.standard_normal((samples, *shape), dtype=np.float32))
    return _dataset("random-images", x, rng.integers(0, classes, samples), classes)


def text(clients: int = 50, size: int = 1000) -> Dataset:
    """Random characters in the shape of SHAKESPEARE."""
    rng, samples = np.random.default_rng(0), clients * size + TEST
    x = torch.from_numpy(rng.integers(0, 80, (samples, 80)))
    return _dataset("random-text", x, rng.integers(0, 80, samples), 80)


def _dataset(name: str, x: Tensor, y: np.ndarray, classes: int) -> Dataset:
    train, test = np.split(np.arange(len(x)), [-TEST])
    return Dataset(
        name, Arrays(x, torch.from_numpy(y)), lambda seed: (train, test), classes=classes
    )
