"""Which samples train, which test, and which of those are looked at while training."""

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
    """The test samples of those owners whose training samples the partition has dealt.

    A sample without an owner (-1: the test arrays of a user's own file) belongs to everyone.
    """
    if dataset.owner is None:
        return test
    present = np.zeros(dataset.owner.max() + 2, bool)  # one more, at -1
    present[dataset.owner[partition.indices]] = True
    present[-1] = True
    kept: np.ndarray = test[present[dataset.owner[test]]]
    return kept


def evaluation_subset(test: np.ndarray, samples: int | None) -> np.ndarray:
    """At most `samples` of the test samples, for evaluations while training.

    One fixed choice, whatever the run's seed: where the split is the same, so are the samples.
    """
    if samples is None or samples >= len(test):
        return test
    chosen = rng.stream("evaluation", samples, len(test)).choice(len(test), samples, replace=False)
    return test[np.sort(chosen)]
