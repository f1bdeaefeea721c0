"""Data sets by name: `load("synthetic")` gives a `Dataset`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from fedskip.data.base import Arrays, Dataset, Samples
from fedskip.data.partition import Partition, partition
from fedskip.errors import unknown

# name -> module with a `load(**options) -> Dataset`; imported when first asked for
LOADERS = {
    "synthetic": "fedskip.data.synthetic",
}

__all__ = ["LOADERS", "Arrays", "Dataset", "Partition", "Samples", "load", "partition"]


def load(name: str, **options: Any) -> Dataset:
    """The data set called `name`, with its own options (`data.*` in a study)."""
    if name not in LOADERS:
        raise unknown("data.name", name, LOADERS)
    loader: Callable[..., Dataset] = import_module(LOADERS[name]).load
    return loader(**options)
