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

from fedskip.data import cache, cifar, femnist, from_files, shakespeare, synthetic
from fedskip.data.dataset import Dataset
from fedskip.errors import InputError, unknown
from fedskip.files import refuse_unreadable
from fedskip.parsing import fit


@dataclass(frozen=True)
class Files:
    """The files that a data set is made from."""

    accepts: str  # what `import` takes, for the user
    read: Callable[[Path], dict[str, np.ndarray]]  # reads and checks them; arrays for the cache
    source: cache.Source | None = None  # where to download them


@dataclass(frozen=True)
class Item:
    """A data set of the catalogue. The arguments of `load` are its options, `data.*` in a study."""

    load: Callable[..., Dataset]
    files: Files | None = None  # None: it is generated


def _cifar_files(cifar_: cifar.Cifar) -> Files:
    return Files(cifar_.accepts, partial(cifar.read, cifar_), cifar_.source)


CATALOGUE = {
    "synthetic": Item(synthetic.load),
    "cifar10": Item(cifar.cifar10, _cifar_files(cifar.CIFAR10)),
    "cifar100": Item(cifar.cifar100, _cifar_files(cifar.CIFAR100)),
    "shakespeare": Item(
        shakespeare.load, Files(shakespeare.ACCEPTS, shakespeare.read, shakespeare.SOURCE)
    ),
    "femnist": Item(femnist.load, Files(femnist.ACCEPTS, femnist.read)),
}


def load(name: str, standardize: bool = False, **options: Any) -> Dataset:
    """Load a data set of the catalogue, or from a file of your own.

    Args:
        name: a key of `CATALOGUE`, or the path of an .npz, .csv, .tsv or .parquet file.
        standardize: give inputs mean 0 and standard deviation 1, by the training samples.
        options: of that data set, `data.*` in a study.

    >>> load("synthetic", train_fraction=0.8)
    Dataset('synthetic': 107,553 samples, 5 classes, 1,000 clients)
    """
    given: dict[str, Any] = {}
    if from_files.is_file(name):
        given["path"] = name
        is_npz = name.endswith(".npz")
        loader: Callable[..., Dataset] = from_files.load_arrays if is_npz else from_files.load_table
    elif name in CATALOGUE:
        loader = CATALOGUE[name].load
    else:
        raise unknown("data.name", name, [*CATALOGUE, *from_files.SHOWN])
    hints = get_type_hints(loader)
    hinted = {key: hints[key] for key in inspect.signature(loader).parameters if key not in given}
    for option, value in options.items():
        if option not in hinted:
            what = Path(name).suffix[1:] if given else name
            fix = unknown("", option, [*hinted, "standardize"]).fix
            raise InputError(f"data.{option}", f"is not an option of {what!r}", value, fix)
        given[option] = fit(f"data.{option}", value, hinted[option])
    dataset = loader(**given)
    return replace(dataset, standardize=standardize) if standardize else dataset


def import_(name: str, path: Path) -> None:
    """Read files that the user has, check them, and put them in the cache."""
    files = _files_of(name)
    if not path.exists():
        raise InputError("PATH", "does not exist", str(path), f"give {files.accepts}")
    if not path.is_dir():
        refuse_unreadable("PATH", path)
    with cache.locked():
        cache.write(name, files.read(path))


def get(name: str, progress: Any = False) -> None:
    """Download a data set and import it, unless it is in the cache already.

    `progress` is a progress bar, see `cache.download`.
    """
    files = _files_of(name)
    if files.source is None and not cache.has(name):
        fix = cache.how_to_import(name, files.accepts)
        raise InputError(name, "has no official file to download", fix=fix)
    with cache.locked():
        if cache.has(name) or files.source is None:
            return
        file = cache.download(files.source, progress)
        cache.write(name, files.read(file))
        file.unlink()


def imported() -> dict[str, Files]:
    """The data sets that are made from files, in the cache or not."""
    return {name: item.files for name, item in CATALOGUE.items() if item.files is not None}


def _files_of(name: str) -> Files:
    files = imported()
    if name in CATALOGUE and name not in files:
        raise InputError("NAME", "needs no files: it is generated", name)
    if name not in files:
        raise unknown("NAME", name, files)
    return files[name]
