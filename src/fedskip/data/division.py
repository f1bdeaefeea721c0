"""Who has what at one partition seed: the clients, the test set, the validation set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedskip import rng
from fedskip.data.base import Dataset
from fedskip.data.partitions import Partition
from fedskip.data.split import deal, evaluation_subset, pooled_test, split
from fedskip.files import digest
from fedskip.input.errors import InputError


@dataclass(frozen=True)
class Division:
    """All are pool indices."""

    clients: Partition
    test: np.ndarray  # pooled over the clients that take part
    evaluated: np.ndarray  # the part of it that is used while training
    validation: np.ndarray
    dropped: int = 0  # clients that were too small; not known of a saved partition, which lacks them

    def shifted(self, by: int) -> Division:
        """The same samples in a pool where they come later."""
        clients = Partition(self.clients.indices + by, self.clients.offsets)
        own = {name: getattr(self, name) + by for name in ("test", "evaluated", "validation")}
        return replace(self, clients=clients, **own)

    def facts(self) -> dict[str, Any]:
        """In numbers."""
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
    """Divide a data set as a setting wants it.

    `batch` is the fewest samples that a client must have; `saved` a partition file of this study, which is
    taken as it is if it is there.
    """
    train, test = split(dataset, seed)
    held_out = train[:0]
    if validation:
        shuffled, number = rng.stream(seed, "validation").permutation(train), round(validation * len(train))
        if not 0 < number < len(train):
            rule = f"must leave something on both sides of {len(train)} training samples"
            raise InputError("validation", rule, validation)
        held_out, train = np.sort(shuffled[:number]), np.sort(shuffled[number:])
    if saved is not None and saved.exists():
        dealt, file = Partition.load(saved), str(saved)
        fix = "bring back the data and the settings that the study was begun with"
        if len(dealt.indices) and dealt.indices.max() >= len(dataset.samples):
            raise InputError("data", f"does not hold the samples of {saved}", dataset.name, fix)
        drop_small = False  # that was done when it was saved
    else:
        dealt, file = deal(dataset, train, seed, partition, clients), str(partition.get("file"))
        fix = "set partition_seed to the seed that it was drawn with"
    number = len(dealt)
    dealt = _large_enough(dealt, batch, drop_small, cohort)
    held = np.zeros(len(dataset.samples), bool)
    held[test] = held[held_out] = True
    leaked = int(held[dealt.indices].sum())
    if leaked:  # by a file; what is drawn comes from `train`
        rule = f"deals {leaked} samples that are for testing at seed {seed}"
        raise InputError("partition.file", rule, file, fix)
    test = pooled_test(dataset, test, dealt)
    if not len(test):
        fix = "the test samples of clients without training samples are left out"
        raise InputError("data", "has no test samples for the clients that take part", dataset.name, fix)
    return Division(dealt, test, evaluation_subset(test, eval_samples), held_out, number - len(dealt))


def _large_enough(clients: Partition, batch: int, drop_small: bool, cohort: int) -> Partition:
    """Refuse or drop clients that cannot fill a batch, and cohorts larger than what is left."""
    sizes = clients.sizes
    if (sizes == 0).any():
        client = int(np.flatnonzero(sizes == 0)[0])
        raise InputError("partition", "leaves a client empty", client, "use fewer clients")
    small = sizes < batch
    if small.any() and not drop_small:
        client = int(np.flatnonzero(small)[0])
        raise InputError(
            "local.batch", f"must fit every client; client {client} has {sizes[client]} samples", batch,
            f"{small.sum()} of {len(sizes)} clients are too small: set local.small_clients to drop or short, "
            "or a smaller local.batch",
        )  # fmt: skip
    clients = clients.select(~small) if small.any() else clients
    if cohort > len(clients):
        raise InputError("cohort", f"must be <= {len(clients)}, the number of clients", cohort)
    return clients
