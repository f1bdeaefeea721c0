"""Every method with and without skipping: the paper's future work."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from rich.text import Text

from fedskip.paper.beside import cell, gain, known
from fedskip.paper.columns import BASELINE, settings
from fedskip.records.table import Row
from fedskip.report.results import Results
from fedskip.report.sheet import BEST, Sheet

COLUMN = "compose/cifar10-beta0.5"


def compose_sheet(studies: Sequence[Results], score: str = "mean_tail") -> Sheet:
    """Methods by period: accuracy, and gains over the same without skipping and over FedAvg, paired by seed.

    Runs without skipping may come from Table II, whose setting it is.
    """
    column = settings()[COLUMN]
    runs, names = column.runs(studies), {method: name for name, method in column.methods.items()}
    rows, best = [], strongest(runs, score)
    for name, method in column.methods.items():
        plain = names[replace(method, period=1)]
        alone = "" if name == plain else gain(runs[name], runs[plain], score)
        beside = "" if name == BASELINE else gain(runs[name], runs[BASELINE], score)
        cells = [cell(column, runs[name], score), *([alone, beside] if runs[name] else ["", ""])]
        names_row = [Text(plain if name == plain else ""), Text(str(method.period))]
        rows.append([*names_row, Text(cells[0], BEST if name == best else ""), *map(Text, cells[1:])])
    headers = ["method", "Δ", "accuracy", "gain over the same without skipping", f"gain over {BASELINE}"]
    return Sheet(COLUMN, headers, 2, rows, _note(runs, best, score))


def strongest(runs: dict[str, list[Row]], score: str = "mean_tail") -> str | None:
    """The method with the highest mean, among those that have all seeds and no run that diverged."""
    most = max(map(len, runs.values()), default=0)
    means = {name: known(rows, score) for name, rows in runs.items()}
    whole = {name: fmean(scores) for name, scores in means.items() if scores and len(scores) == most}
    return max(whole, key=whole.__getitem__, default=None)


def _note(runs: dict[str, list[Row]], best: str | None, score: str) -> str:
    """Who is strongest of all, and who of those that skip."""
    skipping = {name: rows for name, rows in runs.items() if "skip" in name.lower()}
    second = strongest(skipping, score)
    if best is None or second is None:
        return ""
    said = f"The strongest is {best}"
    return f"{said}." if best == second else f"{said}; of those that skip, {second}."
