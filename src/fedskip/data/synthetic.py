"""Generated data: SYNTHETIC, and random images and texts to measure speed.

SYNTHETIC (LEAF) has 1000 tasks of very different sizes that share one linear model, 60 features, 5 classes.
With LEAF's seed and numpy's legacy generator the samples equal LEAF's, in the version after its softmax
was fixed (the first one normalised over samples instead of classes; a linear model then ends near 46 %
instead of 97 %).

References:
    Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018, appendix A.
"""

from functools import lru_cache
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from fedskip.data.dataset import Arrays, Dataset, Split
from fedskip.data.division import split_by_owner
from fedskip.errors import require
from fedskip.parsing import Count, In

SEED, TASKS, CLASSES, FEATURES = 931231, 1000, 5, 60
TEST = 100  # test samples of random data, beside those of the clients


def load(
    *,
    train_fraction: Annotated[float, In("(0, 1)", "the paper uses 0.6")] = 0.6,
    min_train: Count = 64,
) -> Dataset:
    """All tasks as one pool. A client is a task with at least `min_train` training samples.

    With the defaults, which are the paper's, there are 212 clients, 51,650 training and 34,554 test
    samples, for every seed of the split.

    Args:
        train_fraction: the share of each task's samples that is for training, rounded down.
        min_train: tasks with fewer training samples are left out, their test samples too.
    """
    x, y, owner = _generate()
    sizes = np.bincount(owner)
    train_sizes = (train_fraction * sizes).astype(np.int64)  # (tasks,)
    kept = train_sizes >= min_train
    fix = f"use {train_sizes.max()} or less"
    require("data.min_train", bool(kept.any()), "leaves no client", min_train, fix)

    def split(seed: int) -> Split:
        train, test = split_by_owner(owner, train_fraction, seed)
        return train[kept[owner[train]]], test[kept[owner[test]]]

    return Dataset(
        name="synthetic",
        samples=Arrays(torch.from_numpy(x), torch.from_numpy(y)),
        split=split,
        classes=CLASSES,
        owner=owner,
        defaults={
            "model.name": "perceptron", "partition.kind": "natural", "cohort": 10, "rounds": 1000,
        },
    )  # fmt: skip


@lru_cache(maxsize=1)
def _generate() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x (n, 60) float32, y (n,) int64 and the task of each sample (n,), task after task.

    The symbols are LEAF's. The order of the draws is LEAF's, too, and must not change.
    """
    sizes = np.random.RandomState(SEED).lognormal(3, 2, TASKS).astype(np.int64)
    sizes = np.minimum(sizes + 5, 1000)

    draw = np.random.RandomState(SEED)  # LEAF starts over from the same seed here
    Q = draw.normal(size=(FEATURES + 1, CLASSES))
    sigma = np.arange(1, FEATURES + 1) ** -0.6  # Σ is diagonal, Σ_jj = j^-1.2
    mu = draw.normal(draw.normal())  # the mean of the only cluster
    xs, ys = [], []
    for n in sizes:
        draw.random_sample()  # the choice of a cluster
        v = draw.normal(draw.normal(), size=FEATURES)
        x = v + sigma * draw.normal(size=(n, FEATURES))
        W = Q * draw.normal(mu, 0.1)  # (61, 5), the bias first
        scores = W[0] + x @ W[1:] + draw.normal(0, 0.1, size=(n, CLASSES))
        xs.append(x.astype(np.float32))
        ys.append(scores.argmax(axis=1))
    return np.concatenate(xs), np.concatenate(ys), np.repeat(np.arange(TASKS), sizes)


def random_images(
    clients: int = 50,
    size: int = 1000,
    classes: int = 10,
    shape: tuple[int, int, int] = (3, 32, 32),
) -> Dataset:
    """Random pixels in the shape of CIFAR."""
    rng, samples = np.random.default_rng(0), clients * size + TEST
    x = torch.from_numpy(rng.standard_normal((samples, *shape), dtype=np.float32))
    return _random("random-images", x, rng.integers(0, classes, samples), classes)


def random_text(clients: int = 50, size: int = 1000) -> Dataset:
    """Random characters in the shape of SHAKESPEARE."""
    rng, samples = np.random.default_rng(0), clients * size + TEST
    x = torch.from_numpy(rng.integers(0, 80, (samples, 80)))
    return _random("random-text", x, rng.integers(0, 80, samples), 80)


def _random(name: str, x: Tensor, y: np.ndarray, classes: int) -> Dataset:
    train, test = np.split(np.arange(len(x)), [-TEST])
    samples = Arrays(x, torch.from_numpy(y))
    return Dataset(name, samples, lambda seed: (train, test), classes=classes)
