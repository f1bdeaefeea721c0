"""`fedskip data`: the data sets on this machine."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedskip.errors import InputError

app = typer.Typer(no_args_is_help=True, help="Data sets: list, get, show, import.")

Name = Annotated[str, typer.Argument(help="cifar10, cifar100, shakespeare or femnist")]


@app.command("list")
def list_() -> None:
    """Show what is in the cache, and what `import` takes for the rest."""
    from fedskip.cli.datasets import state
    from fedskip.data import cache, catalogue

    typer.echo(f"cache: {cache.folder()} (set FEDSKIP_DATA to change it)")
    for name, item in catalogue.CATALOGUE.items():
        typer.echo(f"{name:<12} {state(name, item.files)}")


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100 or shakespeare")],
) -> None:
    """Download a data set from its official address."""
    from rich import progress
    from rich.console import Console

    from fedskip.cli.datasets import stored
    from fedskip.data import catalogue

    columns = (
        progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )  # fmt: skip
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        catalogue.get(name, _DownloadBar(shown))
    typer.echo(stored(name))


@app.command("import")
def import_(
    name: Name,
    path: Annotated[Path, typer.Argument(help="the official file or folder")],
    force: Annotated[bool, typer.Option("--force", help="replace what is in the cache")] = False,
) -> None:
    """Import a data set from files that you have."""
    from fedskip.cli.datasets import stored
    from fedskip.data import cache, catalogue

    if name in catalogue.imported() and cache.has(name) and not force:
        fix = "add --force to put these files in its place"
        raise InputError("NAME", f"is in {cache.folder()} already", name, fix)
    catalogue.import_(name, path)
    typer.echo(stored(name))


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

    from fedskip.cli.datasets import class_line, draw, refuse_target, setting_of
    from fedskip.config import assigned
    from fedskip.data.division import assign_clients, pooled_test, split

    if out is not None:
        refuse_target(out, force)
    data, setting = setting_of(name, assigned(assignments or []))
    seed = setting.division_seed(0)
    train, test = split(data, seed)
    clients = assign_clients(data, train, seed, setting.partition, setting.clients)
    kind, sizes = setting.partition.get("kind", "from a file"), clients.sizes
    spread = f"{sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}, std {sizes.std():,.0f}"
    for label, value in {
        "data set": data.name,
        "partition": setting.partition.get("file", kind),
        "clients": f"{len(sizes):,}",
        "train samples": f"{sizes.sum():,}",
        "test samples": f"{len(pooled_test(data, test, clients)):,}",
        "classes": class_line(data),
        "client sizes": spread,
    }.items():
        typer.echo(f"{label:<14} {value}")
    for note in data.notes:
        typer.echo(f"{'note':<14} {note}")
    if data.input_names is not None:
        typer.echo(f"{'inputs':<14} {', '.join(data.input_names)}")
    if out is not None:
        draw(data, clients, out, f"{data.name}, {kind}")


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
