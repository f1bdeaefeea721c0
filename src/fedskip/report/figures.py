"""The figures of a study, drawn by matplotlib: for notebooks, papers and the page.

Lines are means over seeds, in a band from the lowest seed to the highest. `style.py` has the colours and
markers of methods.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskip.config.study import short_names, value_text
from fedskip.data import catalogue, heatmap
from fedskip.data.partitions import Partition
from fedskip.errors import InputError, unknown
from fedskip.federation.server import draw_cohort
from fedskip.methods.period import Period
from fedskip.report import sweeps
from fedskip.report.curves import ACROSS, Curves, curves
from fedskip.report.figure_io import GREY, finish, new_axes
from fedskip.report.results import Results, SettingInfo
from fedskip.report.style import look
from fedskip.report.sweeps import Sweep

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

MARKERS = 10  # on a line
BARS = 100  # of a partition
CELLS = 400  # of a routing up to which each shows its number
DECADE = 10.0  # swept values that span more get a logarithmic axis
SHORT = {"mean_tail": "mean of the last 10 % of rounds", "best_val": "at the best validation score"}


class Figures:
    """The figures of a study; `results.plot` has them. Each gives matplotlib axes."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.lines = cache(lambda name, y: curves(results, self._setting(name), y))

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

        `y`: a column of the history, such as a loss, a drift or a further metric (`x_macro_f1`).

        `smooth`: the rounds of a running mean; None: none, or a fiftieth of the rounds where a run has 100
        evaluations or more. The figure says so.
        """
        if x not in ACROSS:
            raise unknown("x", x, ACROSS)
        info, axes = self._setting(setting), axes or new_axes()
        shown: Curves = (
            self.lines(info.name, y) if smooth is None else curves(self.results, info, y, smooth)
        )
        if not shown.lines:
            raise InputError("y", "has no numbers in this history", y, "bring back history.csv")
        for label, line in shown.lines.items():
            xs, style = line.across[x], look(label)
            axes.plot(
                xs, line.mean, style.line, color=style.colour, marker=style.marker, markersize=4,
                markevery=max(1, len(xs) // MARKERS), linewidth=1.4, label=legend_label(label),
            )  # fmt: skip
            if shown.banded:
                band: dict[str, Any] = {"color": style.colour, "alpha": 0.15, "linewidth": 0}
                axes.fill_between(xs, line.low, line.high, **band)
        for label, score in shown.references.items():
            axes.axhline(score, color=GREY, linestyle=(0, (1, 2)), label=legend_label(label))
        axes.set(xlabel=ACROSS[x], ylabel=shown.name)
        if x != "bytes":  # rounds and merges are whole
            axes.locator_params("x", integer=True)
        if shown.logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter("")  # which takes longer than all the rest
        if shown.limits is not None:
            axes.set_ylim(*shown.limits)
        return finish(axes, info.name, shown.notes)

    def bytes(self, setting: str | None = None, **how: Any) -> Axes:
        """The metric against the bytes sent."""
        return self.curves(setting, x="bytes", **how)

    def drift(self, setting: str | None = None, **how: Any) -> Axes:
        """How far the models of the slots are apart before a merge."""
        return self.curves(setting, y="drift_mean", **how)

    # --- scores over hyper-parameters ----------------------------------------------------------------

    def sweep(
        self,
        parameter: str | None = None,
        *,
        setting: str | None = None,
        score: str | None = None,
        axes: Axes | None = None,
    ) -> Axes:
        """A score against a hyper-parameter, mean and standard deviation over seeds.

        Args:
            parameter: a swept key, such as `local.lr` or `lr`, with a line for each method; or a
                hyper-parameter of methods, with a line for each setting: `period` takes FedAvg and FedSkip,
                any other is looked for in labels, as in `MOON(mu=5.0)`. None: the first swept key, or else
                the period.
            setting: the swept one, where there are several.
            score: None: the score that values are chosen by, or `best`.
        """
        if score is not None and score not in self.results.summary.columns:
            raise unknown("score", score, self.results.summary.columns)
        axes = axes or new_axes()
        if found := sweeps.find(self.results, parameter, setting):
            return self._over_key(*found, score, axes)
        return self._over_methods(parameter or "period", score or "best", axes)

    def _over_key(self, sweep: Sweep, key: str, score: str | None, axes: Axes) -> Axes:
        """A line for each method; other swept keys are at the method's best values."""
        values, metric = sweep.values(key), sweep.settings[0].metric
        numbers = all(map(sweeps.is_number, values))
        values = sorted(values) if numbers else values
        places = values if numbers else list(range(len(values)))
        score = score or sweeps.SCORES[sweep.by]
        for label in sweep.labels(self.results):
            points = {}
            for value, place in zip(values, places, strict=True):
                among = [one for one in sweep.settings if sweeps.value_at(one.keys, key) == value]
                best = sweeps.best_setting(self.results, sweep, label, among)
                if best:
                    points[place] = self.results.scores(best[0].name, label, score)
            _error_bars(axes, points, metric.factor, label)
        if not axes.has_data():
            raise InputError("parameter", "has no results yet", key)
        if numbers and min(values) > 0 and max(values) >= DECADE * min(values):
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks(places, [value_text(value) for value in values])
        axes.set(xlabel=key, ylabel=f"test {metric.with_unit()}")
        others = [other for other in sweep.keys if other != key]
        notes = [f"{SHORT.get(score, score)}, mean ± standard deviation over seeds"]
        if others:
            notes.append(f"{', '.join(short_names(others).values())} at each method's best")
            notes += ["best chosen on the test set"] if sweep.by == "test" else []
        return finish(axes, sweep.name, [*notes, *sweep.settings[0].remarks])

    def _over_methods(self, parameter: str, score: str, axes: Axes) -> Axes:
        """A line for each kind of method and setting, over a hyper-parameter of methods."""
        metric, several = self._setting(None).metric, len(self.results.compared) > 1
        ticks: set[float] = set()
        for info in self.results.compared:
            kinds: dict[str, dict[float, pd.Series]] = {}
            for label in self.results.labels(info.name):
                period = self.results.runs(info.name, label)["period"].iloc[0]
                point = hyper_parameter(label, period, parameter)
                scores = self.results.scores(info.name, label, score)
                if point and scores.notna().any():
                    kinds.setdefault(point[0], {})[point[1]] = scores
            for title, points in kinds.items():
                if len(points) > 1:
                    called = f"{title}, {info.name}" if several else title
                    as_label = "FedSkip-7" if parameter == "period" else title
                    some = dict(sorted(points.items()))
                    _error_bars(axes, some, metric.factor, as_label, called, coloured=not several)
                    ticks |= points.keys()
        if not axes.has_data():
            fix = "run a grid such as fedskip(period=[3,5,7])"
            raise InputError("parameter", "has no two values in this study", parameter, fix)
        axes.set_xticks(sorted(ticks), [f"{value:g}" for value in sorted(ticks)])
        over_periods = parameter == "period"
        axes.set(xlabel="Δ, rounds from merge to merge" if over_periods else parameter)
        axes.set_ylabel(f"test {metric.with_unit()}")
        notes = [f"{SHORT.get(score, score)}, mean ± standard deviation over seeds"]
        notes += ["Δ = 1 is FedAvg"] if over_periods else []
        return finish(axes, self.results.name, [*notes, *self.results.remarks])

    # --- clients and data ----------------------------------------------------------------------------

    def clients(self, setting: str | None = None, *, axes: Axes | None = None) -> Axes:
        """The headline of the last model by client, clients sorted from the worst to the best."""
        info, axes = self._setting(setting), axes or new_axes()
        table = self.results.clients
        rows = table[table["setting"] == info.name]
        if table.empty:
            fix = "set client_accuracy=true"
            raise InputError("clients", "were not measured in this study", str(info.out), fix)
        metric, grid = info.metrics[0], np.linspace(0, 1, 101)
        for label in self.results.labels(info.name):
            lines = []
            for _, seed in rows[rows["method"] == label].groupby("seed"):
                scores = np.sort(seed["test_accuracy"].to_numpy())[:: 1 if metric.higher else -1]
                lines.append(np.interp(grid, np.linspace(0, 1, len(scores)), scores))
            if lines:
                style, mean = look(label), metric.factor * np.mean(lines, 0)
                label = legend_label(label)
                axes.plot(100 * grid, mean, style.line, color=style.colour, label=label)
        name = f"test {metric.words} of a client" + " (%)" * metric.percent
        axes.set(xlabel="clients, from the worst to the best (%)", ylabel=name)
        notes = [f"mean of {rows['seed'].nunique()} seeds", *info.remarks]
        return finish(axes, info.name, notes)

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
        info, axes = self._setting(setting), axes or new_axes()
        runs = self.results.runs(info.name)
        label = self.results.find(method, "method") if method else first_skipping(runs)
        runs = runs[runs["method"] == label]
        runs = runs if seed is None else runs[runs["seed"] == seed]
        if runs.empty:
            raise InputError("seed", f"is not one that {label} was run with", seed)
        first, period = int(runs["seed"].iloc[0]), Period.parse(str(runs["period"].iloc[0]))
        slots, policy = int(info.keys["cohort"]), info.keys.get("cohort_policy", "uniform")
        clients, rounds = info.clients(first), min(rounds, info.rounds)
        visits = [draw_cohort(policy, first, r, clients, slots) for r in range(rounds)]
        axes.imshow(
            np.stack(visits, 1), aspect="auto", cmap="viridis", interpolation="none",
            extent=(0.5, rounds + 0.5, slots - 0.5, -0.5), vmin=0, vmax=max(1, clients - 1),
        )  # fmt: skip
        legible = slots * rounds <= CELLS and clients <= 100
        for r, cohort in enumerate(visits) if legible else ():
            for k, client in enumerate(cohort):
                colour = "white" if client < clients / 2 else "black"
                place: dict[str, Any] = {
                    "ha": "center",
                    "va": "center",
                    "fontsize": 6,
                    "color": colour,
                }
                axes.text(r + 1, k, str(client), **place)
        merges = [r for r in range(1, rounds + 1) if period.merges(r)]
        for r in merges:
            axes.axvline(r + 0.5, color="#d55e00", linewidth=2)
        axes.set(xlabel="round", ylabel="slot")
        axes.locator_params("both", integer=True)
        note = f"{label}, seed {first}; {'numbers' if legible else 'colours'} are clients; orange: {len(merges)} merges"
        return finish(axes, info.name, [note, *info.remarks], legend=False)

    def partition(
        self, setting: str | None = None, *, seed: int | None = None, axes: Axes | None = None
    ) -> Axes:
        """The samples of each class and client; only their number where the data set is not here."""
        info, axes = self._setting(setting), axes or new_axes()
        start = f"partition-{info.keys['name']}-"
        rests = [file.stem.removeprefix(start) for file in info.out.glob("partition-*.npz")]
        seeds = sorted(int(rest) for rest in rests if rest.isdecimal())
        seeds = [one for one in seeds if seed in (None, one)]
        if not seeds:
            raise InputError("partition", "was not kept in this folder", str(info.out))
        partition = Partition.load(info.out / f"{start}{seeds[0]}.npz")
        data = info.keys.get("data")
        try:
            dataset = catalogue.load(**data) if isinstance(data, Mapping) else None
        except InputError:
            dataset = None
        if dataset is not None and dataset.classes and len(partition) <= 100:
            labels = dataset.samples.labels()
            counts = heatmap.class_counts(partition, labels, dataset.classes)
            heatmap.paint(counts, axes, dataset.class_names)
        else:
            sizes, colour = np.sort(partition.sizes)[::-1], look("FedSkip-7").colour
            if len(sizes) <= BARS:
                axes.bar(np.arange(len(sizes)), sizes, color=colour)
            else:  # a bar for each would take minutes
                some = np.linspace(0, len(sizes) - 1, BARS).astype(int)
                axes.fill_between(some, sizes[some], color=colour, step="post", linewidth=0)
            axes.set(xlabel="client, from the largest", ylabel="training samples")
        notes = [f"{len(partition)} clients, seed {seeds[0]}", *info.remarks]
        return finish(axes, info.name, notes, legend=False)

    def _setting(self, name: str | None) -> SettingInfo:
        """The setting of that name, or the first that is compared; one without results is refused."""
        for setting in self.results.compared:
            if name in (None, setting.name):
                if self.results.labels(setting.name):
                    return setting
                raise InputError("setting", "has no results yet", setting.name)
        raise unknown("setting", name or "", [setting.name for setting in self.results.compared])


