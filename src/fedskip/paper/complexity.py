"""The paper's count of costs, measured: time and memory of the server, time, storage and traffic of a client.

Over T rounds, with S the time of a shuffle and A that of an aggregation:

    O_FedSkip = O_FedAvg + ((Delta - 1) / Delta) T (S - A)

Seconds are those of one machine, and only their ratios within a run are to be compared.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
from rich.console import Group

from fedskip.engine import Loop, Task
from fedskip.engine.arithmetic import torch_threads
from fedskip.input.errors import option, unknown
from fedskip.methods import FedAvg, FedDyn, FedNova, FedProx, Method, Moon, Scaffold
from fedskip.paper.costs import Case, Party, make_server, parts, play, server_memory
from fedskip.paper.output import sheet, write
from fedskip.records.table import Row, Table
from fedskip.report.canvas import GREY, finish, new_axes
from fedskip.report.style import look
from fedskip.version import device_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CASES = (
    Case("perceptron", (60,), steps=50), Case("cnn", (3, 32, 32), steps=10),
    Case("cnn-femnist", (1, 28, 28), steps=10), Case("lstm", (80,), steps=3, vocabulary=80),
    Case("resnet50", (3, 32, 32), steps=1),
)  # fmt: skip
LARGE = 10**7  # numbers of a model that is measured with the fewest slots, and less often
PERIODS = (1, 3, 5, 10)
SLOTS = (10, 20)
SKIP = 5  # the period of methods that are composed with skipping
METHODS: tuple[Method, ...] = (FedAvg(), FedProx(), Scaffold(), Moon(), FedNova(), FedDyn())

SERVER = ("model", "numbers", "slots", "draw", "move", "average", "merge")
ROUNDS = (
    "model", "slots", "period", "rounds", "seconds", "difference", "predicted", "predicted_moving",
)  # fmt: skip
CLIENTS = (
    "model", "method", "steps", "ratio", "ratio_low", "ratio_high", "remembered_bytes", "visit_bytes",
    "down_bytes", "up_bytes",
)  # fmt: skip
MEMORY = ("method", "slots", "held", "peak_skip", "peak_merge", "needed")
ABOUT = ("machine", "processor", "torch", "threads", "turns")


def complexity(
    out: Path,
    *,
    cases: Sequence[Case] = CASES,
    slots: Sequence[int] = SLOTS,
    rounds: int = 120,
    turns: int = 7,
) -> Group:
    """Measure all costs, write tables and figures into `out`, and give the tables to print.

    `rounds` is T. What is compared takes turns; numbers are medians. Large models get a quarter of the
    rounds, and at most three turns.
    """
    server, over, clients = Table(SERVER), Table(ROUNDS), Table(CLIENTS)
    with torch_threads(1):
        for case in cases:
            task = case.task()
            few = task.layout.size > LARGE
            often, long = (min(turns, 3), rounds // 4) if few else (turns, rounds)
            for count in slots[:1] if few else slots:
                facts, lines = server_times(case.name, task, count, long, often)
                server.rows.append(facts)
                over.rows += lines
            clients.rows += client_costs(case, task, often)
        memory = Table(MEMORY, [row for method in everything() for row in memories(cases[0], method, slots)])
    about = dict(
        zip(ABOUT, (platform.machine(), device_name("cpu"), torch.__version__, 1, turns), strict=True)
    )
    tables = {"server": server, "rounds": over, "clients": clients, "memory": memory}
    figures = {"rounds": savings_figure(over), "clients": ratios_figure(clients)}
    write(out, tables | {"about": Table(ABOUT, [about])}, figures)
    beside = _beside(clients)
    return Group(
        sheet("The server: seconds of a shuffle (draw, move) and of an aggregation (average, merge)", server,
              {name: name for name in SERVER}),
        sheet("The server over all rounds: seconds, and how many more than FedAvg's", over,
              {name: name for name in ROUNDS if name != "predicted_moving"}),
        sheet("A client: time of a visit as a multiple of FedAvg's, and bytes in models", beside,
              {name: name for name in beside.columns}),
        sheet("The server's memory, in models", memory, {name: name.replace("_", ", ") for name in MEMORY}),
    )  # fmt: skip


def cases_of(models: str | None) -> list[Case]:
    """The cases of some models, separated by commas; None: all.

    >>> [case.name for case in cases_of("lstm, cnn")]
    ['cnn', 'lstm']
    """
    known = {case.name: case for case in CASES}
    wanted = [*known] if models is None else [name.strip() for name in models.split(",")]
    for name in wanted:
        if name not in known:
            raise unknown(option("models"), name, known)
    return [case for name, case in known.items() if name in wanted]


def everything() -> list[Method]:
    """The paper's methods, and each with skipping; FedAvg with skipping is FedSkip."""
    return [replace(method, period=period) for period in (1, SKIP) for method in METHODS]


def predicted(period: int, rounds: int, shuffle: float, aggregation: float) -> float:
    """What FedSkip's server takes more than FedAvg's.

    >>> predicted(5, 100, 0.5, 1.5)
    -80.0
    """
    return (period - 1) / period * rounds * (shuffle - aggregation)


