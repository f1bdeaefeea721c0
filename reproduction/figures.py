"""The figures of the pages: what skipping gains, Figures 1 to 5 of the paper, gradients, and Theorem 1's bounds."""

from __future__ import annotations

import io
from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from fedskip.report.results import Results
from reproduction import evidence_tables, tables
from reproduction.columns import BASELINE, PERIODS, Column, Studies, columns, compared
from reproduction.runs import RUNS
from reproduction.statistics import primary_tests, scores

COLOURS = {BASELINE: "#555555", "FedSkip-3": "#0072b2", "FedSkip-5": "#009e73", "FedSkip-7": "#e69f00",
           "FedSkip-10": "#cc79a7"}  # fmt: skip
PAPER, OURS, FINAL, GREY = "#d55e00", "#0072b2", "#56b4e9", "#999999"
FIGURE2 = ("cifar10-p10-beta0.5-seed0", "FedSkip-5")  # a run, and a method of it
CURVE = 120  # points of a curve of Figure 4


def svg(figure: Figure) -> str:
    """A figure as a file that is the same each time it is drawn from the same numbers."""
    text = io.StringIO()
    with rc_context({"svg.hashsalt": "fedskip"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def panels(
    rows: int, across: int, width: float, height: float, **options: Any
) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(width * across, height * rows), layout="constrained")
    found = np.atleast_1d(figure.subplots(rows, across, **options)).flatten().tolist()
    for axes in found:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, found


def gains(studies: Studies) -> Figure:
    """FedSkip-5 less FedAvg in the paper's 13 columns: the paper's gain, ours by best and by final accuracy."""
    found = primary_tests(studies)
    figure, [axes] = panels(1, 1, 8.0, 5.4)
    for place, (_, row) in enumerate(found.iterrows()):
        tested = row["seeds"] > 0
        axes.plot(
            row["paper_gain"], place, "D", color=PAPER, fillstyle="full" if tested else "none", ms=6
        )
        for name, shift, colour in (("best", -0.16, OURS), ("tail", 0.16, FINAL)):
            gain = row[f"{name}_gain"]
            if not isnan(gain.mean):
                axes.plot(gain.mean, place + shift, "o", color=colour, ms=5)
                axes.plot([gain.low, gain.high], [place + shift] * 2, color=colour, lw=1.6)
    axes.axvline(0, color=GREY, lw=1)
    seeds = {0: "not run", 1: "1 seed"}
    counts = [seeds.get(count, f"{count} seeds") for count in found["seeds"]]
    titles = [compared()[name].title for name in found.index]
    names = [f"{title}  ({count})" for title, count in zip(titles, counts, strict=True)]
    axes.set_yticks(range(len(found)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set(
        xlabel="FedSkip-5 less FedAvg, points of test accuracy (lines: 95 % CI)",
        xlim=(-10, 10),
    )
    for label, marker, colour, fill in (
        ("the paper", "D", PAPER, "full"), ("the paper, not run by us", "D", PAPER, "none"),
        ("ours, best accuracy", "o", OURS, "full"), ("ours, final accuracy", "o", FINAL, "full"),
    ):  # fmt: skip
        axes.plot([], [], marker, color=colour, fillstyle=fill, label=label)
    axes.legend(fontsize=8, frameon=False, loc="lower left")
    return figure


def figure1(studies: Studies) -> Figure:
    """FedAvg's accuracy, and how far its slots drift, against β."""
    figure, [left, right] = panels(1, 2, 4.2, 3.4)
    names, places = [], range(len(tables.FIGURE1))
    for place, name in enumerate(tables.FIGURE1):
        column = columns()[name]
        names.append("IID" if column.beta is None else f"{column.beta:g}")
        final = scores(column.runs(studies), BASELINE, "tail")
        left.errorbar(place, final.mean(), final.std(), fmt="o", color=OURS, capsize=3)
        for key, colour in (("drift_mean", OURS), ("drift_broadcast", FINAL)):
            drift = tables.tails(column, studies, key)
            mine = drift[drift["method"] == BASELINE][key]
            right.errorbar(place, mine.mean(), mine.std(), fmt="o", color=colour, capsize=3)
    for axes, label in ((left, "final test accuracy (%)"), (right, "drift (squared distance)")):
        axes.set_xticks(list(places), names)
        axes.set(xlabel="β", ylabel=label)
    right.plot([], [], "o", color=OURS, label="of slots from their mean")
    right.plot([], [], "o", color=FINAL, label="of slots from the model sent out")
    right.legend(fontsize=8, frameon=False)
    return figure


def figure2(_: Studies) -> Figure:
    """The way of the models in a real run: which client each slot visits, and where slots merge."""
    name, method = FIGURE2
    results = Results.read(RUNS / name)
    axes = results.plot.routing(results.settings[0].name, method, seed=0)
    figure = axes.figure
    assert isinstance(figure, Figure)
    return figure


def figure3(_: Studies) -> Figure:
    """How many training samples of each class ten clients have: IID, β = 1 and β = 0.5."""
    figure, found = panels(1, 3, 4.2, 4.0)
    for axes, name in zip(found, ("iid", "beta1", "beta0.5"), strict=True):
        counts = evidence_tables.evidence(f"fig3/fig3-{name}")
        counts = counts[[one for one in counts if one.startswith("client")]].to_numpy()
        axes.imshow(counts, cmap="Blues", aspect="auto", vmin=0)
        for (row, client), count in np.ndenumerate(counts):
            light = count > counts.max() / 2
            axes.text(
                client,
                row,
                f"{count}",
                ha="center",
                va="center",
                fontsize=5,
                color="white" if light else "black",
            )
        axes.grid(False)
        axes.set(title=name, xlabel="client", ylabel="class")
    return figure


def figure4(studies: Studies) -> Figure:
    """Test accuracy over rounds, median over seeds: FedAvg and FedSkip in each column that was run."""
    shown = [one for one in compared().values() if len(one.history(studies))]
    figure, found = panels(-(-len(shown) // 2), 2, 4.6, 2.6)
    for axes, column in zip(found, shown, strict=False):
        for method in (BASELINE, *(f"FedSkip-{period}" for period in PERIODS)):
            curve = _curve(column, studies, method)
            axes.plot(curve.index, curve, color=COLOURS[method], lw=1, label=method)
        axes.set_title(column.title, fontsize=9)
    for axes in found[len(shown) :]:
        axes.set_visible(False)
    found[0].legend(fontsize=7, frameon=False)
    figure.supxlabel("round", fontsize=9)
    figure.supylabel("test accuracy (%)", fontsize=9)
    return figure


def _curve(column: Column, studies: Studies, method: str) -> pd.Series:
    """The median over seeds after each merge, thinned by taking means of neighbours."""
    history = column.history(studies)
    middle = history[history["method"] == method].groupby("round")["test_accuracy"].median()
    width = max(1, len(middle) // CURVE)
    return middle.groupby(np.arange(len(middle)) // width).mean().set_axis(middle.index[::width])


def figure5(studies: Studies) -> Figure:
    """Best accuracy against the period; open markers leave out seeds that diverged or ended at chance."""
    figure, [axes] = panels(1, 1, 7.0, 4.0)
    for number, name in enumerate(tables.FIGURE5):
        column = columns()[name]
        runs, colour = column.runs(studies), f"C{number}"
        points = []
        for method in column.methods:
            period = 1 if method == BASELINE else int(method.rpartition("-")[2])
            mine = scores(runs, method)
            if mine.isna().all():
                axes.plot(
                    period,
                    0.02 + 0.03 * number,
                    "x",
                    color=colour,
                    transform=axes.get_xaxis_transform(),
                )
            else:
                points.append((period, mine.mean()))
                fill = "none" if mine.isna().any() else "full"
                axes.plot(period, mine.mean(), "o", color=colour, fillstyle=fill)
        axes.plot(
            *zip(*points, strict=True), "-", color=colour, lw=1, label=name.removeprefix("fig5/")
        )
    axes.set_xticks([1, 3, 5, 7, 10, 15, 20])
    axes.set(xlabel="period Δ (1 is FedAvg); ×: every seed failed", ylabel="best test accuracy (%)")
    axes.legend(fontsize=8, frameon=False)
    return figure


def gradients(_: Studies) -> Figure:
    """The largest gradient of each visit: FedAvg, and FedSkip-3 with a client that has one class."""
    visits = evidence_tables.evidence("visits/p50-seed1")
    figure, [axes] = panels(1, 1, 7.0, 3.6)
    for method, shift, marker in (("FedAvg", -0.12, "o"), ("FedSkip-3", 0.12, "s")):
        mine = visits[visits["method"] == method]
        axes.semilogy(
            mine["round"] + shift, mine["largest"], marker, ms=3.5, alpha=0.7, label=method
        )
    axes.axhline(10, color=GREY, lw=0.8, ls="--")
    axes.set(xlabel="round", ylabel="largest norm of a gradient")
    axes.set_title(
        "a point for each visit; CIFAR-10, 50 clients, seed 1; dashed: where clip=10 cuts",
        fontsize=9,
    )
    axes.legend(fontsize=8, frameon=False)
    return figure


def theorem1(_: Studies) -> Figure:
    """Distance from the optimum and divergence of the slots, and the bounds on both."""
    lines = evidence_tables.evidence("theorem1/distance")
    figure, found = panels(1, 2, 4.8, 3.8)
    shown = {
        "distance": {"printed_bound": "--", "corrected_bound": "-.", "recursion": ":"},
        "divergence": {"printed_lemma": "--", "corrected_lemma": "-."},
    }
    for axes, (measured, bounds) in zip(found, shown.items(), strict=True):
        for number, (period, part) in enumerate(lines.groupby("period")):
            axes.loglog(part["step"], part[measured], color=f"C{number}", label=f"Δ = {period}")
            for bound, style in bounds.items():
                axes.loglog(part["step"], part[bound], style, color=f"C{number}", lw=0.8)
        for bound, style in bounds.items():
            axes.plot([], [], style, color=GREY, label=bound.replace("_", " "))
        axes.set(xlabel="local steps", title=f"{measured} (mean over seeds)")
        axes.legend(fontsize=7, frameon=False)
    return figure


DRAWN: dict[str, Callable[[Studies], Figure]] = {
    "docs/results/gains.svg": gains,
    "docs/results/fig1.svg": figure1,
    "docs/results/fig2.svg": figure2,
    "docs/results/fig3.svg": figure3,
    "docs/results/fig4.svg": figure4,
    "docs/results/fig5.svg": figure5,
    "docs/results/gradients.svg": gradients,
    "docs/theorem1.svg": theorem1,
}


def draw(studies: Studies, to: Path) -> list[Path]:
    """Write all figures, under the names that pages have for them."""
    written = []
    for name, figure in DRAWN.items():
        file = to / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(svg(figure(studies)), encoding="utf-8")
        written.append(file)
    return written