def _error_bars(
    axes: Axes, points: Mapping[float, pd.Series], factor: float, label: str, called: str = "",
    *, coloured: bool = True,
) -> None:  # fmt: skip
    """A line of means over seeds with their standard deviations, in the style of `label`."""
    points = {x: factor * scores for x, scores in points.items() if scores.notna().any()}
    if points:
        style = look(label)
        axes.errorbar(
            list(points), [scores.mean() for scores in points.values()],
            yerr=[np.nan_to_num(scores.std()) for scores in points.values()], fmt=style.line,
            color=style.colour if coloured else None, marker=style.marker, markersize=4, capsize=3,
            linewidth=1.4, label=legend_label(called or label),
        )  # fmt: skip


def hyper_parameter(label: str, period: str, parameter: str) -> tuple[str, float] | None:
    """The kind of a method and the value of its hyper-parameter; None where that is no number.

    >>> hyper_parameter("MOON(mu=5.0, temperature=0.1)", "1", "mu")
    ('MOON(temperature=0.1)', 5.0)
    """
    if parameter == "period":
        plain = label == "FedAvg" or label.startswith("FedSkip-")
        return ("FedSkip", float(period)) if plain and period.isdecimal() else None
    match = re.search(rf"[(, ]{re.escape(parameter)}=([-+.\de]+)[,)]", label)
    if not match:
        return None
    kind = re.sub(rf"(, )?{re.escape(parameter)}=[^,)]+", "", label)
    return kind.replace("(, ", "(").replace("()", ""), float(match[1])


def first_skipping(runs: pd.DataFrame) -> str:
    """The first method that skips merges, or the first of all."""
    skipping = runs[runs["period"] != "1"]
    return str((skipping if len(skipping) else runs)["method"].iloc[0])


def legend_label(label: str) -> str:
    """A label that matplotlib does not take for a hidden one."""
    return f"\u200b{label}" if label.startswith("_") else label
