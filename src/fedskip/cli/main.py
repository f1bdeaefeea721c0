"""The command line: `fedskip run`, `resume`, `list`, `show`, `export`, `bench` and `data`."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedskip.cli import data, studies, tools
from fedskip.input.errors import InputError
from fedskip.version import __version__


class Group(TyperGroup):
    """Commands whose expected errors end in one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except (InputError, OSError) as error:
            typer.secho(f"error: {error}", fg="red", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Group, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    help="FedSkip, its rivals, and the study that compares them.",
)  # fmt: skip
app.command()(studies.run)
app.command()(studies.resume)
app.command("list")(tools.list_)
app.command()(tools.show)
app.command()(tools.export)
app.command()(tools.bench)
app.add_typer(data.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedskip {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def main() -> None:
    app()
