"""`fedskip paper`: what of the paper can be run, and how far it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedskip.files import refuse_existing
from fedskip.input.errors import InputError, unknown
from fedskip.report.choices import SCORES

if TYPE_CHECKING:
    from fedskip.report.results import Results

app = typer.Typer(invoke_without_command=True, help="The paper's tables and figures: list, status.")

Outs = Annotated[list[Path] | None, typer.Argument(metavar="OUT...", help="Folders of studies.")]


@app.callback()
def default(context: typer.Context) -> None:
    """The paper's tables and figures: list, status."""
    if context.invoked_subcommand is None:
        list_(None)


@app.command("list")
def list_(outs: Outs = None) -> None:
    """What `fedskip run` takes, what it needs, and what has been run; OUT: by default runs/*."""
    from fedskip.cli.screen import console
    from fedskip.paper.computed import COMPUTED
    from fedskip.paper.overview import found, overview

    screen = console()
    sheet = overview(found(outs))
    screen.print(sheet, sheet.note, "", sep="\n")
    screen.print("Without /SETTING, all settings of a study. Computed, from what was run (--from OUT):")
    for name, one in COMPUTED.items():
        screen.print(f"  {name:<11} {one.words}")


@app.command()
def status(
    outs: Outs = None,
    score: Annotated[str, typer.Option(metavar="|".join(SCORES))] = "best",
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to draw Figures 1 and 5, as far as they go.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also over pictures that are there.")] = False,
) -> None:
    """The paper's tables filled with what there is, beside the published numbers; OUT: by default runs/*."""
    from fedskip.cli.screen import console
    from fedskip.paper.overview import found, tables
    from fedskip.paper.pictures import shown
    from fedskip.paper.table4 import table4

    if score not in SCORES:
        raise unknown("--score", score, SCORES)
    studies, screen = found(outs), console()
    names = [*shown(studies)]
    for name in names:
        if figures is not None:
            refuse_existing("--figures", figures / f"{name}.svg", force)
    for sheet in tables(studies, score):
        screen.print(sheet)
    for part in table4(studies, None):
        screen.print(part)
    picture(names, studies, figures)


def picture(names: list[str], studies: list[Results], folder: Path | None, score: str | None = None) -> None:
    """Print some of the paper's figures in numbers, and draw them if there is a folder for it."""
    from fedskip.cli.screen import console
    from fedskip.files import write_bytes
    from fedskip.paper.pictures import shown
    from fedskip.report.canvas import drawn

    screen, found = console(), shown(studies, score)
    for name, (sheet, draw) in found.items():
        if name in names:
            screen.print(sheet, sheet.note, sep="\n" if sheet.note else "")
            if draw is not None and folder is not None:
                write_bytes(folder / f"{name}.svg", drawn(draw(), "svg"))
                screen.print(f"{folder / f'{name}.svg'}", soft_wrap=True)


def compute(name: str, outs: list[Path] | None, to: Path | None, models: str | None = None) -> None:
    """Make something of the paper that is not trained; `models`: the costs of these only."""
    from fedskip.cli.screen import console
    from fedskip.paper.complexity import cases_of, complexity
    from fedskip.paper.computed import COMPUTED
    from fedskip.paper.overview import found
    from fedskip.records.provenance import next_folder

    cases, screen, to = cases_of(models), console(), to or next_folder(name)
    if to.is_dir() and any(to.iterdir()):
        raise InputError("--out", "is not empty", str(to), "choose another folder")
    parts = COMPUTED[name].make(found(outs), to) if models is None else [complexity(to, cases=cases)]
    for part in parts:
        screen.print(part)
    screen.print(f"\n{to}", soft_wrap=True)
