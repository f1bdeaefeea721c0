"""Numbers of a history as figures need them: aligned over seeds, smoothed, by hyper-parameter."""

import re
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from fedskip.records.table import Row, Table


def band(runs: Sequence[Table], x: str, y: str, window: int) -> tuple[np.ndarray, ...]:
    """x, and the lowest, the mean and the highest of y over runs, at the rounds that all of them have."""
    series = []
    for rows in runs:
        finite = [row for row in rows if np.isfinite(row[y])]
        values = running([row["round"] for row in finite], [row[y] for row in finite], window)
        series.append({row["round"]: (_across(row, x), v) for row, v in zip(finite, values, strict=True)})
    rounds = sorted(set.intersection(*map(set, series))) if series else []
    xs = np.array([fmean(one[r][0] for one in series) for r in rounds])
    if not rounds:
        return xs, xs, xs, xs
    ys = np.array([[one[r][1] for one in series] for r in rounds])
    return xs, ys.min(1), ys.mean(1), ys.max(1)


def running(rounds: Sequence[int], values: Sequence[float], window: int) -> list[float]:
    """The mean over the evaluations of the last `window` rounds.

    >>> running([1, 2, 3, 6], [1.0, 2.0, 3.0, 9.0], 2)
    [1.0, 1.5, 2.5, 9.0]
    """
    at, last = np.array(rounds), np.arange(1, len(rounds) + 1)
    first = np.searchsorted(at, at - max(window, 1), side="right")  # of the evaluations that count
    between = np.column_stack([first, last]).ravel()
    sums = np.add.reduceat([*values, 0.0], between)[::2] if len(values) else np.zeros(0)
    return [*map(float, sums / (last - first))]


def _across(row: Row, x: str) -> float:
    return (row["bytes_down"] + row["bytes_up"]) / 1e6 if x == "bytes" else float(row[x])


def point(row: Row, parameter: str) -> tuple[str, float] | None:
    """The title of a run's method and the value of a hyper-parameter, where it has one that is a number."""
    label = row["method"]
    if parameter == "period":
        plain = label == "FedAvg" or label.startswith("FedSkip-")
        return ("FedSkip", float(row["period"])) if plain and str(row["period"]).isdecimal() else None
    found = re.search(rf"[(, ]{re.escape(parameter)}=([-+.\de]+)[,)]", label)
    if not found:
        return None
    rest = re.sub(rf"(, )?{re.escape(parameter)}=[^,)]+", "", label).replace("(, ", "(").replace("()", "")
    return rest, float(found[1])  # other hyper-parameters stay in the title


def skipping(runs: Sequence[Row]) -> str:
    """The first method that skips, or the first of all."""
    return str(next((row["method"] for row in runs if str(row["period"]) != "1"), runs[0]["method"]))
