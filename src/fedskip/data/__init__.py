"""Data sets by name: `load("synthetic")` gives a `Dataset`, `load("my.npz")` one of your own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, get_type_hints

from fedskip.data.base import Arrays, Dataset, Samples
from fedskip.data.partition import Partition, partition
from fedskip.errors import InputError, unknown
from fedskip.fields import fit

# name -> module:function that takes the options and gives a Dataset; imported when first asked for
LOADERS = {
    "synthetic": "fedskip.data.synthetic:load",
    "cifar10": "fedskip.data.cifar:cifar10",
    "cifar100": "fedskip.data.cifar:cifar100",
    "shakespeare": "fedskip.data.shakespeare:load",
    "femnist": "fedskip.data.femnist:load",
}

__all__ = ["LOADERS", "Arrays", "Dataset", "Partition", "Samples", "load", "partition"]


def load(name: str, **options: Any) -> Dataset:
    """The data set called `name`, or in the file `name`.npz, with its own options (`data.*` in a study)."""
    given = {}
    if name.endswith(".npz"):
        name, given = "npz", {"path": name}
    elif name not in LOADERS:
        raise unknown("data.name", name, [*LOADERS, "PATH.npz"])
    module, function = LOADERS.get(name, "fedskip.data.npz:load").split(":")
    loader: Callable[..., Dataset] = getattr(import_module(module), function)
    known = get_type_hints(loader)
    known = {option: known[option] for option in inspect.signature(loader).parameters if option not in given}
    for option, value in options.items():
        if option not in known:
            fix = unknown("", option, known).fix if known else "remove it"
            raise InputError(f"data.{option}", f"is not an option of {name!r}", value, fix)
        given[option] = fit(f"data.{option}", value, known[option])
    return loader(**given)
