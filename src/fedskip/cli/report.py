"""`fedskip report` and `fedskip watch`: a study to look at."""

import contextlib
import math
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedskip.cli.folders import folder
from fedskip.files import refuse_existing, write_text
from fedskip.input.errors import InputError, require, unknown
from fedskip.report.choices import FORMATS, SCORES

if TYPE_CHECKING:
    from fedskip.records.table import Table
    from fedskip.report.results import Results
    from fedskip.report.sheet import Sheet

SCORE = "mean_tail"
TABLES = ("table", "chosen", "compare", "reach")
Latex = Annotated[bool, typer.Option("--latex", help="Also write table, compare and reach as .tex.")]
Aim = Annotated[
    str | None, typer.Option(help="A score, or a method whose best it is: what it takes to get there.")
]
By = Annotated[str | None, typer.Option(help="One of the study's further metrics, to look at it by.")]
Where = Annotated[str | None, typer.Option("--to", help="Where to write; one study: its own folder.")]


def report(
    outs: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Folders of studies.")],
    baseline: Annotated[
        str | None, typer.Option(help="The method that others are compared with; by default FedAvg.")
    ] = None,
    score: Annotated[str, typer.Option(metavar="|".join(SCORES))] = SCORE,
    metric: By = None,
    target: Aim = None,
    figures: Annotated[str, typer.Option(metavar="|".join(FORMATS), help="Their format.")] = "svg",
    latex: Latex = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Also write them as .md.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Also write them as .csv.")] = False,
    where: Where = None,
    force: Annotated[bool, typer.Option("--force", help="Also over files that are there.")] = False,
) -> None:
    """Write report.html, figures and tables; works on unfinished studies, too."""
    from fedskip.cli.screen import console
    from fedskip.report import reach, sweep
    from fedskip.report.closing import closing, scored
    from fedskip.report.page import write_report
    from fedskip.report.parts import verdict
    from fedskip.report.results import Results
    from fedskip.report.together import together
    from fedskip.report.verdict import compared

    if figures not in FORMATS:
        raise unknown("--figures", figures, FORMATS)
    if score not in SCORES:
        raise unknown("--score", score, SCORES)
    require("--baseline", baseline != "", "must name a method", baseline)
    aim = _target(target)
    to = _place(folder(where, "--to"), outs, {"csv": csv, "tex": latex, "md": markdown}, force)
    results, notes = together([Results.read(out) for out in outs], metric)
    sheets, screen = {"table": scored(results)}, console()
    screen.print(closing(results))
    if sweep.sweeps(results):
        sheets["chosen"] = sweep.sheet(results)
    asked = baseline is not None or score != SCORE
    if asked or verdict(results):  # else there is nothing to compare, which is no error unless asked for
        sheets["compare"] = compared(results, baseline, score)
    if target or reach.reachable(results):
        sheets["reach"] = reach.reached(results, aim)
    for name in (name for name in sheets if name != "table"):
        screen.print(sheets[name])
    judged = verdict(results, baseline=baseline, score=score)
    for line in (*sweep.in_words(results), *judged, *reach.in_words(results, aim), *notes):
        screen.print(line)
    write_report(results, to, figures, notes, baseline=baseline, score=score, target=aim)
    numbers = {  # of the sheets that there are
        "table": results.table,
        "chosen": results.chosen,
        "compare": lambda: results.compare(baseline or results.baseline, score=score),
        "reach": lambda: results.to_target(aim),
    }
    for name, sheet in sheets.items():
        if csv:
            write_text(to / f"{name}.csv", _marked(numbers[name](), results).csv())
        _write(sheet, to, name, {"tex": latex, "md": markdown})
    screen.print(f"\n{to / 'report.html'}", soft_wrap=True)


def _marked(table: "Table", results: "Results") -> "Table":
    """With a column that says what settings are less than they should be, or other, where some are."""
    from fedskip.records.table import Table

    marks = {setting.name: "; ".join(setting.marks) for setting in results.settings}
    if not any(marks.values()):
        return table
    every = "; ".join(results.marks)  # of a row about all settings
    return Table(
        (*table.columns, "note"), [row | {"note": marks.get(row["setting"], every)} for row in table]
    )


def _write(sheet: "Sheet", to: Path, name: str, wanted: dict[str, bool]) -> None:
    """Write a table as it is shown."""
    for form, text in {"tex": sheet.latex(name), "md": sheet.markdown()}.items():
        if wanted[form]:
            write_text(to / f"{name}.{form}", text)


def _place(to: Path | None, outs: list[Path], forms: dict[str, bool], force: bool) -> Path:
    """Where to write; refuses files that are there, but a study's own folder is its report's, too."""
    if len(outs) > 1 and to is None:
        raise InputError("--to", "is missing", fix="say where to write the report of several studies")
    to, tables = (
        to or outs[0],
        [f"{name}.{form}" for name in TABLES for form, asked in forms.items() if asked],
    )
    if not force and [to.resolve()] != [out.resolve() for out in outs]:
        for name in ("report.html", "figures", *tables):
            refuse_existing("--to", to / name)
    return to


def _target(text: str | None) -> float | str | None:
    """A number, or the name of a method."""
    require("--target", text != "", "must be a score or a method", text)
    try:
        number = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return text
    require("--target", math.isfinite(number), "must be a score or a method", text, "such as 0.68")
    return number


def watch(
    out: Annotated[Path, typer.Argument(help="The folder of a study, running or finished.")],
    port: Annotated[int, typer.Option(help="On this machine only; 0 takes one that is free.")] = 8765,
) -> None:
    """Serve the page of a study on localhost, up to date while it runs; Ctrl-C ends it."""
    from fedskip.report.watch import serve

    def ready(server: ThreadingHTTPServer) -> None:
        typer.echo(f"{out} is at http://localhost:{server.server_port}/ (Ctrl-C ends this, not the study)")

    with contextlib.suppress(KeyboardInterrupt):
        serve(out, port, ready)
