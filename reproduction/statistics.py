"""Differences between methods, paired by seed, and what they say about a gain that the paper reports.

All runs of a seed share their split, partition, start and cohorts. So methods are compared seed by seed.
Each column has one primary test: FedSkip-5 against FedAvg by best accuracy, corrected over the columns by
Holm's method. Everything else is descriptive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from reproduction.columns import BASELINE, PRIMARY, Column, Studies, compared

LEVEL = 0.95
CONFIRMED, SMALLER, REFUTED = "confirmed", "smaller than reported", "refuted"
OPEN, UNTESTED = "open", "not run"


@dataclass(frozen=True)
class Difference:
    """A mean difference over seeds with its confidence interval; NaN where there is none."""

    seeds: int = 0
    mean: float = nan
    low: float = nan
    high: float = nan
    p: float = nan  # of Student's paired test, two-sided


def difference(mine: pd.Series, theirs: pd.Series) -> Difference:
    """How scores by seed differ, over the seeds that both have; a score that is NaN makes it NaN.

    >>> difference(pd.Series([1.0, 2.0, 3.0]), pd.Series([0.0, 0.0, 0.0]))
    Difference(seeds=3, mean=2.0, low=-0.484..., high=4.484..., p=0.074...)
    """
    shared = mine.index.intersection(theirs.index)
    gaps = (mine[shared] - theirs[shared]).to_numpy(dtype=float)
    if len(gaps) == 0 or np.isnan(gaps).any():
        return Difference(len(gaps))
    if len(gaps) == 1:
        return Difference(1, float(gaps[0]))
    mean, error = float(gaps.mean()), float(stats.sem(gaps))
    if error == 0:
        return Difference(len(gaps), mean, mean, mean, float(mean == 0))
    low, high = stats.t.interval(LEVEL, len(gaps) - 1, mean, error)
    p = 2 * stats.t.sf(abs(mean) / error, len(gaps) - 1)
    return Difference(len(gaps), mean, float(low), float(high), float(p))


def holm(p: Sequence[float]) -> list[float]:
    """P-values corrected for their number; NaN is no test.

    >>> holm([0.01, 0.04, nan, 0.03])
    [0.03, 0.06, nan, 0.06]
    """
    order = [i for i in np.argsort(p) if not isnan(p[i])]
    found, largest = [nan] * len(p), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p[i]))
        found[i] = largest
    return found


def verdict(gain: Difference, reported: float, corrected_p: float | None = None) -> str:
    """What the seeds say about a gain that the paper reports; the first that fits.

    refuted: the interval is below 0, or it includes 0 and is below the reported gain. smaller than
    reported: it is above 0 and below the reported gain. confirmed: it is above 0. open: anything else, and
    always with one seed. A gain that is not significant after correction is open, too.

    >>> verdict(Difference(5, 1.4, 0.5, 2.4, 0.01), 2.9)
    'smaller than reported'
    >>> verdict(Difference(3, 0.9, -3.4, 5.1, 0.47), 3.4), verdict(Difference(1, 0.6), 0.5)
    ('open', 'open')
    """
    if gain.seeds < 2 or isnan(gain.low):
        return OPEN if gain.seeds else UNTESTED
    if gain.high < 0 or (gain.low <= 0 and gain.high < reported):
        return REFUTED
    if gain.low <= 0 or (corrected_p is not None and corrected_p >= 1 - LEVEL):
        return OPEN
    return SMALLER if gain.high < reported else CONFIRMED


def scores(runs: pd.DataFrame, method: str, score: str = "best") -> pd.Series:
    """A method's scores by seed; NaN where a run diverged or ended at chance."""
    mine = runs[runs["method"] == method].set_index("seed")
    failed = mine["diverged"].astype(bool) | mine["chance"].astype(bool)
    return mine[score].astype(float).where(~failed)


def compare(
    column: Column,
    studies: Studies,
    baseline: str | Mapping[str, str] = BASELINE,
) -> pd.DataFrame:
    """A column's methods beside the paper: a row a method, accuracies and gains in percent points.

    Means leave out no run: where one diverged or ended at chance (`failed`), there is no mean and no gain.
    Gains are over the baseline, or over the one that `baseline` names for each method.
    """
    runs = column.runs(studies)
    rows: list[dict[str, Any]] = []
    for method in column.methods:
        best, tail = (scores(runs, method, score) for score in ("best", "tail"))
        other = baseline if isinstance(baseline, str) else baseline[method]
        theirs = column.published.get(method, nan)
        row: dict[str, Any] = {
            "method": method,
            "seeds": len(best),
            "failed": int(best.isna().sum()),
        }
        row |= {"paper": theirs, "paper_gain": nan}
        if other in column.published and method != other:
            row["paper_gain"] = theirs - column.published[other]
        for name, mine in (("best", best), ("tail", tail)):
            row[name], row[f"{name}_sd"] = mine.mean(skipna=False), mine.std(skipna=False)
            own = difference(mine, scores(runs, other, name)) if method != other else Difference()
            row[f"{name}_gain"] = own
        claimed = not isnan(row["paper_gain"])
        row["verdict"] = verdict(row["best_gain"], row["paper_gain"]) if claimed else ""
        rows.append(row)
    return pd.DataFrame(rows).set_index("method")


def primary_tests(studies: Studies) -> pd.DataFrame:
    """FedSkip-5 against FedAvg in each of the paper's 13 columns: gain, p after Holm, verdict."""
    rows = pd.DataFrame(
        {name: compare(one, studies).loc[PRIMARY] for name, one in compared().items()}
    ).T
    rows["p"] = holm([gain.p for gain in rows["best_gain"]])
    rows["verdict"] = [
        verdict(*facts)
        for facts in zip(rows["best_gain"], rows["paper_gain"], rows["p"], strict=True)
    ]
    return rows
