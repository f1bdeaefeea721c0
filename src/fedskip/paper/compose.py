"""Every method with and without skipping: the paper's future work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text

from fedskip.paper import intervals
from fedskip.paper.beside import apart, cell, gain, named
from fedskip.paper.columns import BASELINE, Column
from fedskip.paper.remarks import fewer, other
from fedskip.paper.strongest import shared_seeds, strongest
from fedskip.records.table import Row
from fedskip.report import units
from fedskip.report.canvas import finish, new_axes
from fedskip.report.results import Results
from fedskip.report.sheet import BEST, Sheet
from fedskip.report.statistics import Difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STUDY = "compose"


def compose_sheet(column: Column, studies: Sequence[Results], score: str = "mean_tail") -> Sheet:
    """Methods by period: accuracy, and gains over the same without skipping and over FedAvg, paired by seed.

    Runs without skipping may come from Tables II and III, whose settings these are.
    """
    runs, names = column.runs(studies), {method: name for name, method in column.methods.items()}
    rows, best = [], strongest(runs, score)
    of = column.seeds(runs)
    for name, method in column.methods.items():
        plain = names[replace(method, period=1)]
        alone = "" if name == plain else gain(runs[name], runs[plain], score)
        beside = "" if name == BASELINE else gain(runs[name], runs[BASELINE], score)
        cells = [cell(column, runs[name], score, of), *([alone, beside] if runs[name] else ["", ""])]
        names_row = [Text(plain if name == plain else ""), Text(str(method.period))]
        rows.append([*names_row, Text(cells[0], BEST if name == best else ""), *map(Text, cells[1:])])
    headers = ["method", "Δ", named(score), "gain over the same without skipping", f"gain over {BASELINE}"]
    return Sheet(f"{column.table}/{column.name}", headers, 2, rows, _note(runs, best, score))


def compose_figure(column: Column, studies: Sequence[Results], score: str = "mean_tail") -> Axes:
    """What skipping adds to each method, as a picture: periods have the colours of FedSkip's."""
    runs, names = column.runs(studies), {method: name for name, method in column.methods.items()}
    added: dict[str, dict[str, Difference]] = {}
    for name, method in column.methods.items():
        plain = names[replace(method, period=1)]
        if name != plain:
            added.setdefault(plain, {})[f"FedSkip-{method.period}"] = apart(runs[name], runs[plain], score)
    axes = new_axes()
    intervals.draw(axes, added)
    intervals.fit(axes)
    axes.set_xlabel("gain over the same method without skipping (points of test accuracy)")
    less = intervals.cautions(added)
    less += other(column, [row for rows in runs.values() for row in rows])
    less += fewer(column, runs)
    for line in axes.get_lines():
        line.set_label(str(line.get_label()).replace("FedSkip-", "Δ = "))
    return finish(axes, f"What skipping adds, {column.name}", [f"by {named(score)}, {intervals.NOTE}", *less])


def _note(runs: Mapping[str, Sequence[Row]], best: str | None, score: str) -> str:
    """Who is strongest of all, and who of those that skip."""
    second = strongest(runs, score, skipping(runs))
    if best is None or second is None:
        return ""
    said = f"The strongest is {best}" + ("" if best == second else f"; of those that skip, {second}")
    common, most = len(shared_seeds(runs, score)), max(map(len, runs.values()))
    return f"{said}, over the {units.count(common, 'seed')} that all have." if common < most else f"{said}."


def skipping(runs: Mapping[str, Sequence[Row]]) -> dict[str, Sequence[Row]]:
    """Those of the methods that skip."""
    return {name: rows for name, rows in runs.items() if "skip" in name.lower()}
