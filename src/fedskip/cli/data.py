"""`fedskip data`: the data sets on this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from fedskip.data import Dataset, Partition, cache, catalogue, heatmap
from fedskip.data.split import deal, pooled_test, split
from fedskip.input.errors import InputError
from fedskip.spec import Draft, Setting, Tree, assigned

app = typer.Typer(no_args_is_help=True, help="Data sets: list, get, show, import.")

Name = Annotated[str, typer.Argument(help=" or ".join(catalogue.from_files()))]
SHOWN = ("data", "partition", "clients", "partition_seed")  # keys of a study that change what `show` shows


@app.command("list")
def list_() -> None:
    """What is in the cache, and what `import` takes for the rest."""
    typer.echo(f"cache: {cache.folder()} (set FEDSKIP_DATA to change it)")
    for name, item in catalogue.CATALOGUE.items():
        typer.echo(f"{name:<12} {_state(name, item.files)}")


def _state(name: str, files: catalogue.Files | None) -> str:
    if files is None:
        return "ready, it is generated"
    if cache.has(name):
        return f"ready, {_megabytes(name)}"
    return f"not here; import takes {files.accepts}" + ("; or use get" if files.source else "")


@app.command()
def get(name: Name) -> None:
    """Download a data set from its official place."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        catalogue.get(name, lambda done, total: bar.update(task, completed=done, total=total))
    typer.echo(f"{name}: {_megabytes(name)} in {cache.folder() / name}")


@app.command("import")
def import_(name: Name, path: Annotated[Path, typer.Argument(help="the official file or folder")]) -> None:
    """Take a data set from files that you have."""
    catalogue.import_(name, path)
    typer.echo(f"{name}: {_megabytes(name)} in {cache.folder() / name}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="a data set, or the path of an .npz file")],
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="partition.kind=iid, partition.beta=0.1, clients=50, ..."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="where to draw the class x client heat map: map.svg, .png or .pdf")
    ] = None,
) -> None:
    """Clients, samples, classes and sizes of a data set, under any partition."""
    data, setting = _chosen(name, assigned(assignments or []))
    seed = setting.division_seed(0)
    train, test = split(data, seed)
    clients = deal(data, train, seed, setting.partition, setting.clients)
    kind, sizes = setting.partition.get("kind", "from a file"), clients.sizes
    spread = f"{sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}, std {sizes.std():,.0f}"
    for label, value in {
        "data set": data.name,
        "partition": setting.partition.get("file", kind),
        "clients": f"{len(sizes):,}",
        "train samples": f"{sizes.sum():,}",
        "test samples": f"{len(pooled_test(data, test, clients)):,}",
        "classes": data.classes or "none (not a classification task)",
        "client sizes": spread,
    }.items():
        typer.echo(f"{label:<14} {value}")
    if out is not None:
        _draw(data, clients, out, f"{data.name}, {kind}")


def _chosen(name: str, given: Tree) -> tuple[Dataset, Setting]:
    """The data set, and a setting of it with these keys."""
    for key in given.values:
        if key not in SHOWN:
            raise InputError(key, "does not change the data", fix="set data.*, partition.* or clients")
    options = given.values.get("data") or {}
    if not isinstance(options, Mapping):
        fix = "such as data.test_fraction=0.2"
        raise InputError("data", "must hold options of the data set", options, fix)
    draft = Draft({**given.values, "data": {**options, "name": name}})  # refuses what a study refuses
    data = catalogue.load(**draft.keys["data"])
    fallback = {"partition.kind": "iid", "model.name": "none"}
    unused = {"cohort": 1, "methods": "fedavg", "rounds": 1}
    return data, draft.resolved(fallback | dict(data.defaults) | unused)


def _draw(data: Dataset, clients: Partition, out: Path, title: str) -> None:
    if data.classes is None:
        raise InputError("--out", "draws classes, and this data set has none", data.name, "leave it out")
    counts = heatmap.class_counts(clients, data.samples.labels(), data.classes)
    heatmap.draw(counts, out, title)
    typer.echo(f"{'heat map':<14} {out}")


def _megabytes(name: str) -> str:
    return f"{cache.size(name) / 1e6:,.0f} MB"
