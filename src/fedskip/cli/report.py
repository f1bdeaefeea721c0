"""`fedskip report` and `fedskip watch`: look at a study."""

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedskip.cli.output import folder
from fedskip.errors import InputError, require, unknown
from fedskip.files import refuse_existing, write_text
from fedskip.report import FORMATS, SCORES

if TYPE_CHECKING:
    import pandas as pd

    from fedskip.report.page import PageServer
    from fedskip.report.results import Results

TABLES = ("table", "chosen", "compare", "time_to_target")
Target = Annotated[
    str | None,
    typer.Option(help="A score, or a method whose best it is: the costs to reach it."),
]
Metric = Annotated[
    str | None, typer.Option(help="One of the study's further metrics, in place of the headline.")
]
To = Annotated[str | None, typer.Option("--to", help="Where to write; one study: its own folder.")]


def report(
    outs: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Folders of studies.")],
    baseline: Annotated[
        str | None,
        typer.Option(help="The method that others are compared with; by default FedAvg."),
    ] = None,
    score: Annotated[str, typer.Option(metavar="|".join(SCORES))] = "mean_tail",
    metric: Metric = None,
    target: Target = None,
    figures: Annotated[str, typer.Option(metavar="|".join(FORMATS), help="Their format.")] = "svg",
    latex: Annotated[bool, typer.Option("--latex", help="Also write tables as .tex.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Also write them as .md.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Also write them as .csv.")] = False,
    where: To = None,
    force: Annotated[bool, typer.Option("--force", help="Also over existing files.")] = False,
) -> None:
    """Write report.html, figures and tables; also of unfinished studies."""
    from fedskip.report.combine_studies import combine
    from fedskip.report.findings import Findings
    from fedskip.report.page import write_report
    from fedskip.report.progress import console
    from fedskip.report.results import Results

    if figures not in FORMATS:
        raise unknown("--figures", figures, FORMATS)
    if score not in SCORES:
        raise unknown("--score", score, SCORES)
    require("--baseline", baseline != "", "must name a method", baseline)
    goal = _target(target)
    forms = [form for form, asked in {"csv": csv, "tex": latex, "md": markdown}.items() if asked]
    to = _place(folder(where, "--to"), outs, forms, force)
    results, remarks = combine([Results.read(out) for out in outs], metric)
    findings, screen = Findings(results, baseline, score, goal), console()
    lines = [*findings.sentences(), *remarks]
    for part in (*findings.closing_parts(), *findings.tables.values(), *lines):
        screen.print(part)
    write_report(results, to, figures, remarks, findings)
    for name, table in {"table": findings.closing, **findings.tables}.items():
        if latex:
            write_text(to / f"{name}.tex", table.latex(name))
        if markdown:
            write_text(to / f"{name}.md", table.markdown())
    for name, frame in findings.frames().items() if csv else ():
        write_text(to / f"{name}.csv", _with_remarks(frame, results).to_csv(index=False))
    screen.print(f"\n{to / 'report.html'}", soft_wrap=True)


def _with_remarks(frame: "pd.DataFrame", results: "Results") -> "pd.DataFrame":
    """With a column `note`, where some settings are reduced or otherwise unlike what they stand for."""
    remarks = {setting.name: "; ".join(setting.remarks) for setting in results.settings}
    if not any(remarks.values()):
        return frame
    all_remarks = "; ".join(results.remarks)  # of a row about all settings
    return frame.assign(note=[remarks.get(name, all_remarks) for name in frame["setting"]])


def _place(to: Path | None, outs: list[Path], forms: list[str], force: bool) -> Path:
    """Where to write; refuses to replace files, but in a study's own folder its report."""
    if len(outs) > 1 and to is None:
        fix = "say where to write the report of several studies"
        raise InputError("--to", "is missing", fix=fix)
    to, tables = to or outs[0], [f"{name}.{form}" for name in TABLES for form in forms]
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
    port: Annotated[
        int, typer.Option(help="On this machine only; 0 takes one that is free.")
    ] = 8765,
) -> None:
    """Serve the page of a study on localhost, up to date while it runs; Ctrl-C ends it.

    Its address holds a token: other users of this machine cannot read it.
    """
    from fedskip.report.page import serve

    def ready(server: "PageServer") -> None:
        typer.echo(f"{out} is at {server.url} (Ctrl-C ends this, not the study)")

    with contextlib.suppress(KeyboardInterrupt):
        serve(out, port, ready)
