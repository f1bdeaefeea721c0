"""`fedskip data`: the data sets on this machine, and who has what of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedskip.errors import join_some, require
from fedskip.files import refuse_existing

if TYPE_CHECKING:
    from fedskip.config import Setting, Tree
    from fedskip.data import Dataset

app = typer.Typer(no_args_is_help=True, help="Data sets: list, get, show, import.")

Name = Annotated[str, typer.Argument(help="cifar10, cifar100, shakespeare or femnist")]
SHOWN = ("data", "partition", "clients", "partition_seed")  # keys of a study that affect `show`


@app.command("list")
def list_() -> None:
    """Show what is in the cache, and what `import` takes for the rest."""
    from fedskip.data import cache, catalogue

    typer.echo(f"cache: {cache.folder()} (set FEDSKIP_DATA to change it)")
    for name, item in catalogue.CATALOGUE.items():
        if item.files is None:
            state = "ready, it is generated"
        elif cache.has(name):
            state = f"ready, {_megabytes(name)}"
        else:
            state = f"not here; import takes {item.files.accepts}"
            state += "; or use get" if item.files.source else ""
        typer.echo(f"{name:<12} {state}")


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100 or shakespeare")],
) -> None:
    """Download a data set from its official address."""
    from rich import progress
    from rich.console import Console

    from fedskip.data import cache, catalogue

    columns = (
        progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )  # fmt: skip
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        catalogue.get(name, _DownloadBar(shown))
    typer.echo(f"{name}: {_megabytes(name)} in {cache.folder() / name}")


@app.command("import")
def import_(
    name: Name,
    path: Annotated[Path, typer.Argument(help="the official file or folder")],
    force: Annotated[bool, typer.Option("--force", help="replace what is in the cache")] = False,
) -> None:
    """Import a data set from files that you have."""
    from fedskip.data import cache, catalogue

    fix = "add --force to put these files in its place"
    is_new = force or not cache.has(name)
    require("NAME", is_new, f"is in {cache.folder()} already", name, fix)
    catalogue.import_(name, path)
    typer.echo(f"{name}: {_megabytes(name)} in {cache.folder() / name}")


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="a data set, or the path of an .npz, .csv or .parquet file")
    ],
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="data.label=outcome, partition.beta=0.1, clients=50, ...",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="where to draw the class x client heat map: map.svg, .png or .pdf"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="overwrite an existing file")] = False,
) -> None:
    """Show the clients, samples and classes of a data set under any partition."""
    import numpy as np

    from fedskip.config import assigned
    from fedskip.data.division import assign_clients, pooled_test, split
    from fedskip.data.partitions import class_counts
    from fedskip.report import heatmap

    if out is not None:
        heatmap.refuse_other_suffix(out)
        refuse_existing("--out", out, force)
    data, setting = _setting(name, assigned(assignments or []))
    seed = setting.division_seed(0)
    train, test = split(data, seed)
    clients = assign_clients(data, train, seed, setting.partition, setting.clients)
    kind, sizes = setting.partition.get("kind", "from a file"), clients.sizes
    classes = "none (not a classification task)" if data.classes is None else f"{data.classes}"
    classes += f" ({join_some(data.class_names, 8)})" if data.class_names else ""
    lines = [
        ("data set", data.name),
        ("partition", setting.partition.get("file", kind)),
        ("clients", f"{len(sizes):,}"),
        ("train samples", f"{sizes.sum():,}"),
        ("test samples", f"{len(pooled_test(data, test, clients)):,}"),
        ("classes", classes),
        (
            "client sizes",
            f"{sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}, std {sizes.std():,.0f}",
        ),
        *(("note", note) for note in data.notes),
        *([("inputs", ", ".join(data.input_names))] if data.input_names is not None else []),
    ]
    for label, value in lines:
        typer.echo(f"{label:<14} {value}")
    if out is not None:
        rule = "draws classes, and this data set has none"
        require("--out", data.classes is not None, rule, data.name, "leave it out")
        counts = class_counts(clients, data.samples.labels(), data.classes or 0)
        heatmap.draw(counts, out, f"{data.name}, {kind}", data.class_names)
        typer.echo(f"{'heat map':<14} {out}")


def _setting(name: str, given: "Tree") -> tuple["Dataset", "Setting"]:
    """The data set, and a setting of it with the given keys, checked as a study does."""
    from fedskip.config import Draft
    from fedskip.data import catalogue

    for key in given.values:
        rule, fix = "does not change the data", "set data.*, partition.* or clients"
        require(key, key in SHOWN, rule, fix=fix)
    options = given.values.get("data") or {}
    is_options = isinstance(options, Mapping)
    fix = "such as data.test_fraction=0.2"
    require("data", is_options, "must hold options of the data set", options, fix)
    draft = Draft({**given.values, "data": {**options, "name": name}})
    data = catalogue.load(**draft.keys["data"])
    fallback = {"partition.kind": "iid", "model.name": "none"}
    unused = {"cohort": 1, "methods": "fedavg", "rounds": 1}
    return data, draft.resolved(fallback | dict(data.defaults) | unused)


def _megabytes(name: str) -> str:
    from fedskip.data import cache

    return f"{cache.size(name) / 1e6:,.0f} MB"


class _DownloadBar:
    """A progress bar of rich with what pooch calls: `total`, `update`, `reset` and `close`."""

    def __init__(self, progress: Any) -> None:
        self._progress, self._task = progress, progress.add_task("", total=None)

    @property
    def total(self) -> Any:
        return self._progress.tasks[self._task].total

    @total.setter
    def total(self, size: int) -> None:  # 0: the server does not say
        self._progress.update(self._task, total=size or None, completed=0)

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop()
