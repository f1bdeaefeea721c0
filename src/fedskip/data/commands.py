"""`fedskip data`: the data sets of the paper on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from fedskip import config
from fedskip.data import cache, heatmap, store

app = typer.Typer(no_args_is_help=True, help="The paper's data sets: list, get, show, import.")

Name = Annotated[str, typer.Argument(help="cifar10, cifar100, shakespeare or femnist")]


@app.command("list")
def list_() -> None:
    """What is in the cache, and what `import` takes for the rest."""
    typer.echo(f"cache: {cache.folder()} (set FEDSKIP_DATA to change it)")
    typer.echo("synthetic    ready, it is generated")
    for name, entry in store.ENTRIES.items():
        missing = f"not here; import takes {entry.accepts}" + ("; or use get" if entry.source else "")
        typer.echo(f"{name:<12} {f'ready, {_megabytes(name)}' if cache.has(name) else missing}")


@app.command()
def get(name: Name) -> None:
    """Download a data set from its official place."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        store.get(name, lambda done, total: bar.update(task, completed=done, total=total))
    _report(name)


@app.command("import")
def import_(name: Name, path: Annotated[Path, typer.Argument(help="the official file or folder")]) -> None:
    """Take a data set from files that you have."""
    store.import_(name, path)
    _report(name)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="a data set, or the path of an .npz file")],
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="partition.kind=iid, partition.beta=0.1, clients=50, ..."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="where to draw the class x client heat map")] = None,
) -> None:
    """Clients, samples, classes and sizes of a data set, under any partition."""
    found = store.summarise(name, config.apply(config.Tree({}), assignments or []).values)
    sizes = found.sizes
    spread = f"{sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}, std {sizes.std():,.0f}"
    for label, value in {
        "data set": found.name,
        "partition": found.kind,
        "clients": f"{len(sizes):,}",
        "train samples": f"{sizes.sum():,}",
        "test samples": f"{found.test:,}",
        "classes": found.classes or "none (not a classification task)",
        "client sizes": spread,
    }.items():
        typer.echo(f"{label:<14} {value}")
    if found.counts is not None:
        out = out or Path(f"{found.name}-{found.kind}.svg")
        heatmap.draw(found.counts, out, f"{found.name}, {found.kind}")
        typer.echo(f"{'heat map':<14} {out}")


def _report(name: str) -> None:
    typer.echo(f"{name}: {_megabytes(name)} in {cache.folder() / name}")


def _megabytes(name: str) -> str:
    return f"{cache.size(name) / 1e6:,.0f} MB"
