"""`fedskip paper`: what of the paper can be run, and how far it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedskip.cli.folders import folders
from fedskip.files import refuse_existing
from fedskip.input.errors import InputError, require, resuming, told, unknown
from fedskip.report.choices import SCORES

if TYPE_CHECKING:
    from fedskip.report.results import Results
    from fedskip.report.sheet import Sheet

RESULTS = "docs/results"

app = typer.Typer(invoke_without_command=True, help="The paper's tables and figures: list, status.")

Outs = Annotated[list[str] | None, typer.Argument(metavar="OUT...", help="Folders of studies.")]


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
    from fedskip.spec import bundled

    screen = console()
    sheet = overview(found(folders(outs, "OUT")))
    screen.print(sheet, sheet.note, "", sep="\n")
    screen.print("Without /SETTING, all settings of a study:")
    _listed({name: bundled.words(name) for name in bundled.papers()})
    screen.print("Computed from what was run (--from OUT, by default runs/*):")
    _listed({name: one.words for name, one in COMPUTED.items() if one.of_runs})
    screen.print("Computed without any runs:")
    _listed({name: one.words for name, one in COMPUTED.items() if not one.of_runs})
    screen.print(f"The project's own results are in its repository: fedskip paper status {RESULTS}")


def _listed(words: dict[str, str]) -> None:
    from fedskip.cli.screen import console

    for name, text in words.items():
        console().print(f"  {name:<11} {text}", soft_wrap=True)


@app.command()
def status(
    outs: Outs = None,
    score: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(SCORES), help="By default tables show the best, fig1 and compose the tail."
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where to draw Figures 1 and 5 and compositions, as far as they go."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also over pictures that are there.")] = False,
) -> None:
    """The paper's tables filled with what there is, beside the published numbers.

    OUT: folders of studies, or folders that hold such; by default runs.
    """
    from fedskip.cli.screen import console
    from fedskip.paper.overview import found, others, strangers, tables
    from fedskip.paper.pictures import shown
    from fedskip.paper.table4 import table4

    if score is not None and score not in SCORES:
        raise unknown("--score", score, SCORES)
    if figures is not None:
        require("--figures", not figures.is_file(), "is a file", str(figures), "name a folder")
    studies, screen = found(folders(outs, "OUT")), console()
    parts = shown(studies)
    for name in parts:
        if figures is not None:
            refuse_existing("--figures", _file(figures, name), force)
    whole = not outs  # else a table or two of what was named would drown in what was not
    for sheet in tables(studies, score or "best", whole):
        screen.print(sheet)
    for part in table4(studies, None, whole):
        screen.print(part)
    picture([*parts], studies, figures, score)
    if figures is not None and not parts:
        screen.print("No figure is drawn: these folders hold no run of Figures 1 and 5 or of compositions.")
    for sheet in others(studies):
        noted(sheet)
    for study in strangers(studies):
        why = f" ({'; '.join(study.marks)})" if study.marks else ""
        screen.print(f"{study.out} holds no run of the paper's settings{why}.", soft_wrap=True)
    for study in studies:
        if not study.finished:
            way_on = told(resuming(study.out), flags=True)
            screen.print(f"{study.out} is not finished: go on with {way_on}.", soft_wrap=True)
    if not whole:
        screen.print(
            "Left out: tables and studies without runs in these folders. "
            "`fedskip paper` lists all that can be run."
        )


def noted(sheet: Sheet) -> None:
    """Print a table and what is noted below it."""
    from fedskip.cli.screen import console

    console().print(sheet, sheet.note, sep="\n" if sheet.note else "")


def beside(study: str, results: Results) -> None:
    """What was run of one of the paper's studies, beside what the paper has, or in a table of its own."""
    from fedskip.paper.columns import settings
    from fedskip.paper.overview import OWN, sheet_of

    run = {setting.name for setting in results.settings}  # others may have the same data, and FedAvg
    for column in settings().values():
        mine = column.table == study and column.name in run
        if mine and (column.published or study in OWN) and column.parts([results]):
            noted(sheet_of(column, [results]))


def picture(names: list[str], studies: list[Results], folder: Path | None, score: str | None = None) -> None:
    """Print some of the paper's figures in numbers, and draw them if there is a folder for it.

    `names`: figures, or a study whose own table has been printed already.
    """
    from fedskip.cli.screen import console
    from fedskip.files import write_bytes
    from fedskip.paper.pictures import shown
    from fedskip.report.canvas import drawn

    screen, found = console(), shown(studies, score)
    for name, (sheet, draw) in found.items():
        printed = {name, name.partition("-")[0]} & {*names}  # Figure 5 has two
        if printed:
            noted(sheet)
        if folder is not None and (printed or name.partition("/")[0] in names):
            write_bytes(_file(folder, name), drawn(draw(), "svg"))
            screen.print(f"{_file(folder, name)}", soft_wrap=True)


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name.replace('/', '-')}.svg"


def compute(name: str, outs: list[Path] | None, to: Path | None, models: str | None = None) -> None:
    """Make something of the paper that is not trained; `models`: the costs of these only."""
    from fedskip.cli.screen import console
    from fedskip.paper.complexity import cases_of, complexity
    from fedskip.paper.computed import COMPUTED, Computed
    from fedskip.paper.overview import found
    from fedskip.records.provenance import next_folder

    cases, screen, to = cases_of(models), console(), to or next_folder(name)
    if to.is_dir() and any(to.iterdir()):
        raise InputError("--out", "is not empty", str(to), "choose another folder")
    made = COMPUTED[name]
    rule, given = f"is not for {name}, which needs no runs", " ".join(map(str, outs or ()))
    require("--from", made.of_runs or not outs, rule, given, "leave it out")
    studies = found(outs, "--from") if made.of_runs else []
    with _made(to):  # or refused, before what may take half an hour
        parts = made.make(studies, to) if models is None else [complexity(to, cases=cases)]
        written = any(to.iterdir())
    for part in parts:
        screen.print(part)
    if made.of_runs and not written and not (made.none_is_an_answer and studies):
        looked = " ".join(map(str, outs or [Path("runs")]))
        rule = f"needs {made.needs}, and found none in {looked}: nothing was written"
        fix = made.fix if studies else Computed.fix
        raise InputError(name, rule, fix=f"{fix}, or name other folders with --from")
    screen.print(f"\n{to}" if written else "\nNothing was written.", soft_wrap=True)


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Inside, there is a folder; what was made for it and is still empty afterwards is removed."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for path in new:
            with contextlib.suppress(OSError):  # it is not empty
                path.rmdir()
