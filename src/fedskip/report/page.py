"""A study to look at: figures as SVG, and one HTML page with the table, the figures and the study itself."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from fedskip.files import write_text
from fedskip.records.table import Row
from fedskip.report.closing import closing
from fedskip.report.results import About, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# name of the file -> its columns of history.csv, the labels of the axes, and whether y is logarithmic
FIGURES = {
    "accuracy": ("round", "test_accuracy", "round", "test metric", False),
    "bytes": ("bytes", "test_accuracy", "bytes sent, both ways", "test metric", False),
    "loss": ("round", "train_loss", "round", "training loss", False),
    "drift": ("round", "drift_mean", "round", "drift of the slots from their mean", True),
}
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
pre{overflow-x:auto;background:#f6f6f6;padding:1rem;font-size:13px}svg{max-width:100%;height:auto}"""


def write_report(results: Results) -> None:
    """Write figures/*.svg and report.html into the study's folder."""
    shown = []
    for setting in results.settings:
        if setting.reference:
            continue
        shown.append(f"<h2>{html.escape(setting.name)}</h2>")
        for name in FIGURES:
            drawing = draw(name, setting, results)
            write_text(results.out / "figures" / f"{setting.name}.{name}.svg", drawing)
            shown.append(drawing[drawing.index("<svg") :])
    study = html.escape((results.out / "study.yaml").read_text(encoding="utf-8"))
    title = html.escape(results.name)
    write_text(
        results.out / "report.html",
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        f"<pre>{table(results)}</pre>{''.join(shown)}<h2>study.yaml</h2><pre>{study}</pre>\n",
    )


def table(results: Results) -> str:
    """The closing table, as on the terminal."""
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(closing(results))
    return console.export_html(inline_styles=True, code_format="{code}")


def draw(name: str, setting: About, results: Results) -> str:
    """One figure: a line per method, the mean over its seeds, in a band from the lowest to the highest."""
    from matplotlib import rc_context  # slow to import, and only needed when a study ends
    from matplotlib.figure import Figure

    x, y, across, up, logarithmic = FIGURES[name]
    with rc_context({"svg.hashsalt": "fedskip", "svg.fonttype": "none"}):  # the same study, the same file
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        for label in results.labels(setting.name):
            _line(axes, label, results.history.where(setting=setting.name, method=label), x, y)
        for reference in results.settings if y == "test_accuracy" else ():
            scores = results.summary.where(setting=reference.name).column("last")
            last = [score for score in scores if score is not None]
            if reference.reference and last:
                axes.axhline(fmean(last), color="grey", linestyle="--", label=reference.name)
        axes.set(xlabel=across, ylabel=up, title=f"{setting.name}: {up}")
        drawn = axes.get_lines()  # none where all runs diverged at once
        if logarithmic and any(np.max(line.get_ydata(), initial=0.0) > 0 for line in drawn):
            axes.set_yscale("log")
        axes.grid(alpha=0.3)
        if drawn:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _line(axes: Axes, label: str, runs: Iterable[Row], x: str, y: str) -> None:
    points: dict[float, list[float]] = {}
    for row in runs:
        at = row["bytes_down"] + row["bytes_up"] if x == "bytes" else row[x]
        points.setdefault(float(at), []).append(float(row[y]))
    xs = sorted(points)
    (line,) = axes.plot(xs, [fmean(points[v]) for v in xs], label=label, marker="." if len(xs) < 30 else None)
    if max(map(len, points.values()), default=0) > 1:
        low, high = [min(points[v]) for v in xs], [max(points[v]) for v in xs]
        axes.fill_between(xs, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
