"""Which samples train, which test, and how the accuracy on a pooled test set is told apart by client."""

from __future__ import annotations

import numpy as np

from fedskip import rng
from fedskip.data.base import Dataset, Split
from fedskip.data.partition import Partition


def within_owners(owner: np.ndarray, train_fraction: float, seed: int) -> Split:
    """A random split of every owner's samples, LEAF's `-t sample`: int(f n) of an owner's n train.

    owner (n,) holds ids from 0; positions come back in ascending order.
    """
    sizes = np.bincount(owner)
    shuffled = np.lexsort((rng.stream(seed, "split").random(len(owner)), owner))  # owner by owner
    rank = np.empty(len(owner), np.int64)  # the place of a sample among those of its owner
    rank[shuffled] = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    trains = rank < (train_fraction * sizes).astype(np.int64)[owner]
    return np.flatnonzero(trains), np.flatnonzero(~trains)


def pooled_test(dataset: Dataset, test: np.ndarray, partition: Partition) -> np.ndarray:
    """The test samples of a natural partition: those of the owners that are its clients.

    A sample without an owner (-1: the test arrays of a user's own file) belongs to everyone.
    """
    if dataset.owner is None:
        return test
    clients = dataset.owner[partition.indices[partition.offsets[:-1]]]
    return test[np.isin(dataset.owner[test], [-1, *clients])]


def evaluation_subset(test: np.ndarray, samples: int | None) -> np.ndarray:
    """At most `samples` of the test samples, for evaluations while training.

    One fixed choice, whatever the run's seed: all methods and seeds are measured on the same samples.
    """
    if samples is None or samples >= len(test):
        return test
    chosen = rng.stream("evaluation", samples, len(test)).choice(len(test), samples, replace=False)
    return test[np.sort(chosen)]


def by_owner(correct: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Owners, their accuracies and their numbers of samples, from what was right (t,) and whose it was (t,).

    The worst client is the lowest accuracy; their mean weighted by the numbers is the pooled accuracy.

    >>> by_owner(np.array([1, 0, 1, 1]), np.array([7, 7, 7, 3]))[1].round(2).tolist()
    [1.0, 0.67]
    """
    owners, member, samples = np.unique(owner, return_inverse=True, return_counts=True)
    return owners, np.bincount(member, weights=correct) / samples, samples
