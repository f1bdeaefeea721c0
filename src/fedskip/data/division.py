"""Divides a data set at one seed: training, test and validation samples, and each client's share.

Below, the score of a model for each client. Clients that own test samples are tested on these. Otherwise
a client is tested on the pooled test set with its own mix of classes: a test sample of class c weighs
n_ic / (n_i m_c), where n_ic of the client's n_i training samples and m_c of the test samples are of that
class. This is the expected score on test samples drawn by the client's mix of classes, but nothing is
drawn. Classes without test samples are left out of the mix.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from fedskip import rng
from fedskip.data.dataset import Dataset, Split
from fedskip.data.partitions import Partition, class_counts, partition
from fedskip.errors import InputError, first_line, require
from fedskip.files import digest

MOST_CLIENTS = 100  # of a table of classes


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


def sample_counts(partition: Partition, dataset: Dataset) -> str:
    """A table of the training samples, as CSV: a row for each class, a column for each client.

    With many clients, or without classes, it has one row: all samples of each client.
    """
    counts, names = partition.sizes[None], ["all"]
    if dataset.classes and len(partition) <= MOST_CLIENTS:
        counts = class_counts(partition, dataset.samples.labels(), dataset.classes)
        names = [*map(str, dataset.class_names or range(dataset.classes))]
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["class", *range(len(partition))])
    writer.writerows([name, *row] for name, row in zip(names, counts.tolist(), strict=True))
    return out.getvalue()


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
        rule = f"must leave something on both sides of {len(train)} training samples"
        require("validation", 0 < number < len(train), rule, validation)
        held_out, train = np.sort(shuffled[:number]), np.sort(shuffled[number:])
    if saved is not None and saved.exists():
        partition, clients = {"file": str(saved)}, None
        drop_small = False  # small clients were dropped before it was saved
    assigned = assign_clients(dataset, train, seed, partition, clients)
    number = len(assigned)
    assigned = _check_sizes(assigned, batch, drop_small, cohort)
    is_held_out = np.zeros(len(dataset.samples), bool)
    is_held_out[test] = is_held_out[held_out] = True
    leaked = int(is_held_out[assigned.indices].sum())
    # only a file can do this: partitions are drawn from `train`
    rule = f"assigns {leaked} test samples of seed {seed} to clients"
    fix = (
        "bring back its data and settings, or set partition_seed to the seed that it was drawn with"
    )
    require("partition.file", not leaked, rule, partition.get("file"), fix)
    test = pooled_test(dataset, test, assigned)
    rule = "has no test samples for the clients that take part"
    fix = "the test samples of clients without training samples are left out"
    require("data", len(test) > 0, rule, dataset.name, fix)
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
    rule = f"must be <= {len(clients)}, the number of clients"
    require("cohort", cohort <= len(clients), rule, cohort)
    return clients


def split(dataset: Dataset, seed: int) -> Split:
    """The indices of the training and of the test samples; a user's split is checked."""
    last = len(dataset.samples) - 1
    try:
        train, test = (np.asarray(half) for half in dataset.split(seed))
    except Exception as error:  # a user's function may raise anything
        rule = "must give two arrays of whole numbers, the samples for training and for testing"
        rule += f"; at seed {seed} it does not ({type(error).__name__}: {first_line(error)})"
        raise InputError("data.split", rule) from error
    for half in (train, test):
        is_numbers = half.ndim == 1 and (half.dtype.kind in "iu" or not len(half))
        inside = is_numbers and (not len(half) or 0 <= half.min() <= half.max() <= last)
        rule = f"must give the numbers of samples, from 0 to {last}, for training and for testing"
        require("data.split", inside, rule, half, "of a mask, give np.flatnonzero(mask)")
    numbers, times = np.unique(np.concatenate([train, test]), return_counts=True)
    repeated = numbers[times > 1]
    if len(repeated):
        rule = "must give a sample once, for training or for testing"
        fix = f"{len(repeated):,} are given twice; the first of them is {int(repeated[0])}"
        raise InputError("data.split", rule, fix=fix)
    return train.astype(np.int64), test.astype(np.int64)


