"""What happens in single visits: numbers and pictures from visits/*.csv, which benchmarks/visits.py makes.

A number in a sentence is `visit:FILE:METHOD:COLUMN:STATISTIC:ROUNDS`, such as
`visit:p50-seed1:FedSkip-3:largest:max:1-10`: over all visits of these rounds. `lonely:50:0.5` is how many of
20 partitions into 50 clients, at beta 0.5, have a client with one class.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from theory import lines

from fedskip.data.heatmap import class_counts
from fedskip.data.partitions import partition
from fedskip.records.table import Row, Table
from fedskip.report.canvas import finish, new_axes

HERE = Path(__file__).parent / "visits"
STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "max": max, "min": min, "sum": sum, "median": median, "count": len,
}  # fmt: skip
WHOLE = ("above_10", "steps", "client", "samples")
SHARES = ("active_before", "active_after", "accuracy_before")


@cache
def _file(name: str) -> Table:
    return Table.read(HERE / f"{name}.csv")


def visits(file: str, method: str, rounds: str) -> list[Row]:
    """The visits of a method in the rounds A-B, or in one."""
    first, _, last = rounds.partition("-")
    return [
        row for row in _file(file).where(method=method) if int(first) <= row["round"] <= int(last or first)
    ]


def looked_at(name: str) -> str:
    """A number of some visits, as it is written."""
    file, method, column, statistic, rounds = name.split(":")
    found = STATISTICS[statistic]([float(row[column]) for row in visits(file, method, rounds)])
    if column in SHARES:
        return f"{100 * found:.0f}"
    if column in WHOLE or abs(found) >= 100:
        return f"{found:,.0f}"
    return f"{float(f'{found:.2g}'):g}" if column.startswith("told") else f"{found:#.3g}"


def lonely(name: str, seeds: int = 20) -> str:
    """Of so many partitions of CIFAR-10, those with a client whose samples are all of one class."""
    clients, beta = name.split(":")
    labels, found = np.repeat(np.arange(10), 5_000), 0
    for seed in range(seeds):
        dealt = partition(
            "dirichlet", np.arange(len(labels)), labels, clients=int(clients), seed=seed, beta=float(beta)
        )
        found += bool(((class_counts(dealt, labels, 10) > 0).sum(0) == 1).any())
    return str(found)


def from_lonely() -> str:
    """Of the runs of FedSkip that diverged, those whose model came from a client with one class."""
    skipped = [line for line in lines("diverged/diverged") if line["from_client"]]
    return f"{sum(line['from_classes'] == '1' for line in skipped)} of {len(skipped)}"


def gradients() -> Axes:
    """The largest gradient of every visit: one run whose slots skip, and FedAvg at the same seed."""
    axes = new_axes()
    for method, shift, marker in (("FedAvg", -0.12, "o"), ("FedSkip-3", 0.12, "s")):
        rows = visits("p50-seed1", method, "1-12")
        places = [row["round"] + shift for row in rows]
        axes.semilogy(places, [row["largest"] for row in rows], marker, ms=3.5, alpha=0.7, label=method)
    worst = max(rows, key=lambda row: row["largest"])
    said = f"client {worst['client']}; the model\ncomes from client {came_from(worst)}"
    axes.annotate(
        said, (worst["round"], worst["largest"]), (worst["round"] - 4.3, worst["largest"] / 3), fontsize=8,
        arrowprops={"arrowstyle": "-", "lw": 0.6},
    )  # fmt: skip
    axes.axhline(10, color="grey", lw=0.8, ls="--")
    axes.set(xlabel="round", ylabel="largest norm of a gradient")
    notes = [
        "a point for each visit",
        "CIFAR-10, 50 clients, seed 1",
        "dashed: where the variant `clip` cuts",
    ]
    return finish(axes, "The largest gradient of each visit", notes)


def came_from(visit: Row) -> int:
    """The client that a slot had visited in the round before."""
    [row] = _file("p50-seed1").where(method=visit["method"], round=visit["round"] - 1, slot=visit["slot"])
    client: int = row["client"]
    return client


def told() -> Axes:
    """How far models tell images apart, over rounds: those that get going, and those that do not."""
    axes = new_axes()
    for file, method, label in (
        ("p50-seed0", "FedSkip-15", "50 clients, Δ = 15"),
        ("p100-seed0", "FedSkip-1x10,15", "100 clients, Δ = 1x10,15"),
        ("p100-seed0", "FedSkip-15", "100 clients, Δ = 15"),
    ):
        rows = visits(file, method, "1-46")
        rounds = sorted({row["round"] for row in rows})
        middle = [median(row["told_after"] for row in rows if row["round"] == one) for one in rounds]
        [line] = axes.semilogy(rounds, middle, label=label)
        sent = {one: {row["told_before"] for row in rows if row["round"] == one} for one in rounds}
        merged = {one - 1: found.pop() for one, found in sent.items() if len(found) == 1}
        axes.semilogy([*merged], [*merged.values()], "o", ms=4, color=line.get_color())
    axes.set(xlabel="round", ylabel="standard deviation of outputs over images")
    notes = [
        "lines: median over slots, after a visit",
        "points: models that are sent out to all",
        "CIFAR-10, seed 0",
    ]
    return finish(axes, "How far models tell images apart", notes)
