"""Divides a data set at one seed: training, test and validation samples, and each client's share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedskip import rng
from fedskip.data.dataset import Dataset, Split
from fedskip.data.partitions import Partition, partition
from fedskip.errors import InputError, first_line
from fedskip.files import digest


@dataclass(frozen=True)
class Division:
    """Who has which samples, as indices into the pool."""

    clients: Partition
    test: np.ndarray  # pooled over the clients that take part
    evaluated: np.ndarray  # the part of `test` that is used while training
    validation: np.ndarray
    dropped: int = 0  # clients that were too small; a saved partition does not say how many

    def shifted(self, by: int) -> Division:
        """The same samples in a pool where they come `by` places later."""
        clients = Partition(self.clients.indices + by, self.clients.offsets)
        own = {name: getattr(self, name) + by for name in ("test", "evaluated", "validation")}
        return replace(self, clients=clients, **own)

    def facts(self) -> dict[str, Any]:
        """Counts and digests, as `study.yaml` records them."""
        return {
            "partition": self.clients.hash, "clients": len(self.clients),
            "train": int(self.clients.sizes.sum()), "test": len(self.test),
            "evaluated": len(self.evaluated), "validation": len(self.validation),
            "held_out": digest(np.concatenate([self.test, self.validation]).astype(np.int64).data),
        }  # fmt: skip


def divide(
    dataset: Dataset,
    seed: int,
    *,
    partition: Mapping[str, Any],
    clients: int | None,
    cohort: int,
    batch: int,
    drop_small: bool,
    validation: float,
    eval_samples: int | None,
    saved: Path | None = None,
) -> Division:
    """Divide a data set as a setting asks for.

    Args:
        dataset: what to divide.
        seed: the partition seed.
        partition: `kind` and its options, or the `file` of a partition.
        clients: their number; None where the partition decides it.
        cohort: clients in a round; there must be as many.
        batch: the fewest samples that a client may have.
        drop_small: leave out smaller clients instead of refusing them.
        validation: the share of the training samples that is held out for validation.
        eval_samples: at most so many test samples are used while training; None for all.
        saved: a partition file of this study, which is used if it exists.
    """
    train, test = split(dataset, seed)
    held_out = train[:0]
    if validation:
        shuffled = rng.stream(seed, "validation").permutation(train)
        number = round(validation * len(train))
        if not 0 < number < len(train):
            rule = f"must leave something on both sides of {len(train)} training samples"
            raise InputError("validation", rule, validation)
        held_out, train = np.sort(shuffled[:number]), np.sort(shuffled[number:])
    if saved is not None and saved.exists():
        assigned, file = Partition.load(saved), str(saved)
        fix = "bring back the data and the settings that the study began with"
        if len(assigned.indices) and assigned.indices.max() >= len(dataset.samples):
            raise InputError("data", f"does not hold the samples of {saved}", dataset.name, fix)
        drop_small = False  # small clients were dropped before it was saved
    else:
        assigned = assign_clients(dataset, train, seed, partition, clients)
        file = str(partition.get("file"))
        fix = "set partition_seed to the seed that it was drawn with"
    number = len(assigned)
    assigned = _check_sizes(assigned, batch, drop_small, cohort)
    is_held_out = np.zeros(len(dataset.samples), bool)
    is_held_out[test] = is_held_out[held_out] = True
    leaked = int(is_held_out[assigned.indices].sum())
    if leaked:  # only a file can do this: partitions are drawn from `train`
        rule = f"assigns {leaked} test samples of seed {seed} to clients"
        raise InputError("partition.file", rule, file, fix)
    test = pooled_test(dataset, test, assigned)
    if not len(test):
        rule = "has no test samples for the clients that take part"
        fix = "the test samples of clients without training samples are left out"
        raise InputError("data", rule, dataset.name, fix)
    evaluated = evaluation_subset(test, eval_samples)
    return Division(assigned, test, evaluated, held_out, number - len(assigned))


def _check_sizes(clients: Partition, batch: int, drop_small: bool, cohort: int) -> Partition:
    """Refuse or drop clients that cannot fill a batch; refuse a cohort larger than the rest."""
    sizes = clients.sizes
    if (sizes == 0).any():
        client = int(np.flatnonzero(sizes == 0)[0])
        raise InputError("partition", "leaves a client empty", client, "use fewer clients")
    small = sizes < batch
    if small.any() and not drop_small:
        client = int(np.flatnonzero(small)[0])
        rule = f"must fit every client; client {client} has {sizes[client]} samples"
        fix = f"{small.sum()} of {len(sizes)} clients are too small: set local.small_clients to drop or "
        raise InputError("local.batch", rule, batch, fix + "short, or use a smaller local.batch")
    clients = clients.select(~small) if small.any() else clients
    if cohort > len(clients):
        raise InputError("cohort", f"must be <= {len(clients)}, the number of clients", cohort)
    return clients


def split(dataset: Dataset, seed: int) -> Split:
    """The indices of the training and of the test samples; a user's split is checked."""
    samples = len(dataset.samples)
    halves = _given_split(dataset, seed)
    for half in halves:
        is_numbers = half.ndim == 1 and (half.dtype.kind in "iu" or not len(half))
        if not is_numbers or (len(half) and not 0 <= half.min() <= half.max() < samples):
            rule = f"must give the numbers of samples, from 0 to {samples - 1}, for training and for testing"
            raise InputError("data.split", rule, half, "of a mask, give np.flatnonzero(mask)")
    train, test = (half.astype(np.int64) for half in halves)
    for half, name in ((train, "training"), (test, "testing")):
        numbers, times = np.unique(half, return_counts=True)
        if len(numbers) < len(half):
            rule = f"must not give a sample twice for {name}, as it does with {(times > 1).sum():,}"
            fix = f"the first of them is {numbers[times > 1][0]}"
            raise InputError("data.split", rule, fix=fix)
    both = test[np.isin(test, train)]
    if len(both):
        rule = f"must not give a sample for training and for testing, as it does with {len(both)}"
        raise InputError("data.split", rule, fix=f"the first of them is {both[0]}")
    return train, test


