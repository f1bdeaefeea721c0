"""`fedskip federation`: the same study over Flower, on this machine or on many."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedskip.input.errors import InputError, require

app = typer.Typer(no_args_is_help=True, help="Real clients that keep their data: docs/federation.md.")

Folder = Annotated[Path, typer.Argument(help="The folder of a federation.", show_default=False)]


def _flower() -> None:
    """Refuse to go on without Flower."""
    from importlib.util import find_spec

    fix = "pip install 'fedskip[flower]'"
    require("Flower", find_spec("flwr") is not None, "is not installed", ..., fix)


def _round(line: dict[str, Any]) -> None:
    """What is said of a round."""
    parts = [f"round {line['round']}/{line['rounds']}", f"{line['seconds']:.1f} s", f"{len(line['clients'])} clients"]
    if "test_accuracy" in line:
        parts.append(f"test {line['test_accuracy']:.4f}, worst client {line['x_worst_client']:.4f}")
    typer.echo("  ".join(parts))
    for name, why in line["left_out"].items():
        typer.secho(f"  {name} was left out: {why}", fg="yellow")


def _closing(folder: Path) -> None:
    from fedskip.cli.screen import close
    from fedskip.report.results import Results

    close(Results.read(folder / "run"))


@app.command()
def local(
    study: Annotated[str | None, typer.Argument(help="A study of one method; SYNTHETIC without.")] = None,
    clients: Annotated[int, typer.Option("-n", "--clients", metavar="N", help="How many.")] = 3,
    rounds: Annotated[int | None, typer.Option(metavar="N")] = None,
    methods: Annotated[str | None, typer.Option(help="One, such as 'scaffold(period=3)'.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of a study: local.lr=0.1.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="By default runs/federation-N.", show_default=False)] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and without keys.")] = False,
) -> None:
    """Try a federation on this machine: a server and N clients as processes, with TLS and registered keys.

    A folder that was begun goes on from its last round.
    """
    _flower()
    from fedskip.cli.studies import folder as named
    from fedskip.flower import agreement
    from fedskip.flower import local as here
    from fedskip.records.provenance import next_folder

    given = {"methods": methods, "rounds": rounds}
    folder = named(out)
    if folder is not None and (folder / agreement.FILE).exists():
        others = {"STUDY": study, "--rounds": rounds, "--methods": methods, "--set": assignments}
        for option, value in others.items():
            fix = "leave it out to go on, or choose another --out"
            require(option, not value, f"is not for {folder}, which was begun", value, fix)
        typer.echo(f"going on in {folder}")
    else:
        require("-n", 1 <= clients <= 64, "must be 1 to 64 on one machine", clients)
        tree = _study(study, clients, given, assignments or [])
        folder = folder or next_folder("federation")
        from fedskip.spec import build

        here.write_local(folder, clients, build(tree))
        typer.echo(f"{folder}: certificates, keys and a share of the data for each of {clients} clients")
    with _resumable(folder, "local --out"):
        here.play(folder, _round, typer.echo, insecure=insecure)
    _closing(folder)


def _study(study: str | None, clients: int, given: dict[str, Any], assignments: list[str]) -> Any:
    from fedskip.cli.chosen import chosen
    from fedskip.flower.local import study_for
    from fedskip.spec import Tree, assigned

    keys = {key: value for key, value in given.items() if value is not None}
    over = assigned(assignments).over(Tree(keys, {key: f"--{key}" for key in keys}))
    return over.over(study_for(clients)) if study is None else chosen(study, over)


from collections.abc import Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402


@contextmanager
def _resumable(folder: Path, command: str) -> Iterator[None]:
    """Tells a user whose federation stops how to go on."""
    from fedskip.flower.superlink import Failed

    again = f"go on with: fedskip federation {command} {folder}"
    try:
        yield
    except KeyboardInterrupt:
        typer.secho(f"Stopped; all processes have ended. {again[0].upper()}{again[1:]}", fg="yellow", err=True)
        raise typer.Exit(130) from None
    except Failed as error:
        typer.secho(f"error: {error}. All processes have ended; {again}", fg="red", err=True)
        raise typer.Exit(1) from None
    except InputError:
        raise
