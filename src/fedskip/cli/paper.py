"""`fedskip paper`: what of the paper can be run, and how far it is."""

from pathlib import Path
from typing import Annotated

import typer

from fedskip.report.choices import SCORES

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
) -> None:
    """The paper's tables filled with what there is, beside the published numbers; OUT: by default runs/*."""
    from fedskip.cli.screen import console
    from fedskip.input.errors import unknown
    from fedskip.paper.overview import found, tables
    from fedskip.paper.table4 import table4

    if score not in SCORES:
        raise unknown("--score", score, SCORES)
    studies, screen = found(outs), console()
    for sheet in tables(studies, score):
        screen.print(sheet)
    for part in table4(studies, None):
        screen.print(part)


def compute(name: str, outs: list[Path] | None, to: Path | None, models: str | None = None) -> None:
    """Make something of the paper that is not trained; `models`: the costs of these only."""
    from fedskip.cli.screen import console
    from fedskip.paper.complexity import cases_of, complexity
    from fedskip.paper.computed import COMPUTED
    from fedskip.paper.overview import found
    from fedskip.records.provenance import next_folder

    cases, screen, to = cases_of(models), console(), to or next_folder(name)
    parts = COMPUTED[name].make(found(outs), to) if models is None else [complexity(to, cases=cases)]
    for part in parts:
        screen.print(part)
    screen.print(f"\n{to}", soft_wrap=True)
