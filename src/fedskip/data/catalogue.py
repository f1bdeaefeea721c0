"""Data sets by name: `load("synthetic")` gives a `Dataset`, `load("my.csv", label="y")` one of your own.

A data set that comes from files is read once, by `import_` or `get`, and kept in the cache.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from fedskip.data import cache, cifar, femnist, npz, shakespeare, synthetic, tables
from fedskip.data.base import Dataset
from fedskip.files import refuse_unreadable
from fedskip.input.errors import InputError, unknown
from fedskip.input.fit import fit


@dataclass(frozen=True)
class Files:
    """What a data set is made from: what `import` accepts, how it is read, where it can be had."""

    accepts: str
    read: Callable[[Path], dict[str, np.ndarray]]
    source: cache.Source | None = None


@dataclass(frozen=True)
class Item:
    """A data set of the catalogue. The arguments of `load` are its options, `data.*` in a study."""

    load: Callable[..., Dataset]
    files: Files | None = None  # None: it is generated


CATALOGUE = {
    "synthetic": Item(synthetic.load),
    "cifar10": Item(
        cifar.cifar10,
        Files(
            "cifar-10-python.tar.gz or the folder cifar-10-batches-py",
            partial(cifar.read, cifar.CIFAR10),
            cifar.CIFAR10.source,
        ),
    ),
    "cifar100": Item(
        cifar.cifar100,
        Files(
            "cifar-100-python.tar.gz or the folder cifar-100-python",
            partial(cifar.read, cifar.CIFAR100),
            cifar.CIFAR100.source,
        ),
    ),
    "shakespeare": Item(
        shakespeare.load,
        Files(
            "Gutenberg's text of 1994, 1994-01-100.zip, also plain or .xz",
            shakespeare.read,
            shakespeare.SOURCE,
        ),
    ),
    "femnist": Item(femnist.load, Files(femnist.ACCEPTS, femnist.read)),
}


FILES = ["PATH.npz", "PATH.csv", "PATH.parquet"]


def is_file(name: str) -> bool:
    """Whether a name is that of a file of one's own."""
    return name.endswith(".npz") or tables.is_table(name)


def load(name: str, standardize: bool = False, **options: Any) -> Dataset:
    """The data set called `name`, or in the file of that name, with its own options.

    `standardize` is an option of all: see `Dataset`.
    """
    given: dict[str, Any] = {}
    if is_file(name):
        loader, given = npz.load if name.endswith(".npz") else tables.load, {"path": name}
    elif name in CATALOGUE:
        loader = CATALOGUE[name].load
    else:
        raise unknown("data.name", name, [*CATALOGUE, *FILES])
    hints = get_type_hints(loader)
    known = {option: hints[option] for option in inspect.signature(loader).parameters if option not in given}
    for option, value in options.items():
        if option not in known:
            what = Path(name).suffix[1:] if given else name
            fix = unknown("", option, [*known, "standardize"]).fix
            raise InputError(f"data.{option}", f"is not an option of {what!r}", value, fix)
        given[option] = fit(f"data.{option}", value, known[option])
    loaded = loader(**given)
    return replace(loaded, standardize=standardize) if standardize else loaded


def import_(name: str, path: Path) -> None:
    """Read files that the user has, check them, and put them in the cache."""
    files = _files(name)
    if not path.exists():
        raise InputError("PATH", "does not exist", str(path), f"give {files.accepts}")
    if not path.is_dir():
        refuse_unreadable("PATH", path)
    with cache.held():
        cache.write(name, files.read(path))


def get(name: str, progress: cache.Progress = lambda done, total: None) -> None:
    """Download from the official place and import, unless it is in the cache already."""
    files = _files(name)
    if files.source is None and not cache.has(name):
        # LEAF builds FEMNIST from NIST's raw archives and publishes no result.
        fix = cache.importing(name, files.accepts)
        raise InputError(name, "has no official file to download", fix=fix)
    with cache.held():
        if cache.has(name) or files.source is None:
            return
        file = cache.download(files.source, progress)
        cache.write(name, files.read(file))
        file.unlink()


def from_files() -> dict[str, Files]:
    """The data sets that come from files."""
    return {name: item.files for name, item in CATALOGUE.items() if item.files is not None}


def _files(name: str) -> Files:
    found = from_files()
    if name in CATALOGUE and name not in found:
        raise InputError("NAME", "needs no files: it is generated", name)
    if name not in found:
        raise unknown("NAME", name, found)
    return found[name]
