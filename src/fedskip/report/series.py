"""Numbers of a history as figures need them: aligned over seeds, smoothed, by hyper-parameter."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedskip.records.table import Row, Table

ACROSS = ("round", "merges", "bytes")  # what lines may go over
WILD = 20.0  # a line this much above the others leaves the picture, rather than flatten them


class Band(NamedTuple):
    """The lowest, the mean and the highest over runs."""

    across: Mapping[str, np.ndarray]  # `round`, `merges` and `bytes` (MB), means over the runs
    low: np.ndarray
    mean: np.ndarray
    high: np.ndarray

    def times(self, factor: float) -> "Band":
        return Band(self.across, factor * self.low, factor * self.mean, factor * self.high)

    def thinned(self, points: int) -> "Band":
        """At most so many points, evenly spaced, the first and the last among them."""
        kept = np.unique(np.linspace(0, len(self.mean) - 1, points).round().astype(int))
        if len(kept) >= len(self.mean):
            return self
        across = {name: values[kept] for name, values in self.across.items()}
        return Band(across, self.low[kept], self.mean[kept], self.high[kept])


def band(runs: Sequence[Table], y: str, window: int) -> Band:
    """Of y over runs, at the rounds that all of them have; y is a running mean over `window` rounds."""
    series = []
    for rows in runs:
        finite = [row for row in rows if row.get(y) is not None and np.isfinite(row[y])]
        values = running([row["round"] for row in finite], [row[y] for row in finite], window)
        series.append({row["round"]: (row, value) for row, value in zip(finite, values, strict=True)})
    rounds = sorted(set.intersection(*map(set, series))) if series else []
    if not rounds:
        return Band(dict.fromkeys(ACROSS, np.zeros(0)), *[np.zeros(0)] * 3)
    across = {x: np.array([[_across(one[r][0], x) for one in series] for r in rounds]) for x in ACROSS}
    ys = np.array([[one[r][1] for one in series] for r in rounds])
    return Band({x: values.mean(1) for x, values in across.items()}, ys.min(1), ys.mean(1), ys.max(1))


def limits(
    lines: Mapping[str, np.ndarray], logarithmic: bool
) -> tuple[list[str], tuple[float, float] | None]:
    """Lines far above the others, and limits of y that leave them out, so that they flatten nothing.

    >>> limits({"A": np.array([0.0, 1.0]), "B": np.array([1.0, 2.0]), "C": np.array([0.0, 1e9])}, False)
    (['C'], (0.0, 2.2))
    """
    tops = {label: float(line.max()) for label, line in lines.items()}
    usual = float(np.median([*tops.values()])) if tops else 0.0
    wild = [label for label, top in tops.items() if top > (WILD**4 if logarithmic else WILD) * usual > 0]
    if not wild or len(wild) == len(tops):
        return [], None
    tame = np.concatenate([line for label, line in lines.items() if label not in wild])
    lowest = 0.8 * float(tame[tame > 0].min()) if logarithmic else min(0.0, float(tame.min()))
    return wild, (lowest, 1.1 * float(tame.max()))


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
