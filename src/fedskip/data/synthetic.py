"""SYNTHETIC (LEAF): 1000 tasks of very different sizes that share one linear model, 60 features, 5 classes.

It is generated. With LEAF's seed and numpy's legacy generator the samples equal LEAF's, in the version
after its softmax was fixed (the first one normalised over samples instead of classes; a linear model
then ends near 46 % instead of 97 %).

References:
    Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018, appendix A.
"""

from functools import lru_cache

import numpy as np
import torch

from fedskip.data.dataset import Arrays, Dataset, Split
from fedskip.data.division import split_by_owner
from fedskip.errors import InputError

SEED, TASKS, CLASSES, FEATURES = 931231, 1000, 5, 60


def load(train_fraction: float = 0.6, min_train: int = 64) -> Dataset:
    """All tasks as one pool. A client is a task with at least `min_train` training samples.

    With the defaults, which are the paper's, there are 212 clients, 51,650 training and 34,554 test
    samples, for every seed of the split.

    Args:
        train_fraction: the share of each task's samples that is for training, rounded down.
        min_train: tasks with fewer training samples are left out, their test samples too.
    """
    if not 0 < train_fraction < 1:
        fix = "the paper uses 0.6"
        raise InputError("data.train_fraction", "must be between 0 and 1", train_fraction, fix)
    if min_train < 1:
        raise InputError("data.min_train", "must be >= 1", min_train, "the paper uses 64")
    x, y, owner = _generate()
    sizes = np.bincount(owner)
    train_sizes = (train_fraction * sizes).astype(np.int64)  # (tasks,)
    kept = train_sizes >= min_train
    if not kept.any():
        fix = f"use {train_sizes.max()} or less"
        raise InputError("data.min_train", "leaves no client", min_train, fix)

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
            "model.name": "perceptron",
            "partition.kind": "natural",
            "cohort": 10,
            "rounds": 1000,
        },
    )


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
