"""How much weight FedNova gives the slots together, from a file that benchmarks/nova.py makes.

A number in a sentence is `nova:COLUMN:WHAT`, over the seeds that were run: `median` and `most` of all rounds;
of the ten rounds in which FedNova's accuracy falls most `falls`, from the least to the most, and `as-much`,
how many of all rounds have no less than these; `rank:METHOD`: Spearman's correlation of the sum of a round
with the change of a method's accuracy in it.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import numpy as np
from evidence import histories
from rich.text import Text

from fedskip.paper.beside import gain, published_gain
from fedskip.paper.columns import BASELINE, races
from fedskip.paper.remarks import labelled
from fedskip.records.table import Table
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet

FILE = Path(__file__).parents[2] / "benchmarks" / "results" / "nova.csv"
METHOD = "FedNova"
FALLS = 10

Place = tuple[int, int]  # seed and round


@cache
def sums(name: str) -> dict[Place, float]:
    """Of a column's weights, round by round."""
    return {(row["seed"], row["round"]): row["weights"] for row in Table.read(FILE).where(setting=name)}


def nova_sheet(kept: list[Results]) -> Sheet:
    """What FedNova's weights sum to, and what it gains."""
    rows = []
    for name, column in races().items():
        runs, found = column.runs(kept), list(sums(name).values())
        if found and runs[METHOD]:
            shown = [f"{median(found):.2f}", f"{quantiles(found, n=10)[-1]:.2f}"]
            gains = [gain(runs[METHOD], runs[BASELINE], "mean_tail"), published_gain(column, METHOD)]
            rows.append([Text(cell) for cell in (labelled(column, runs), *shown, *gains)])
    headers = ["column", "median", "in nine of ten rounds at most", "FedNova's gain in tail", "paper's gain"]
    return Sheet("nova", headers, 1, rows, "")


def changes(place: str, method: str, kept: list[Results]) -> dict[Place, float]:
    """By how much a method's accuracy changes in a round."""
    runs = histories(races()[place].results(kept), method)
    return {
        (seed, now["round"]): now["test_accuracy"] - before["test_accuracy"]
        for seed, run in runs.items()
        for before, now in pairwise(run)
    }


def ranks(values: Sequence[float]) -> np.ndarray:
    """From the least to the most; equals share theirs.

    >>> ranks([0.5, 0.7, 0.5, 0.1])
    array([2.5, 4. , 2.5, 1. ])
    """
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    shared: np.ndarray = counts.cumsum() - (counts - 1) / 2
    return shared[which]


def summed(name: str, kept: list[Results]) -> str:
    place, _, what = name.partition(":")
    seeds = {row["seed"] for row in races()[place].runs(kept)[METHOD]}
    known = {where: found for where, found in sums(place).items() if where[0] in seeds}
    kind, _, method = what.partition(":")
    change = {w: by for w, by in changes(place, method or METHOD, kept).items() if w in known}
    if kind == "rank":
        both = [ranks([of[where] for where in change]) for of in (known, change)]
        return f"{np.corrcoef(*both)[0, 1]:+.2f}"
    falls = [known[where] for where in sorted(change, key=change.__getitem__)[:FALLS]]
    if kind == "falls":
        return f"{min(falls):.2f} to {max(falls):.2f}"
    if kind == "as-much":
        return f"{sum(found >= min(falls) for found in known.values())} of {len(known)}"
    return f"{ {'median': median, 'most': max}[kind](known.values()):.2f}"
