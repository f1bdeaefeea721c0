"""Figures 1 and 5 of the paper, from what there is of them in any study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from rich.text import Text

from fedskip.paper import compose
from fedskip.paper.beside import cell, known, named, some_short
from fedskip.paper.claims import Uneven, uneven, uneven_sheet
from fedskip.paper.columns import BASELINE, Column, settings
from fedskip.paper.remarks import fewer, lost, other
from fedskip.records.history import TAIL
from fedskip.records.table import Row
from fedskip.report.canvas import finish, new_axes
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BESIDE = ("table2/cifar10-beta1", "table2/cifar10-iid")  # as Figure 1's settings, but for beta
PERIODS = (1, 3, 5, 7, 10, 15, 20)


def fig1_columns() -> list[Column]:
    """CIFAR-10 with ten clients, from the most uneven division to the even one."""
    known = settings()
    return [column for column in known.values() if column.table == "fig1"] + [known[name] for name in BESIDE]


def fig1(studies: Sequence[Results], score: str = "mean_tail") -> Axes:
    """FedAvg's accuracy and both drifts against beta."""
    from matplotlib.figure import Figure

    columns, seen = fig1_columns(), uneven(fig1_columns(), studies, score)
    found = {beta(column): seen[column] for column in columns if column in seen}
    left: Axes
    right: Axes
    left, right = Figure(figsize=(8.4, 3.6), layout="constrained").subplots(1, 2)
    accuracy = f"{named(score)} test accuracy (%)"
    _line(left, found, "accuracy", accuracy, share=100.0)
    _line(right, found, "drift_mean", "from the mean of the slots", marker="s")
    _line(right, found, "drift_broadcast", "from the model sent out", marker="^")
    for axes, up in ((left, accuracy), (right, "drift, squared distance")):
        axes.set(xlabel="β", ylabel=up)
        axes.set_xticks(range(len(found)), list(found))
    note = "mean ± standard deviation over seeds"
    missing = ", ".join(beta(column) for column in columns if column not in seen)
    notes = [f"over the last {TAIL:.0%} of the rounds", *_less({one: [BASELINE] for one in columns}, studies)]
    gone = {column.name: lost(column, column.runs(studies)[BASELINE]) for column in seen}
    notes += [f"{name}: {', '.join(said)}" for name, said in gone.items() if said]
    notes += [f"not run: {missing}"] * bool(missing)
    finish(right, "and its drift", notes)
    right.legend(fontsize=8, frameon=False)
    finish(left, f"{BASELINE} against β", [note], legend=False)
    left.grid(alpha=0.25)
    return left


def fig5_columns(data: str) -> list[Column]:
    """CIFAR-10 or CIFAR-100 with 10, 50 and 100 clients, at two betas."""
    found = [column for column in settings().values() if column.table == "fig5"]
    return [column for column in found if column.draft.keys["data"]["name"] == data]


def fig5(studies: Sequence[Results], score: str = "best", data: str = "cifar10") -> Axes:
    """Accuracy against the period, a line for each setting of a data set."""
    axes, absent, crossed = new_axes(), [], 0
    for number, column in enumerate(fig5_columns(data)):
        runs = {period: column.runs(studies)[_named(period)] for period in PERIODS}
        trained = {period: [row for row in rows if not _lost(column, row)] for period, rows in runs.items()}
        points = {period: known(rows, score) for period, rows in trained.items() if known(rows, score)}
        if not any(runs.values()):
            absent.append(column.name)
            continue
        middle = [100 * fmean(scores) for scores in points.values()]
        spread = [100 * _spread(scores) for scores in points.values()]
        color, marker = f"C{number}", "osD^vP"[number]
        axes.errorbar(
            list(points), middle, yerr=spread, color=color, marker=marker, capsize=3, linewidth=1.4,
            label=column.name,
        )  # fmt: skip
        some = [at for at, period in enumerate(points) if len(trained[period]) < len(runs[period])]
        axes.plot(
            [list(points)[at] for at in some], [middle[at] for at in some], marker, color=color, mfc="white",
            zorder=3,
        )  # fmt: skip
        gone = [period for period, rows in runs.items() if rows and not trained[period]]
        heights = [0.02 + 0.03 * crossed] * len(gone)  # crosses of two settings stand one above the other
        crossed += bool(gone)
        axes.plot(gone, heights, "x", color=color, transform=axes.get_xaxis_transform())
    for name in absent:
        axes.plot([], [], " ", label=f"{name}: not run")
    axes.set_xticks(PERIODS)
    axes.set(xlabel="Δ, rounds from merge to merge", ylabel=f"{named(score)} test accuracy (%)")
    shown = {column: [_named(period) for period in PERIODS] for column in fig5_columns(data)}
    notes = [
        f"mean ± standard deviation over seeds; Δ = 1 is {BASELINE}",
        "hollow: without runs lost to NaN or chance; ×: all are lost", *_less(shown, studies),
    ]  # fmt: skip
    return finish(axes, f"Accuracy against the period, {data.upper().replace('CIFAR', 'CIFAR-')}", notes)