def assign_clients(
    dataset: Dataset, train: np.ndarray, seed: int, options: Mapping[str, Any], clients: int | None
) -> Partition:
    """Assign training samples to clients: drawn by a `kind` and its options, or read from a `file`."""
    file = options.get("file")
    if file is None:
        rest = {key: value for key, value in options.items() if key != "kind"}
        labels, owner = dataset.samples.labels(), dataset.owner
        return partition(
            options["kind"], train, labels, clients=clients, seed=seed, owner=owner, **rest
        )
    try:
        assigned = Partition.load(file)
    except (OSError, InputError) as error:
        fix = "give one that a study has written, OUT/partition-NAME-SEED.npz"
        more = error.fix if isinstance(error, InputError) else ""
        fix = f"{fix}; {more}" if more else fix
        raise InputError("partition.file", "must be a partition file", file, fix) from error
    fits = assigned.indices.max(initial=-1) < len(dataset.samples)
    fix = "use the data that it was made for"
    require("partition.file", bool(fits), f"is not of data set {dataset.name!r}", file, fix)
    rule = f"must be {len(assigned)}, as in partition.file"
    require("clients", clients in (None, len(assigned)), rule, clients, "leave it out")
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


# --- the score of each client ---------------------------------------------------------------------


def owns_tests(dataset: Dataset, division: Division) -> bool:
    """Whether test samples belong to natural clients."""
    return dataset.owner is not None and bool((dataset.owner[division.test] >= 0).any())


def refuse_unmixed(dataset: Dataset, divisions: Iterable[Division], mean: bool = True) -> None:
    """Refuse data sets and metrics for which the score of a client is not defined.

    `mean` says whether the metric is a mean over samples.
    """
    if all(owns_tests(dataset, division) for division in divisions):
        return
    rule = "cannot be had with this metric: it is no mean over samples, so classes cannot be mixed"
    fix = "name the client of each sample, or put one such as accuracy first"
    require("client_accuracy", mean, rule, True, fix)
    rule = (
        f"is not defined for {dataset.name!r}, which has no classes and no test samples of clients"
    )
    fix = "name the client of each sample, or leave it out: a client's share follows its mix of classes"
    require("client_accuracy", dataset.classes is not None, rule, True, fix)


def grouped(dataset: Dataset, division: Division) -> tuple[np.ndarray, np.ndarray]:
    """The samples to test on, as places in `division.test`, and the group of each, numbered from 0.

    A group is a client if clients own test samples, else a class.
    """
    if dataset.owner is not None and owns_tests(dataset, division):
        owner = dataset.owner[division.test]
        own = np.flatnonzero(owner >= 0)  # -1: it belongs to nobody
        return own, owner[own]
    labels = dataset.samples.labels()[division.test]
    return np.arange(len(labels)), labels.astype(np.int64)


def by_client(dataset: Dataset, division: Division, scores: np.ndarray) -> dict[str | int, float]:
    """The score of each client, from the scores of the groups of `grouped`; NaN scores are left out."""
    names: tuple[str, ...] | None = None
    if owns_tests(dataset, division):
        names = dataset.owner_names
    else:
        labels = dataset.samples.labels()
        counts = class_counts(division.clients, labels, dataset.classes or 0)  # (C, N)
        seen = np.flatnonzero(np.isfinite(scores))
        mix = counts[seen].astype(float)
        with np.errstate(invalid="ignore"):
            scores = (mix * scores[seen, None]).sum(0) / mix.sum(0)
    return {
        names[i] if names else i: float(score)
        for i, score in enumerate(scores)
        if np.isfinite(score)
    }


def worst_decile(scores: Iterable[float], higher: bool = True) -> float | None:
    """The mean score of the worst tenth of the clients, rounded up; None without clients.

    >>> worst_decile([0.5, 0.25, 1.0]), worst_decile([0.5, 0.25, 1.0], higher=False)
    (0.25, 1.0)
    """
    worst = sorted(scores, reverse=not higher)
    return float(np.mean(worst[: math.ceil(len(worst) / 10)])) if worst else None
