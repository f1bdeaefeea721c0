"""What of the paper is computed: Table IV and Figures 2 to 4 from what was run, its theorem, its costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from fedskip.data import catalogue, heatmap
from fedskip.data.split import deal, split
from fedskip.files import write_bytes, write_text
from fedskip.paper.clients import clients
from fedskip.paper.columns import columns, races, settings
from fedskip.paper.complexity import complexity
from fedskip.paper.diverged import diverged
from fedskip.paper.table4 import table4
from fedskip.paper.theorem import theorem1
from fedskip.records.table import Table
from fedskip.report.canvas import drawn, finish, new_axes
from fedskip.report.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Computed:
    """Something of the paper that is not trained."""

    words: str
    make: Callable[[Sequence[Results], Path], list[RenderableType]]  # writes files, gives what to print
    of_runs: bool = True  # else it needs nothing that was run
    needs: str = "a run of tables 2 and 3, with its history"
    fix: str = "run one first: fedskip run table3/synthetic"
    none_is_an_answer: bool = False  # that there is nothing of it says something, too


def fig2(studies: Sequence[Results], out: Path) -> list[RenderableType]:
    """The way of the models in a real run: which client each slot visits, and where they merge."""
    for study in studies:
        skipping = [row for row in study.summary if str(row["period"]) not in ("1", "never")]
        for row in skipping:
            if row["setting"] in {setting.name for setting in study.compared}:
                axes = study.plot.routing(row["setting"], row["method"], seed=row["seed"])
                write_bytes(out / "fig2.svg", drawn(axes, "svg"))
                return [Text(f"{out / 'fig2.svg'}: {row['run']}, from {study.out}")]
    return []


def fig3(studies: Sequence[Results], out: Path) -> list[RenderableType]:
    """Who has how much of what on CIFAR-10 with ten clients: IID, beta 1 and beta 0.5."""
    dataset, shown = catalogue.load(name="cifar10"), list[RenderableType]()
    train, _ = split(dataset, 0)
    for name in ("iid", "beta1", "beta0.5"):
        column = columns()[f"table2/cifar10-{name}"]
        owned = deal(dataset, train, 0, column.draft.keys["partition"], column.draft.keys["clients"])
        counts = heatmap.class_counts(owned, dataset.samples.labels(), dataset.classes or 0)
        file = out / f"fig3-{name}.svg"
        write_bytes(file, drawn(fig3_figure(counts, column.name), "svg"))
        rows = [
            {"class": k} | {f"client {i}": int(n) for i, n in enumerate(row)} for k, row in enumerate(counts)
        ]
        write_text(file.with_suffix(".csv"), Table(rows[0], rows).csv())
        shown.append(Text(f"{file}: {counts.sum():,} samples"))
    return shown


def fig3_figure(counts: np.ndarray, title: str) -> Axes:
    """Counts (C, N) as a heat map."""
    axes = new_axes()
    heatmap.paint(counts, axes)
    return finish(axes, title, [f"{counts.sum():,} training samples, seed 0"], legend=False)


def fig4(studies: Sequence[Results], out: Path) -> list[RenderableType]:
    """Test accuracy over rounds, for every column that was run."""
    shown: list[RenderableType] = []
    for name, column in races().items():
        results = column.results(studies)
        if results is not None:
            file = out / f"fig4-{column.name}.svg"
            write_bytes(file, drawn(results.plot.curves(), "svg"))
            shown.append(Text(str(file)))
        else:
            why = "run, but without a history" if any(column.runs(studies).values()) else "not run"
            shown.append(Text(f"{why}: {name}. Make it with: fedskip run {name}"))
    return shown


def which_diverged(studies: Sequence[Results], out: Path) -> list[RenderableType]:
    """The runs that diverged; a line where none did."""
    parts = [part for column in settings().values() for part in column.parts(studies)]
    if any(row["diverged"] for part in parts for row in part.summary):
        return diverged(studies, out)
    return [Text("No run of the paper's settings diverged.")] if studies else []


COMPUTED = {
    "table4": Computed(
        "rounds, merges and bytes to FedAvg's accuracy, from runs of tables 2 and 3",
        table4,
        needs="FedAvg in a column of tables 2 and 3, with its history",
    ),
    "fig2": Computed(
        "the way of the models, from any run that skips",
        fig2,
        needs="a run that skips",
        fix="run one first: fedskip run quickstart",
    ),
    "fig3": Computed(
        "who has how much of what on CIFAR-10, which it needs: fedskip data get cifar10", fig3, False
    ),
    "fig4": Computed("test accuracy over rounds, from runs of tables 2 and 3", fig4),
    "clients": Computed(
        "how large the clients of runs are; deals them again, so it needs the data",
        clients,
        needs="runs whose data are on this machine",
        fix="get the data: fedskip data get NAME, or fedskip data import NAME PATH",
    ),
    "diverged": Computed(
        "which runs diverged, when, and on which client; sizes need the data",
        which_diverged,
        needs="runs",
        none_is_an_answer=True,
    ),
    "theorem1": Computed(
        "Theorem 1 and its lemma, on problems with known constants; minutes",
        lambda _, out: [theorem1(out)],
        of_runs=False,
    ),
    "complexity": Computed(
        "costs of methods; half an hour; five minutes without resnet50",
        lambda _, out: [complexity(out)],
        of_runs=False,
    ),
}
