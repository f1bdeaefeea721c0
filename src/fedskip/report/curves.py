"""The lines of a setting, for figures and the page: one a method, the mean over seeds in a band.

The band goes from the lowest seed to the highest. Long histories are smoothed by a running mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedskip.errors import unknown
from fedskip.report.results import Results, SettingInfo

if TYPE_CHECKING:
    import pandas as pd

# column of the history -> its name on an axis, and whether that axis is logarithmic
COLUMNS = {
    "test_accuracy": ("test {metric}", False),
    "test_loss": ("test loss", False),
    "train_loss": ("training loss", False),
    "drift_mean": ("drift of the slots from their mean", True),
    "drift_broadcast": ("drift of the slots from the model sent out", True),
    "slot_accuracy": ("test {metric} of single slots", False),
}
OF_THE_METRIC = ("test_accuracy", "slot_accuracy")
ACROSS = {"round": "round", "merges": "merges", "bytes": "sent, both ways (MB)"}  # for the x axis
MANY = 100  # evaluations of a run from which on lines are smoothed
POINTS = 150  # of a smoothed line
OUTLIER = 20.0  # a line this many times above the others leaves the picture


@dataclass(frozen=True)
class Line:
    """The lowest, the mean and the highest value over the runs of a method."""

    across: Mapping[str, np.ndarray]  # values for the x axis, means over the runs
    low: np.ndarray
    mean: np.ndarray
    high: np.ndarray

    def thinned(self, points: int) -> Line:
        """At most so many points, evenly spaced, the first and the last among them."""
        kept = np.unique(np.linspace(0, len(self.mean) - 1, points).round().astype(int))
        if len(kept) >= len(self.mean):
            return self
        across = {name: values[kept] for name, values in self.across.items()}
        return Line(across, self.low[kept], self.mean[kept], self.high[kept])


@dataclass(frozen=True)
class Curves:
    """All that a figure of lines shows."""

    name: str  # of the y axis, with its unit
    lines: Mapping[str, Line]  # by method
    references: Mapping[str, float]  # scores with a line of their own
    logarithmic: bool
    limits: tuple[float, float] | None  # of the y axis, where a line would flatten the others
    banded: bool  # whether there are several seeds
    notes: Sequence[str]


def curves(results: Results, setting: SettingInfo, y: str, smooth: int | None = None) -> Curves:
    """The lines of a setting.

    `smooth`: the rounds of the running mean; None: none, or a fiftieth of the rounds where a run has 100
    evaluations or more.
    """
    columns = drawable(setting)
    if y not in columns:
        raise unknown("y", y, columns)
    name, logarithmic = columns[y]
    further = {metric.column: metric for metric in setting.metrics[1:]}
    metric = setting.metric if y in OF_THE_METRIC else further.get(y)
    factor = 1.0 if metric is None else metric.factor
    window = _window(results, setting) if smooth is None else smooth
    lines: dict[str, Line] = {}
    left_out: list[str] = []
    for label in results.labels(setting.name):
        rows = _finished_rows(results, setting, label, left_out)
        line = mean_line(rows, y, window, factor)
        if len(line.mean):
            lines[label] = line.thinned(POINTS) if window else line
    outliers, limits = ([], None) if metric else without_outliers(lines, logarithmic)
    runs = results.runs(setting.name)
    seeds = sorted(runs["seed"].unique())
    several = f"mean of {len(seeds)} seeds, band: lowest to highest"
    leave = f"{', '.join(outliers)} leave{'s' if len(outliers) == 1 else ''} the picture"
    notes = {
        several if len(seeds) > 1 else f"seed {seeds[0]}": True,
        **dict.fromkeys(setting.remarks, True),
        "not finished": not results.finished,
        f"without runs that diverged: {', '.join(left_out)}": bool(left_out),
        "a line ends where the first of its runs ended": bool((runs["ended"] != "").any()),
        leave: bool(outliers),
        f"smoothed over {window} rounds": bool(window),
    }
    positive = any((line.mean > 0).any() for line in lines.values())
    return Curves(
        name + " (%)" * (factor > 1), lines,
        _references(results, setting, factor) if y == "test_accuracy" else {},
        logarithmic and positive, limits, len(seeds) > 1, [text for text, is_so in notes.items() if is_so],
    )  # fmt: skip


def drawable(setting: SettingInfo) -> dict[str, tuple[str, bool]]:
    """The columns that a figure of a setting may show: their names, and whether on a logarithmic axis."""
    found = {
        y: (name.format(metric=setting.metric.words), log) for y, (name, log) in COLUMNS.items()
    }
    if not setting.by:
        found |= {one.column: (f"test {one.words}", False) for one in setting.metrics[1:]}
    return found


def mean_line(rows: pd.DataFrame, y: str, window: int, factor: float = 1.0) -> Line:
    """The line of y over runs, at the rounds that all of them have; a running mean over `window` rounds."""
    if rows.empty or y not in rows:
        return Line(dict.fromkeys(ACROSS, np.zeros(0)), *[np.zeros(0)] * 3)
    sent = (rows["bytes_down"] + rows["bytes_up"]) / 1e6
    finite = rows.assign(bytes=sent)[np.isfinite(rows[y])].sort_values(["run", "round"])
    if window and len(finite):
        by_run = (run for _, run in finite.groupby("run"))
        smooth = [
            running_mean(run["round"].to_numpy(), run[y].to_numpy(), window) for run in by_run
        ]
        finite[y] = np.concatenate(smooth)
    runs = rows["run"].nunique()
    by_round = finite.groupby("round")
    common = by_round[y].count() == runs
    values = factor * by_round[y].agg(["min", "mean", "max"])[common]
    across = by_round[["merges", "bytes"]].mean()[common]
    positions = {"round": values.index.to_numpy(dtype=float)}
    positions |= {name: across[name].to_numpy(dtype=float) for name in ("merges", "bytes")}
    return Line(positions, *(values[name].to_numpy(dtype=float) for name in ("min", "mean", "max")))


def running_mean(rounds: np.ndarray, values: np.ndarray, window: int) -> np.ndarray:
    """The mean over the evaluations of the last `window` rounds.

    >>> running_mean(np.array([1, 2, 3, 6]), np.array([1.0, 2.0, 3.0, 9.0]), 2).tolist()
    [1.0, 1.5, 2.5, 9.0]
    """
    last = np.arange(1, len(rounds) + 1)
    first = np.searchsorted(rounds, rounds - max(window, 1), side="right")
    between = np.column_stack([first, last]).ravel()
    sums = np.add.reduceat([*values, 0.0], between)[::2] if len(values) else np.zeros(0)
    return sums / (last - first)


def without_outliers(
    lines: Mapping[str, Line], logarithmic: bool
) -> tuple[list[str], tuple[float, float] | None]:
    """Lines far above the others, and limits of the y axis that leave them out."""
    tops = {label: float(line.mean.max()) for label, line in lines.items()}
    usual = float(np.median([*tops.values()])) if tops else 0.0
    most = OUTLIER**4 if logarithmic else OUTLIER
    outliers = [label for label, top in tops.items() if top > most * usual > 0]
    if not outliers or len(outliers) == len(tops):
        return [], None
    others = np.concatenate([line.mean for label, line in lines.items() if label not in outliers])
    lowest = 0.8 * float(others[others > 0].min()) if logarithmic else min(0.0, float(others.min()))
    return outliers, (lowest, 1.1 * float(others.max()))


def _finished_rows(
    results: Results, setting: SettingInfo, label: str, left_out: list[str]
) -> pd.DataFrame:
    """The history of the runs that did not diverge, or of all if all did; notes the others in `left_out`."""
    runs, rows = results.runs(setting.name, label), results.rows(setting.name, label)
    diverged = runs["run"][runs["diverged"]]
    if len(diverged) in (0, len(runs)):
        return rows
    left_out.append(f"{label} ({len(diverged)} of {len(runs)})")
    return rows[~rows["run"].isin(diverged)]


def _window(results: Results, setting: SettingInfo) -> int:
    rows = results.history[results.history["setting"] == setting.name]
    most = rows.groupby("run").size().max() if len(rows) else 0
    return max(2, setting.rounds // 50) if most >= MANY else 0


def _references(results: Results, setting: SettingInfo, factor: float) -> dict[str, float]:
    """The last scores of references with the same data and metric."""
    found = {}
    for other in results.settings:
        same = other.metric == setting.metric and other.keys.get("data") == setting.keys.get("data")
        for label in results.labels(other.name) if other.reference and same else ():
            score = results.scores(other.name, label, "last").mean()
            if score == score:
                found[other.name] = factor * float(score)
    return found
