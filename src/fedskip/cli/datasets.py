"""What `fedskip data` prints: the state of the cache, and a data set as a study would divide it."""

from collections.abc import Mapping
from pathlib import Path

import typer

from fedskip.config import Draft, Setting, Tree
from fedskip.data import Dataset, Partition, cache, catalogue, heatmap
from fedskip.data.table_columns import listed
from fedskip.errors import InputError, require
from fedskip.files import refuse_existing

SHOWN = ("data", "partition", "clients", "partition_seed")  # keys of a study that affect `show`


def state(name: str, files: catalogue.Files | None) -> str:
    if files is None:
        return "ready, it is generated"
    if cache.has(name):
        return f"ready, {_megabytes(name)}"
    return f"not here; import takes {files.accepts}" + ("; or use get" if files.source else "")


def setting_of(name: str, given: Tree) -> tuple[Dataset, Setting]:
    """The data set, and a setting of it with the given keys."""
    fix = "set data.*, partition.* or clients"
    for key in given.values:
        require(key, key in SHOWN, "does not change the data", fix=fix)
    options = given.values.get("data") or {}
    if not isinstance(options, Mapping):
        fix = "such as data.test_fraction=0.2"
        raise InputError("data", "must hold options of the data set", options, fix)
    draft = Draft(
        {**given.values, "data": {**options, "name": name}}
    )  # checks them as a study does
    data = catalogue.load(**draft.keys["data"])
    fallback = {"partition.kind": "iid", "model.name": "none"}
    unused = {"cohort": 1, "methods": "fedavg", "rounds": 1}
    return data, draft.resolved(fallback | dict(data.defaults) | unused)


def class_line(data: Dataset) -> str:
    """The number of classes, and their names."""
    if data.classes is None:
        return "none (not a classification task)"
    return f"{data.classes}" + (f" ({listed(data.class_names)})" if data.class_names else "")


def refuse_target(out: Path, force: bool) -> None:
    """Refuse a picture that cannot be written, before anything is computed."""
    heatmap.refuse_other_suffix(out)
    refuse_existing("--out", out, force)


def draw(data: Dataset, clients: Partition, out: Path, title: str) -> None:
    if data.classes is None:
        raise InputError(
            "--out", "draws classes, and this data set has none", data.name, "leave it out"
        )
    counts = heatmap.class_counts(clients, data.samples.labels(), data.classes)
    heatmap.draw(counts, out, title, data.class_names)
    typer.echo(f"{'heat map':<14} {out}")


def stored(name: str) -> str:
    return f"{name}: {_megabytes(name)} in {cache.folder() / name}"


def _megabytes(name: str) -> str:
    return f"{cache.size(name) / 1e6:,.0f} MB"
