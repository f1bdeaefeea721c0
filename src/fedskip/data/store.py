"""The data sets of the paper on this machine: how to get them, and what a partition of them looks like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedskip.data import cache, cifar, femnist, load, shakespeare
from fedskip.data.heatmap import class_counts
from fedskip.data.partition import partition
from fedskip.data.split import pooled_test
from fedskip.errors import InputError, unknown
from fedskip.fields import expand, overlay


@dataclass(frozen=True)
class Entry:
    """A data set that comes from files: what `import` accepts, how it is read, where it can be had."""

    accepts: str
    read: Callable[[Path], dict[str, np.ndarray]]
    source: cache.Source | None = None


ENTRIES = {
    "cifar10": Entry(
        "cifar-10-python.tar.gz or the folder cifar-10-batches-py",
        partial(cifar.read, cifar.CIFAR10),
        cifar.CIFAR10.source,
    ),
    "cifar100": Entry(
        "cifar-100-python.tar.gz or the folder cifar-100-python",
        partial(cifar.read, cifar.CIFAR100),
        cifar.CIFAR100.source,
    ),
    "shakespeare": Entry(
        "Gutenberg's text of 1994, 1994-01-100.zip, also plain or .xz",
        shakespeare.read,
        shakespeare.SOURCE,
    ),
    "femnist": Entry(femnist.ACCEPTS, femnist.read),
}


def import_(name: str, path: Path) -> None:
    """Read files that the user has, check them, and put them in the cache."""
    entry = _entry(name)
    if not path.exists():
        raise InputError("PATH", "does not exist", str(path), f"give {entry.accepts}")
    cache.write(name, entry.read(path))


def get(name: str, progress: cache.Progress = lambda done, total: None) -> None:
    """Download from the official place and import, unless it is in the cache already."""
    entry = _entry(name)
    if cache.has(name):
        return
    if entry.source is None:
        # LEAF builds FEMNIST from NIST's raw archives and publishes no result.
        fix = f"run `fedskip data import {name} PATH` with {entry.accepts}; docs/data.md says how to make one"
        raise InputError(name, "has no official file to download", fix=fix)
    file = cache.download(entry.source, progress)
    import_(name, file)
    file.unlink()


def _entry(name: str) -> Entry:
    if name == "synthetic":
        raise InputError("NAME", "needs no files: it is generated", name)
    if name not in ENTRIES:
        raise unknown("NAME", name, ENTRIES)
    return ENTRIES[name]


@dataclass(frozen=True)
class Summary:
    """A data set under one partition, in numbers."""

    name: str
    kind: str
    classes: int | None
    test: int
    sizes: np.ndarray  # (N,) training samples of each client
    counts: np.ndarray | None  # (C, N) training samples of each class and client


def summarise(name: str, settings: Mapping[str, Any] | None = None) -> Summary:
    """What a study with these settings would train and test on.

    `settings` are a study's own, nested: `data`, `partition`, `clients`, `partition_seed`; what is left out
    is the data set's default.
    """
    given = dict(settings or {})
    if other := given.keys() - {"data", "partition", "clients", "partition_seed"}:
        raise InputError(min(other), "does not change the data", fix="set data.*, partition.* or clients")
    data = load(**given.pop("data", {}) | {"name": name})
    values = overlay({"partition": {"kind": "iid"}, **expand(data.defaults)}, given)
    options = dict(values["partition"])
    kind, seed = options.pop("kind"), values.get("partition_seed", 0)
    clients = (given if kind == "pooled" else values).get("clients")
    train, test = data.split(seed)
    labels = data.samples.labels()
    parts = partition(kind, train, labels, clients=clients, seed=seed, owner=data.owner, **options)
    test = pooled_test(data, test, parts)
    counts = class_counts(parts, labels, data.classes) if data.classes else None
    return Summary(data.name, kind, data.classes, len(test), parts.sizes, counts)
