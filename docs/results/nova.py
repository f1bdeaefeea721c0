"""How far FedNova steps, beside FedAvg: from benchmarks/results/nova.csv, which benchmarks/nova.py makes.

A number in a sentence is `nova:COLUMN:WHAT`: `median` and `most` over all rounds; of a column that has
histories also `falls`, those of the ten rounds in which FedNova's accuracy falls most.
"""

from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

from evidence import histories
from rich.text import Text

from fedskip.paper.beside import gain, published_gain
from fedskip.paper.columns import BASELINE, races
from fedskip.records.table import Table
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet

FILE = Path(__file__).parents[2] / "benchmarks" / "results" / "nova.csv"
METHOD = "FedNova"
FALLS = 10


@cache
def steps(name: str) -> dict[tuple[int, int], float]:
    """The sums of a column's weights, by seed and round."""
    return {(row["seed"], row["round"]): row["step"] for row in Table.read(FILE).where(setting=name)}


def nova_sheet(kept: list[Results]) -> Sheet:
    """How far FedNova steps, and what it gains."""
    rows = []
    for name, column in races().items():
        runs, found = column.runs(kept), list(steps(name).values())
        if found and runs[METHOD]:
            far = [f"{median(found):.2f}", f"{quantiles(found, n=10)[-1]:.2f}"]
            gains = [gain(runs[METHOD], runs[BASELINE], "mean_tail"), published_gain(column, METHOD)]
            rows.append([Text(cell) for cell in (column.name, *far, *gains)])
    headers = ["column", "median", "in nine of ten rounds at most", "FedNova's gain in tail", "paper's gain"]
    return Sheet("nova", headers, 1, rows, "")


def stepped(name: str, kept: list[Results]) -> str:
    place, what = name.split(":")
    known = steps(place)
    if what == "falls":
        changes = [
            (now["test_accuracy"] - before["test_accuracy"], (seed, now["round"]))
            for seed, run in histories(races()[place].results(kept), METHOD).items()
            for before, now in pairwise(run)
        ]
        found = [known[where] for _, where in sorted(changes)[:FALLS]]
        return f"{min(found):.2f} to {max(found):.2f}"
    return f"{ {'median': median, 'most': max}[what](known.values()):.2f}"