def server_times(name: str, task: Task, slots: int, rounds: int, turns: int) -> tuple[Row, list[Row]]:
    """Of a shuffle and of an aggregation; and of whole runs by period, beside what follows from the two.

    A is the time of a merge in FedAvg's run: ours, with the drift that it reports and K copies of the result.
    """
    server = make_server(task, FedAvg(), slots)
    single = [parts(server, round) for round in range(rounds)]
    cost = {part: median(found[part] for found in single) for part in single[0]}
    del server
    whole: dict[int, list[float]] = {period: [] for period in PERIODS}
    merges = []
    for _ in range(turns):
        for period, found in whole.items():
            took, merging = play(make_server(task, FedAvg(period=period), slots), rounds)
            found.append(took)
            if period == 1:
                merges.append(merging / rounds)
    cost["merge"] = median(merges)
    lines = [
        {
            "model": name, "slots": slots, "period": period, "rounds": rounds, "seconds": median(found),
            "difference": median(a - b for a, b in zip(found, whole[1], strict=True)),
            "predicted": predicted(period, rounds, cost["draw"], cost["merge"]),
            "predicted_moving": predicted(period, rounds, cost["move"], cost["merge"]),
        }
        for period, found in whole.items()
    ]  # fmt: skip
    return {"model": name, "numbers": task.layout.size, "slots": slots} | cost, lines


def client_costs(case: Case, task: Task, turns: int) -> list[Row]:
    """Every method's visit as a multiple of FedAvg's of the same turn, and its bytes."""
    engine = Loop(task)  # one for all: it has three modules of its own
    parties = {method.label: Party(task, method, engine) for method in everything()}
    ratios: dict[str, list[float]] = {label: [] for label in parties}
    for _ in range(turns):
        took = {label: party.visit() for label, party in parties.items()}
        for label in parties:
            ratios[label].append(took[label] / took["FedAvg"])
    return [
        {"model": case.name, "method": label, "steps": case.steps, "ratio": median(ratios[label]),
         "ratio_low": min(ratios[label]), "ratio_high": max(ratios[label])} | party.bytes()
        for label, party in parties.items()
    ]  # fmt: skip


def _beside(clients: Table) -> Table:
    """The models beside each other: a row for each method, its time with every model, and its bytes."""
    names = list(dict.fromkeys(clients.column("model")))
    kinds = ("remembered", "visit", "down", "up")
    rows = []
    for method in dict.fromkeys(clients.column("method")):
        mine = clients.where(method=method)
        model = clients[0]["down_bytes"]  # FedAvg sends the model and nothing else
        own = {kind: mine[0][f"{kind}_bytes"] / model for kind in kinds}
        rows.append({"method": method} | dict(zip(names, mine.column("ratio"), strict=True)) | own)
    return Table(["method", *names, *kinds], rows)


def memories(case: Case, method: Method, slots: Sequence[int]) -> list[Row]:
    """Of the server, with each number of slots."""
    task = case.task()
    return [{"method": method.label, "slots": count} | server_memory(task, method, count) for count in slots]


# --- figures --------------------------------------------------------------------------------------------


def savings_figure(table: Table) -> Axes:
    """The server's time as a share of FedAvg's, measured and predicted."""
    axes = new_axes()
    fewest = min(table.column("slots"))
    for number, model in enumerate(dict.fromkeys(table.column("model"))):
        part = table.where(model=model, slots=fewest)
        base, xs = part[0]["seconds"], part.column("period")
        axes.plot(xs, [1 + row["difference"] / base for row in part], f"C{number}o", label=model)
        axes.plot(xs, [1 + row["predicted"] / base for row in part], f"C{number}-", linewidth=1)
    axes.plot([], [], "-", color=GREY, linewidth=1, label="1 + (Δ−1)/Δ · T (S−A) / FedAvg's")
    axes.set(xlabel="period Δ", ylabel="server's time / FedAvg's", ylim=0)
    return finish(axes, "The server's time", [f"{fewest} slots", "dots: measured"])


def ratios_figure(table: Table) -> Axes:
    """The time of a visit as a multiple of FedAvg's: a dot for each model."""
    axes = new_axes()
    methods = list(dict.fromkeys(table.column("method")))
    for number, model in enumerate(dict.fromkeys(table.column("model"))):
        part = table.where(model=model)
        heights = [methods.index(row["method"]) + 0.12 * number for row in part]
        axes.plot(part.column("ratio"), heights, f"C{number}o", markersize=4, label=model)
    axes.set_yticks(range(len(methods)), methods, fontsize=8)
    for tick, method in zip(axes.get_yticklabels(), methods, strict=True):
        tick.set_color(look(method).colour)
    axes.axvline(1, color=GREY, linewidth=1)
    axes.invert_yaxis()
    axes.set(xlabel="time of a visit / FedAvg's")
    return finish(axes, "A client's time", ["the same local steps", "median over turns"])