def _given_split(dataset: Dataset, seed: int) -> list[np.ndarray]:
    """The two arrays of a data set's own split function."""
    try:
        given = dataset.split(seed)
    except Exception as error:  # a user's function may raise anything
        rule = f"fails at seed {seed} ({type(error).__name__}: {first_line(error)})"
        raise InputError("data.split", rule) from error
    if not isinstance(given, tuple | list) or len(given) != 2:
        rule = "must give two arrays, the numbers of samples for training and for testing"
        raise InputError("data.split", rule, type(given).__name__)
    try:
        return [np.asarray(half) for half in given]
    except (TypeError, ValueError) as error:
        rule = f"must give arrays of whole numbers ({first_line(error)})"
        raise InputError("data.split", rule) from error


def assign_clients(
    dataset: Dataset, train: np.ndarray, seed: int, options: Mapping[str, Any], clients: int | None
) -> Partition:
    """Assign training samples to clients: drawn by a `kind` and its options, or read from a `file`."""
    chosen = dict(options)
    if "file" not in chosen:
        kind, labels = chosen.pop("kind"), dataset.samples.labels()
        return partition(
            kind, train, labels, clients=clients, seed=seed, owner=dataset.owner, **chosen
        )
    file = chosen["file"]
    try:
        assigned = Partition.load(file)
    except (OSError, InputError) as error:
        fix = "give one that a study has written, OUT/partition-NAME-SEED.npz"
        raise InputError("partition.file", "must be a partition file", file, fix) from error
    if len(assigned.indices) and assigned.indices.max() >= len(dataset.samples):
        raise InputError("partition.file", f"is not of data set {dataset.name!r}", file)
    if clients not in (None, len(assigned)):
        rule = f"must be {len(assigned)}, as in partition.file"
        raise InputError("clients", rule, clients, "leave it out")
    return assigned


def split_by_owner(owner: np.ndarray, train_fraction: float, seed: int) -> Split:
    """Split every owner's samples at random, as LEAF's `-t sample`: int(f n) of n samples train.

    `owner` (n,) holds numbers from 0. Indices come back in ascending order.
    """
    sizes = np.bincount(owner)
    shuffled = np.lexsort((rng.stream(seed, "split").random(len(owner)), owner))  # owner by owner
    rank = np.empty(len(owner), np.int64)  # the place of a sample among those of its owner
    rank[shuffled] = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    trains = rank < (train_fraction * sizes).astype(np.int64)[owner]
    return np.flatnonzero(trains), np.flatnonzero(~trains)


def pooled_test(dataset: Dataset, test: np.ndarray, partition: Partition) -> np.ndarray:
    """The test samples of the owners whose training samples are assigned to clients.

    Samples of nobody (owner -1) belong to everyone.
    """
    if dataset.owner is None:
        return test
    present = np.zeros(dataset.owner.max() + 2, bool)  # the last entry is that of -1
    present[dataset.owner[partition.indices]] = True
    present[-1] = True
    kept: np.ndarray = test[present[dataset.owner[test]]]
    return kept


def evaluation_subset(test: np.ndarray, samples: int | None) -> np.ndarray:
    """At most `samples` of the test samples, for evaluations while training.

    The choice is fixed and does not depend on the run's seed.
    """
    if samples is None or samples >= len(test):
        return test
    chosen = rng.stream("evaluation", samples, len(test)).choice(len(test), samples, replace=False)
    return test[np.sort(chosen)]
