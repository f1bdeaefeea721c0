"""Which samples train, which test, which of those are looked at while training, and who owns them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedskip import rng
from fedskip.data.base import Dataset, Split
from fedskip.data.partitions import Partition, partition
from fedskip.input.errors import InputError, said


def split(dataset: Dataset, seed: int) -> Split:
    """The pool indices of the training and the test samples; refuses others, repeated or in both."""
    samples = len(dataset.samples)
    found = _halves(dataset, seed)
    for half in found:
        whole = half.ndim == 1 and (half.dtype.kind in "iu" or not len(half))
        if not whole or (len(half) and not 0 <= half.min() <= half.max() < samples):
            fix = "of a mask, give np.flatnonzero(mask)"
            rule = f"must give the numbers of samples, from 0 to {samples - 1}, for training and for testing"
            raise InputError("data.split", rule, half, fix)
    train, test = (half.astype(np.int64) for half in found)
    for half, name in ((train, "training"), (test, "testing")):
        numbers, times = np.unique(half, return_counts=True)
        if len(numbers) < len(half):
            rule = f"must not give a sample twice for {name}, as it does with {(times > 1).sum():,}"
            raise InputError("data.split", rule, ..., f"the first of them is {numbers[times > 1][0]}")
    trains = np.zeros(samples, bool)
    trains[train] = True
    both = test[trains[test]]
    if len(both):
        rule = f"must not give a sample for training and for testing, as it does with {len(both)}"
        raise InputError("data.split", rule, ..., f"the first of them is {both[0]}")
    return train, test


def _halves(dataset: Dataset, seed: int) -> list[np.ndarray]:
    """What a data set's own function gives, if that is two arrays."""
    try:
        given = dataset.split(seed)
    except Exception as error:  # whatever a user's function may raise
        rule = f"cannot be had at seed {seed} ({type(error).__name__}: {said(error)})"
        raise InputError("data.split", rule) from error
    if not isinstance(given, tuple | list) or len(given) != 2:
        rule = "must give two arrays, the numbers of samples for training and for testing"
        raise InputError("data.split", rule, type(given).__name__)
    try:
        return [np.asarray(half) for half in given]
    except (TypeError, ValueError) as error:
        raise InputError("data.split", f"must give arrays of whole numbers ({said(error)})") from error


def deal(
    dataset: Dataset, train: np.ndarray, seed: int, options: Mapping[str, Any], clients: int | None
) -> Partition:
    """Who owns which training sample: drawn by `kind` and its options, or read from a `file`."""
    chosen = dict(options)
    if "file" not in chosen:
        kind, labels = chosen.pop("kind"), dataset.samples.labels()
        return partition(kind, train, labels, clients=clients, seed=seed, owner=dataset.owner, **chosen)
    try:
        found = Partition.load(chosen["file"])
    except (OSError, InputError) as error:
        fix = "give one that a study has written, OUT/partition-NAME-SEED.npz"
        raise InputError("partition.file", "must be a partition file", chosen["file"], fix) from error
    if len(found.indices) and found.indices.max() >= len(dataset.samples):
        raise InputError("partition.file", f"is not of data set {dataset.name!r}", chosen["file"])
    if clients not in (None, len(found)):
        raise InputError("clients", f"must be {len(found)}, as in partition.file", clients, "leave it out")
    return found


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
