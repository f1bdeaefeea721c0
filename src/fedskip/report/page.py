"""A study to look at: figures, and one HTML page with the table, the figures and the study itself."""

import html
import io
from pathlib import Path

from rich.console import Console, RenderableType

from fedskip.files import write_bytes, write_text
from fedskip.input.errors import InputError
from fedskip.report.canvas import drawn, new_axes
from fedskip.report.closing import closing
from fedskip.report.results import Results
from fedskip.report.verdict import compared, in_words

# name of a file -> the figure of `Plot` and its arguments
FIGURES: dict[str, tuple[str, dict[str, str]]] = {
    "accuracy": ("curves", {}),
    "bytes": ("bytes", {}),
    "loss": ("curves", {"y": "train_loss"}),
    "drift": ("drift", {}),
    "clients": ("clients", {}),
    "routing": ("routing", {}),
    "partition": ("partition", {}),
}
WIDTH = 160  # of tables on the page, in characters
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
pre{overflow-x:auto;background:#f6f6f6;padding:1rem;font-size:13px}svg{max-width:100%;height:auto}"""


def write_report(results: Results, to: Path | None = None, form: str = "svg") -> None:
    """Write figures/* and report.html into a folder, the study's own unless told otherwise."""
    to, shown = to or results.out, []

    def add(name: str, kind: str, *which: str, **how: str) -> None:
        try:
            axes = getattr(results.plot, kind)(*which, **how, axes=new_axes(None))
        except InputError:  # of what was not measured or kept
            return
        picture = drawn(axes, "svg")
        write_bytes(to / "figures" / f"{name}.{form}", picture if form == "svg" else drawn(axes, form))
        shown.append(picture[picture.index(b"<svg") :].decode())

    for setting in results.compared:
        shown.append(f"<h2>{html.escape(setting.name)}</h2>")
        for name, (kind, how) in FIGURES.items():
            add(f"{setting.name}.{name}", kind, setting.name, **how)
    add("sweep", "sweep")
    study = html.escape((results.out / "study.yaml").read_text(encoding="utf-8"))
    title, words = html.escape(results.name), html.escape(" ".join(verdict(results)))
    tables = "".join(f"<pre>{as_html(one)}</pre>" for one in tables_of(results))
    write_text(
        to / "report.html",
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        f"<p>{words}</p>{tables}{''.join(shown)}<h2>study.yaml</h2><pre>{study}</pre>\n",
    )


def tables_of(results: Results) -> list[RenderableType]:
    """The closing table and, where there is something to compare, the differences."""
    return [closing(results), *([compared(results)] if len(results.labels()) > 1 else [])]


def verdict(results: Results) -> list[str]:
    """Who is better than the baseline, in words."""
    return in_words(results) if len(results.labels()) > 1 else []


def as_html(shown: RenderableType) -> str:
    """What a terminal shows, as HTML."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(shown)
    return console.export_html(inline_styles=True, code_format="{code}")
