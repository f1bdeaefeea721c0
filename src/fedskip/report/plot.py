"""Figures of a study, as matplotlib axes: for notebooks, papers and the page.

Lines are means over seeds, in a band from the lowest seed to the highest. Methods look as `style.py` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskip.data import catalogue, heatmap
from fedskip.data.partitions import Partition
from fedskip.federation.server import draw_cohort
from fedskip.input.errors import InputError, unknown
from fedskip.methods.period import Period
from fedskip.records.table import Table
from fedskip.report import sweep
from fedskip.report.canvas import GREY, finish, new_axes
from fedskip.report.curves import NAMES, curves
from fedskip.report.recorded import About, Recorded
from fedskip.report.series import ACROSS, point, skipping
from fedskip.report.style import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = 10  # markers on a line
BARS = 300  # of a partition


@dataclass(frozen=True)
class Plot:
    """The figures of a study; `results.plot` is one."""

    results: Recorded

    def curves(
        self,
        setting: str | None = None,
        *,
        x: str = "round",
        y: str = "test_accuracy",
        smooth: int | None = None,
        axes: Axes | None = None,
    ) -> Axes:
        """A line for each method over rounds, `x="merges"` or `x="bytes"`.

        `y`: a column of the history: the headline unless told otherwise; `x_macro_f1`, say, is a further
        metric, and there are losses and drifts.

        `smooth`: the rounds over which a running mean is taken; None: none, or a fiftieth of the rounds
        where a run has 100 evaluations and more. The figure says so.
        """
        if x not in ACROSS:
            raise unknown("x", x, ACROSS)
        about, axes = self._setting(setting), axes or new_axes()
        found = curves(self.results, about, y, smooth)
        if not found.lines:
            raise InputError("y", "has no numbers in this history", y, "bring back history.csv")
        for label, band in found.lines.items():
            xs, seen = band.across[x], look(label)
            axes.plot(
                xs, band.mean, seen.line, color=seen.colour, marker=seen.marker, markersize=4,
                markevery=max(1, len(xs) // MARKS), linewidth=1.4, label=shown(label),
            )  # fmt: skip
            if found.banded:
                axes.fill_between(xs, band.low, band.high, color=seen.colour, alpha=0.15, linewidth=0)
        for label, score in found.references.items():
            axes.axhline(score, color=GREY, linestyle=(0, (1, 2)), label=shown(label))
        axes.set(xlabel=NAMES[x], ylabel=found.name)
        if x != "bytes":  # rounds and merges are whole
            axes.locator_params("x", integer=True)
        if found.logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter("")  # which takes longer than all the rest
        if found.limits is not None:
            axes.set_ylim(*found.limits)
        return finish(axes, about.name, found.notes)

    def bytes(self, setting: str | None = None, **how: Any) -> Axes:
        """The metric against what was sent."""
        return self.curves(setting, x="bytes", **how)

    def drift(self, setting: str | None = None, **how: Any) -> Axes:
        """How far the slots are apart before a merge."""
        return self.curves(setting, y="drift_mean", **how)

    def sweep(
        self,
        parameter: str | None = None,
        *,
        setting: str | None = None,
        score: str | None = None,
        axes: Axes | None = None,
    ) -> Axes:
        """A score against what was swept, mean and standard deviation over seeds.

        Args:
            parameter: a key that was swept, such as `local.lr` or `lr`, with a line for each method; or a
                hyper-parameter of methods, with a line for each setting: `period` takes FedAvg and FedSkip,
                any other is looked for in labels, as in `MOON(mu=5.0)`. None: the first key that was swept,
                else the period.
            setting: the swept one, where there are several.
            score: None: that by which values are chosen, or `best`.
        """
        if score is not None and score not in self.results.summary.columns:
            raise unknown("score", score, self.results.summary.columns)
        if found := sweep.find(self.results, parameter, setting):
            return sweep.draw(self.results, *found, score, axes or new_axes())
        return self._over_methods(parameter or "period", score or "best", axes)

    def _over_methods(self, parameter: str, score: str, axes: Axes | None) -> Axes:
        """A score against a hyper-parameter of methods."""
        axes, metric = axes or new_axes(), self._setting(None).metric
        ticks: set[float] = set()
        for about in self.results.compared:
            by_title: dict[str, dict[float, list[float]]] = {}
            for row in self.results.summary.where(setting=about.name):
                found = point(row, parameter)
                if found is not None and row[score] is not None and not row["diverged"]:
                    by_title.setdefault(found[0], {}).setdefault(found[1], []).append(
                        metric.factor * row[score]
                    )
            for title, points in by_title.items():
                if len(points) > 1:
                    several = len(self.results.compared) > 1
                    seen = look("FedSkip-7" if parameter == "period" else title)
                    xs = sorted(points)
                    axes.errorbar(
                        xs, [fmean(points[v]) for v in xs],
                        yerr=[stdev(points[v]) if len(points[v]) > 1 else 0.0 for v in xs],
                        color=None if several else seen.colour, marker=seen.marker, capsize=3, linewidth=1.4,
                        label=f"{title}, {about.name}" if several else title,
                    )  # fmt: skip
                    ticks |= set(xs)
        if not axes.has_data():
            fix = "run a grid such as fedskip(period=[3,5,7])"
            raise InputError("parameter", "has no two values in this study", parameter, fix)
        axes.set_xticks(sorted(ticks), [f"{v:g}" for v in sorted(ticks)])
        axes.set(xlabel="Δ, rounds from merge to merge" if parameter == "period" else parameter)
        called = "tail" if score == "mean_tail" else score
        axes.set_ylabel(f"{called} test {metric.with_unit()}")
        notes = ["mean ± standard deviation over seeds", *["Δ = 1 is FedAvg"] * (parameter == "period")]
        return finish(axes, self.results.name, [*notes, *self.results.marks])

    def clients(self, setting: str | None = None, *, axes: Axes | None = None) -> Axes:
        """The headline of the last model by client, clients sorted from the worst to the best."""
        about, axes = self._setting(setting), axes or new_axes()
        file = about.out / "clients.csv"
        if not file.exists():
            fix = "set client_accuracy=true"
            raise InputError("clients", "were not measured in this study", str(about.out), fix)
        columns = ("setting", "method", "seed", "client", "test_accuracy")
        rows = Table.read(file, filled=columns, whole=True).where(setting=about.keys["name"])
        metric = about.metrics[0]
        for label in self.results.labels(about.name):
            mine = rows.where(method=label)
            seeds = [
                sorted(mine.where(seed=s).column("test_accuracy"), reverse=not metric.higher)
                for s in set(mine.column("seed"))
            ]
            grid = np.linspace(0, 1, 101)
            curves = [np.interp(grid, np.linspace(0, 1, len(one)), one) for one in seeds if one]
            if curves:
                seen = look(label)
                mean = metric.factor * np.mean(curves, 0)
                axes.plot(100 * grid, mean, seen.line, color=seen.colour, label=shown(label))
        up = f"test {metric.words} of a client" + " (%)" * metric.percent
        axes.set(xlabel="clients, from the worst to the best (%)", ylabel=up)
        return finish(axes, about.name, [f"mean of {len(set(rows.column('seed')))} seeds", *about.marks])

    def routing(
        self,
        setting: str | None = None,
        method: str | None = None,
        *,
        seed: int | None = None,
        rounds: int = 30,
        axes: Axes | None = None,
    ) -> Axes:
        """Which client each slot visits, and where the slots of a method merge: Figure 2 of the paper."""
        about, axes = self._setting(setting), axes or new_axes()
        runs = self.results.summary.where(setting=about.name)
        label = self.results.find(method) if method else skipping(runs)
        found = [row for row in runs if row["method"] == label and seed in (None, row["seed"])]
        if not found:
            raise InputError("seed", f"is not one that {label} was run with", seed)
        run = found[0]
        slots, policy = int(about.keys["cohort"]), about.keys.get("cohort_policy", "uniform")
        clients, rounds = about.clients(run["seed"]), min(rounds, about.rounds)
        visited = [draw_cohort(policy, run["seed"], r, clients, slots) for r in range(rounds)]
        axes.imshow(
            np.stack(visited, 1), aspect="auto", cmap="viridis", interpolation="nearest",
            extent=(0.5, rounds + 0.5, slots - 0.5, -0.5), vmin=0, vmax=max(1, clients - 1),
        )  # fmt: skip
        if slots * rounds <= 400:
            for r, cohort in enumerate(visited):
                for k, client in enumerate(cohort):
                    pale = client < clients / 2
                    axes.text(
                        r + 1, k, str(client), ha="center", va="center", fontsize=6,
                        color="white" if pale else "black",
                    )  # fmt: skip
        period = Period.parse(run["period"] if run["period"] == "never" else str(run["period"]))
        merges = [r for r in range(1, rounds + 1) if period.merges(r)]
        for r in merges:
            axes.axvline(r + 0.5, color="#d55e00", linewidth=2)
        axes.set(xlabel="round", ylabel="slot")
        note = f"{label}, seed {run['seed']}; numbers are clients; orange: {len(merges)} merges"
        return finish(axes, about.name, [note, *about.marks], legend=False)

    def partition(
        self, setting: str | None = None, *, seed: int | None = None, axes: Axes | None = None
    ) -> Axes:
        """Who has how much of what; only how much where the data set is not on this machine."""
        about, axes = self._setting(setting), axes or new_axes()
        start = f"partition-{about.keys['name']}-"
        rests = [file.stem.removeprefix(start) for file in about.out.glob("partition-*.npz")]
        seeds = sorted(int(rest) for rest in rests if rest.isdecimal() and seed in (None, int(rest)))
        if not seeds:
            raise InputError("partition", "was not kept in this folder", str(about.out))
        parts, data = Partition.load(about.out / f"{start}{seeds[0]}.npz"), about.keys.get("data")
        try:
            found = catalogue.load(**data) if isinstance(data, Mapping) else None
        except InputError:
            found = None
        if found is not None and found.classes and len(parts) <= 100:
            heatmap.paint(heatmap.class_counts(parts, found.samples.labels(), found.classes), axes)
        else:
            sizes, colour = np.sort(parts.sizes)[::-1], look("FedSkip-7").colour
            if len(sizes) <= BARS:
                axes.bar(np.arange(len(sizes)), sizes, color=colour)
            else:  # a bar for each would take minutes
                some = np.linspace(0, len(sizes) - 1, BARS).astype(int)
                axes.fill_between(some, sizes[some], color=colour, step="post", linewidth=0)
            axes.set(xlabel="client, from the largest", ylabel="training samples")
        notes = [f"{len(parts)} clients, seed {seeds[0]}", *about.marks]
        return finish(axes, about.name, notes, legend=False)

    # --- what the figures are made of ----------------------------------------------------------------

    def _setting(self, name: str | None) -> About:
        """The setting of that name, or the first that is compared; one without results is refused."""
        names = [setting.name for setting in self.results.compared]
        for setting in self.results.compared:
            if name in (None, setting.name):
                if self.results.labels(setting.name):
                    return setting
                raise InputError("setting", "has no results yet", setting.name)
        raise unknown("setting", name or "", names)


def shown(label: str) -> str:
    """A label that matplotlib does not take for a hidden one."""
    return f"\u200b{label}" if label.startswith("_") else label
