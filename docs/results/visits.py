"""What happens in single visits: numbers and pictures from visits/*.csv, which benchmarks/visits.py makes.

A number in a sentence is `visit:FILE:METHOD:COLUMN:STATISTIC:ROUNDS`, such as
`visit:p50-seed1:FedSkip-3:largest:max:1-10`: over all visits of these rounds; `11@17` is that of round 11 to
client 17, `11#2` are those of round 11 at seed 2.

`single:50:0.5` is how many of 20 partitions into 50 clients, at beta 0.5, have a client with one class,
`single:50:0.5:0-2` how many such clients there are at seeds 0 to 2. `after:FILE:METHOD:CLIENTS:BETA` is
how many of the visits that follow no merge come right after such a client; `huge:...` how many of those whose
gradients get above a norm of 100, or are not finite; behind # at one seed.
"""

from collections.abc import Callable
from functools import cache
from math import isfinite
from pathlib import Path
from statistics import median

import numpy as np
from files import lines
from matplotlib.axes import Axes
from rich.text import Text

from fedskip.data.heatmap import class_counts
from fedskip.data.partitions import partition
from fedskip.records.table import Row, Table
from fedskip.report import units
from fedskip.report.canvas import finish, new_axes
from fedskip.report.sheet import Sheet

HERE = Path(__file__).parent / "visits"
LABELS = np.repeat(np.arange(10), 5_000)  # as CIFAR-10 has them; their order makes no difference to counts
STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "max": max, "min": min, "sum": sum, "median": median,
}  # fmt: skip
WHOLE = ("above_10", "steps")
SHARES = ("active_before", "active_after", "accuracy_before")
PERIOD = 3  # of the runs whose gradients are shown
HUGE = 100.0  # a norm of a gradient


# --- numbers in sentences --------------------------------------------------------------------------------


@cache
def _file(name: str) -> Table:
    return Table.read(HERE / f"{name}.csv")


def visits(file: str, method: str, rounds: str) -> list[Row]:
    """The visits of a method in the rounds A-B, or in one; behind @ to one client, behind # at one seed."""
    rest, _, seed = rounds.partition("#")
    span, _, client = rest.partition("@")
    first, _, last = span.partition("-")
    return [
        row
        for row in _file(file).where(method=method)
        if int(first) <= row["round"] <= int(last or first)
        and client in ("", str(row["client"]))
        and seed in ("", str(row["seed"]))
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


@cache
def single(clients: int, beta: float, seed: int) -> list[int]:
    """The clients with samples of one class only, in a partition of CIFAR-10."""
    dealt = partition("dirichlet", np.arange(len(LABELS)), LABELS, clients=clients, seed=seed, beta=beta)
    return np.flatnonzero((class_counts(dealt, LABELS, 10) > 0).sum(0) == 1).tolist()


def counted(name: str) -> str:
    """How many of 20 partitions have such a client; at some seeds, how many there are."""
    clients, beta, *rest = name.split(":")
    if not rest:
        return str(sum(bool(single(int(clients), float(beta), seed)) for seed in range(20)))
    first, _, last = rest[0].partition("-")
    found = [len(single(int(clients), float(beta), seed)) for seed in range(int(first), int(last) + 1)]
    return units.listed([str(number) for number in found])


def after_single(*, once: bool = False) -> str:
    """Of the runs of FedSkip that diverged, those whose model came from a client with one class.

    `once`: runs that break in the same visit, because they go the same way until then, count as one.
    """
    skipped = [line for line in lines("diverged/diverged") if line["method"].startswith("FedSkip-")]
    if once:
        where = ("setting", "seed", "broke_round", "broke_client")
        skipped = list({tuple(line[key] for key in where): line for line in skipped}.values())
    return f"{sum(line['from_classes'] == '1' for line in skipped)} of {len(skipped)}"


# --- gradients -------------------------------------------------------------------------------------------


def before(file: str, visit: Row) -> Row | None:
    """The visit that a slot made with the same model in the round before; None right after a merge.

    Of methods with one period.
    """
    period = int(visit["method"].removeprefix("FedSkip-"))
    if (visit["round"] - 1) % period == 0:
        return None
    same = {key: visit[key] for key in ("method", "seed", "slot")}
    [found] = _file(file).where(round=visit["round"] - 1, **same)
    row: Row = found
    return row


def after_one(name: str, *, huge: bool) -> str:
    """Of the visits that follow no merge, all or the huge: how many come after a client with one class."""
    rest, _, seed = name.partition("#")
    file, method, clients, beta = rest.split(":")
    known = _file(file).where(method=method, **({"seed": int(seed)} if seed else {}))
    went_on = [(row, came) for row in known if (came := before(file, row)) and isfinite(row["before"])]
    if huge:
        went_on = [(row, came) for row, came in went_on if not row["largest"] <= HUGE]
    alone = {seed: single(int(clients), float(beta), seed) for seed in known.column("seed")}
    return f"{sum(came['client'] in alone[row['seed']] for row, came in went_on)} of {len(went_on)}"


def gradients_sheet() -> Sheet:
    """The largest gradients right after a client with one class, and of all other visits, by seed."""
    rows = []
    for file in ("p50-seed1", "p50-others"):
        known = _file(file).where(method=f"FedSkip-{PERIOD}")
        for seed in dict.fromkeys(known.column("seed")):
            alone = single(50, 0.5, seed)
            after, others = list[float](), list[float]()
            for row in known.where(seed=seed):
                came = before(file, row)
                (after if came and came["client"] in alone else others).append(row["largest"])
            told = ", ".join(f"{norm:,.0f}" for norm in after) or units.NONE
            cells = [
                str(seed),
                ", ".join(map(str, alone)) or "none",
                str(max(known.where(seed=seed).column("round"))),
                told,
            ]
            rows.append([Text(cell) for cell in (*cells, f"{max(others):,.0f}")])
    headers = ["seed", "client with one class", "rounds", "largest gradient of each visit right after it"]
    return Sheet("gradients", [*headers, "of all other visits"], 1, rows)


def gradients() -> Axes:
    """The largest gradient of every visit: one run whose slots skip, and FedAvg at the same seed."""
    axes, file = new_axes(), "p50-seed1"
    for method, shift, marker in (("FedAvg", -0.12, "o"), (f"FedSkip-{PERIOD}", 0.12, "s")):
        rows = visits(file, method, "1-12")
        places = [row["round"] + shift for row in rows]
        axes.semilogy(places, [row["largest"] for row in rows], marker, ms=3.5, alpha=0.7, label=method)
    worst = max(_file(file), key=lambda row: row["largest"])
    came = before(file, worst)
    assert came is not None
    said = f"client {worst['client']}; the model\ncomes from client {came['client']}"
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


# --- what models tell apart ------------------------------------------------------------------------------


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
    notes = ["lines: median over slots, after a visit", "points: merged models", "CIFAR-10, seed 0"]
    return finish(axes, "How far models tell images apart", notes)
