"""`fedskip report` and `fedskip watch`: a study to look at."""

import contextlib
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from fedskip.files import write_text
from fedskip.input.errors import InputError, unknown
from fedskip.report.choices import FORMATS, SCORES

SCORE = "mean_tail"


def report(
    outs: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Folders of studies.")],
    baseline: Annotated[
        str | None, typer.Option(help="The method that others are compared with; by default FedAvg.")
    ] = None,
    score: Annotated[str, typer.Option(metavar="|".join(SCORES))] = SCORE,
    figures: Annotated[str, typer.Option(metavar="|".join(FORMATS), help="Their format.")] = "svg",
    latex: Annotated[bool, typer.Option("--latex", help="Also write table.tex and compare.tex.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Also write table.md, compare.md.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Also write table.csv, compare.csv.")] = False,
    to: Annotated[Path | None, typer.Option(help="Where to write; one study: its own folder.")] = None,
) -> None:
    """Write report.html, figures and tables; works on unfinished studies, too."""
    from fedskip.cli.screen import console
    from fedskip.report.closing import caption, closing, scored
    from fedskip.report.page import verdict, write_report
    from fedskip.report.results import Results
    from fedskip.report.together import together
    from fedskip.report.verdict import compared

    if figures not in FORMATS:
        raise unknown("--figures", figures, FORMATS)
    if len(outs) > 1 and to is None:
        raise InputError("--to", "is missing", fix="say where to write the report of several studies")
    results, notes = together([Results.read(out) for out in outs])
    to, sheets = to or outs[0], {"table": scored(results)}
    screen = console()
    screen.print(closing(results))
    asked = baseline is not None or score != SCORE
    if asked or verdict(results):  # else there is nothing to compare, which is no error unless asked for
        sheets["compare"] = compared(results, baseline, score)
        screen.print(sheets["compare"])
    for line in (*verdict(results, baseline=baseline, score=score), *notes):
        screen.print(line)
    write_report(results, to, figures, notes, baseline=baseline, score=score)
    if csv:  # as numbers, not as text
        write_text(to / "table.csv", results.table().csv())
    if csv and "compare" in sheets:
        write_text(to / "compare.csv", results.compare(baseline or results.baseline, score=score).csv())
    for name, sheet in sheets.items():
        if latex:
            write_text(to / f"{name}.tex", sheet.latex(caption(results) if name == "table" else sheet.title))
        if markdown:
            write_text(to / f"{name}.md", sheet.markdown())
    screen.print(f"\n{to / 'report.html'}", soft_wrap=True)


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
