"""Data sets by name: `load("synthetic")` gives a `Dataset`, `load("my.csv", label="y")` one of your own.

A data set that comes from files is read once, by `import_` or `get`, and kept in the cache.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedskip.data import cache, cifar, femnist, shakespeare, synthetic
from fedskip.data.arrays import load_arrays
from fedskip.data.dataset import Dataset, check_samples
from fedskip.data.tables import TABLES, from_frame
from fedskip.errors import InputError, unknown
from fedskip.files import refuse_unreadable
from fedskip.parsing import fit_options

FORMS = {  # what else may be data, for `fedskip list`
    "PATH.csv, .tsv, .parquet": "a table, a sample in each row; also .csv.gz and .tsv.gz",
    "PATH.npz": "arrays x and y; perhaps client, test_x and test_y",
    "fedskip.from_frame": "a pandas DataFrame",
    "fedskip.from_torch": "a torch.utils.data.Dataset",
    "fedskip.from_huggingface": "a datasets.Dataset or DatasetDict",
    "fedskip.Dataset": "anything else",
}
OWN = ["PATH.npz", "PATH.csv", "PATH.tsv", "PATH.parquet"]  # how messages name files of your own


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


CATALOGUE = {
    "synthetic": Item(synthetic.load),
    "cifar10": Item(
        cifar.cifar10,
        Files(cifar.CIFAR10.accepts, partial(cifar.read, cifar.CIFAR10), cifar.CIFAR10.source),
    ),
    "cifar100": Item(
        cifar.cifar100,
        Files(cifar.CIFAR100.accepts, partial(cifar.read, cifar.CIFAR100), cifar.CIFAR100.source),
    ),
    "shakespeare": Item(
        shakespeare.load, Files(shakespeare.ACCEPTS, shakespeare.read, shakespeare.SOURCE)
    ),
    "femnist": Item(femnist.load, Files(femnist.ACCEPTS, femnist.read)),
}


def is_file(name: str) -> bool:
    """Whether a name is that of a file, and not of a data set in the catalogue."""
    return name.lower().endswith((".npz", *TABLES))


def load(name: str, standardize: bool = False, **options: Any) -> Dataset:
    """Load a data set of the catalogue, or from a file of your own.

    Args:
        name: a key of `CATALOGUE`, or the path of an .npz, .csv, .tsv or .parquet file.
        standardize: give inputs mean 0 and standard deviation 1, by the training samples.
        options: of that data set, `data.*` in a study.

    >>> load("synthetic", train_fraction=0.8)
    Dataset('synthetic': 107,553 samples, 5 classes, 1,000 clients)
    """
    if is_file(name):
        kind = Path(name).suffix[1:]
        loader: Callable[..., Dataset] = load_arrays if kind.lower() == "npz" else from_frame
        dataset = loader(name, **fit_options("data", loader, options, kind))
    elif name in CATALOGUE:
        loader = CATALOGUE[name].load
        dataset = loader(**fit_options("data", loader, options, name))
    else:
        raise unknown("data.name", name, [*CATALOGUE, *OWN])
    return replace(dataset, standardize=standardize) if standardize else dataset


class LoadedDatasets:
    """The data sets of a study: each is loaded and kept once, however many settings use it."""

    def __init__(self) -> None:
        self._loaded: list[tuple[Mapping[str, Any] | Dataset, Dataset]] = []

    def get(self, data: Mapping[str, Any] | Dataset) -> Dataset:
        """The data set that is given, or that the options of `data` (`name`, ...) describe."""
        for known, dataset in self._loaded:
            if known == data:
                return dataset
        if isinstance(data, Dataset):
            check_samples(data)
        self._loaded.append((data, data if isinstance(data, Dataset) else load(**data)))
        return self._loaded[-1][1]


# --- the cache ------------------------------------------------------------------------------------


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
