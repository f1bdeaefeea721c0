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
from fedskip.data.partition import Partition, partition
from fedskip.data.split import pooled_test
from fedskip.errors import InputError, unknown
from fedskip.fields import expand, fit, overlay
from fedskip.spec import Setting


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
    with cache.held():
        cache.write(name, entry.read(path))


def get(name: str, progress: cache.Progress = lambda done, total: None) -> None:
    """Download from the official place and import, unless it is in the cache already."""
    entry = _entry(name)
    if entry.source is None and not cache.has(name):
        # LEAF builds FEMNIST from NIST's raw archives and publishes no result.
        fix = f"run `fedskip data import {name} PATH` with {entry.accepts}; docs/data.md says how to make one"
        raise InputError(name, "has no official file to download", fix=fix)
    with cache.held():
        if cache.has(name) or entry.source is None:
            return
        file = cache.download(entry.source, progress)
        cache.write(name, entry.read(file))
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
    chosen = given.pop("data", None) or {}
    if not isinstance(chosen, Mapping):
        raise InputError(
            "data", "must hold options of the data set", chosen, "such as data.test_fraction=0.2"
        )
    chosen = {**chosen, "name": name}
    setting = Setting(data=chosen, **given)  # refuses what a study refuses
    data = load(**chosen)
    defaults = overlay({"partition": {"kind": "iid"}}, expand(data.defaults))
    options = overlay(defaults["partition"], setting.partition or {})
    seed, labels = setting.partition_seed or 0, data.samples.labels()
    train, test = data.split(seed)
    if "file" in options:
        kind, parts = options["file"], Partition.load(options["file"])
    else:
        kind, clients = fit("partition.kind", options.pop("kind"), str), setting.clients
        if kind != "pooled" and clients is None:
            clients = defaults.get("clients")
        parts = partition(kind, train, labels, clients=clients, seed=seed, owner=data.owner, **options)
    test = pooled_test(data, test, parts)
    counts = class_counts(parts, labels, data.classes) if data.classes else None
    return Summary(data.name, kind, data.classes, len(test), parts.sizes, counts)