def _lost(column: Column, row: Row) -> bool:
    return bool(row["diverged"]) or column.at_chance(row)


def fig5_sheet(studies: Sequence[Results], score: str = "best", data: str = "cifar10") -> Sheet:
    """The same in numbers; the cells say what is missing, short or lost."""
    rows, small = [], dict[str, str]()
    for column in fig5_columns(data):
        runs = column.runs(studies)
        if any(runs.values()):
            cells = [cell(column, runs[_named(period)], score, column.seeds(runs)) for period in PERIODS]
            rows.append([Text(column.name), *map(Text, cells)])
            small[column.name] = some_short(column, studies)
    headers = ["setting", *(f"Δ = {period}" for period in PERIODS)]
    said = [f"{name}: {number}" for name, number in small.items() if number]
    note = f"Clients that fill no batch, and train in one short batch: {'; '.join(said)}." if said else ""
    return Sheet(f"{named(score)} test accuracy in %, by period", headers, 1, rows, note)


Drawing = Callable[[], "Axes"]


def shown(studies: Sequence[Results], score: str | None = None) -> dict[str, tuple[Sheet, Drawing]]:
    """What there is of the figures and of `compose`: in numbers, and as a picture.

    `score`: what all of them show; None: Figure 5 the best, as the paper has it, the others the tail.
    """
    tail, best = score or "mean_tail", score or "best"
    found: dict[str, tuple[Sheet, Drawing]] = {
        "fig1": (uneven_sheet(fig1_columns(), studies, tail), lambda: fig1(studies, tail)),
        "fig5": (fig5_sheet(studies, best), lambda: fig5(studies, best)),
        "fig5-cifar100": (
            fig5_sheet(studies, best, "cifar100"),
            lambda: fig5(studies, best, "cifar100"),
        ),
    }
    found = {name: parts for name, parts in found.items() if parts[0].rows}
    for name, column in settings().items():
        runs = column.runs(studies) if column.table == compose.STUDY else {}
        if any(rows for method, rows in runs.items() if "+skip" in method):
            draw = partial(compose.compose_figure, column, studies, tail)
            found[name] = (compose.compose_sheet(column, studies, tail), draw)
    return found


def _line(
    axes: Axes, found: dict[str, Uneven], name: str, label: str, *, marker: str = "o", share: float = 1.0
) -> None:
    """One of the numbers over beta, with its spread."""
    points = [(at, getattr(seen, name)) for at, seen in enumerate(found.values()) if getattr(seen, name)]
    axes.errorbar(
        [at for at, _ in points], [share * fmean(values) for _, values in points],
        yerr=[share * _spread(values) for _, values in points], marker=marker, capsize=3, linewidth=1.4,
        label=label,
    )  # fmt: skip


def _less(shown: Mapping[Column, Sequence[str]], studies: Sequence[Results]) -> list[str]:
    """What a picture has to say of columns whose runs, of the methods shown, are not what they should be."""
    said: dict[str, None] = {}
    for column, names in shown.items():
        runs = {name: column.runs(studies)[name] for name in names}
        said |= dict.fromkeys(other(column, [row for rows in runs.values() for row in rows]))
        said |= dict.fromkeys(f"{column.name}: {less}" for less in fewer(column, runs))
    return list(said)


def beta(column: Column) -> str:
    """How uneven its data are, in words."""
    value = column.draft.keys["partition"].get("beta")
    return "IID" if value is None else f"{value:g}"


def _named(period: int) -> str:
    return BASELINE if period == 1 else f"FedSkip-{period}"


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0
