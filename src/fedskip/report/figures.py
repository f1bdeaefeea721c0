"""The figures of a study, drawn by matplotlib: for notebooks, papers and the page.

Lines are means over seeds, in a band from the lowest seed to the highest. Long histories are smoothed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import log
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedskip.config.study import short_names, value_text
from fedskip.errors import InputError, first_line, unknown
from fedskip.federation.server import draw_cohort
from fedskip.files import refuse_unreadable
from fedskip.methods.base import Period
from fedskip.report import FORMATS
from fedskip.report.heatmap import paint
from fedskip.report.results import Metric, Results, SettingInfo
from fedskip.report.statistics import SCORE_OF, best_setting, find_sweep, is_number, value_at
from fedskip.report.tables import WORDS
from fedskip.rng import key

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from fedskip.report.statistics import Sweep

# column of the history -> its name on an axis, and whether that axis is logarithmic
COLUMNS = {
    "test_accuracy": ("test {metric}", False),
    "test_loss": ("test loss", False),
    "train_loss": ("training loss", False),
    "drift_mean": ("drift of the slots from their mean", True),
    "drift_broadcast": ("drift of the slots from the model sent out", True),
    "slot_accuracy": ("test {metric} of single slots", False),
}
ACROSS = {"round": "round", "merges": "merges", "bytes": "sent, both ways (MB)"}  # for the x axis
SMOOTHED = 100  # evaluations of a run from which on lines are smoothed
POINTS = 150  # of a smoothed line
OUTLIER = 20.0  # a line this many times above the others leaves the picture
MARKERS = 10  # on a line
BARS = 100  # of a partition
CELLS = 400  # of a routing up to which each shows its number
DECADE = 10.0  # swept values that span more get a logarithmic axis
SIZE = (6.4, 4.0)  # inches
TITLE, WIDTH = 70, 100  # characters of a title and of a note that fit above axes and legend
GREY = "#767676"


class Figures:
    """The figures of a study; `results.plot` has them. Each gives matplotlib axes."""

    def __init__(self, results: Results) -> None:
        self.results = results

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
        shown = curves(self.results, info, y, smooth)
        if not shown.lines:
            raise InputError("y", "has no numbers in this history", y, "bring back history.csv")
        for label, line in shown.lines.items():
            xs, style = line[x].to_numpy(), look(label)
            axes.plot(
                xs, line["mean"], style.line, color=style.colour, marker=style.marker, markersize=4,
                markevery=max(1, len(xs) // MARKERS), linewidth=1.4, label=legend_label(label),
            )  # fmt: skip
            if shown.banded:
                band: dict[str, Any] = {"color": style.colour, "alpha": 0.15, "linewidth": 0}
                axes.fill_between(xs, line["low"], line["high"], **band)
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
        return finish(axes, info.title, shown.notes)

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
        found = find_sweep(self.results, parameter, setting)
        swept = (
            self._over_key(*found, score)
            if found
            else self._over_methods(parameter, score or "best")
        )
        axes, metric = axes or new_axes(), swept.metric
        several = not found and len(self.results.compared) > 1  # settings: each has its own colour
        for label, like, scores in swept.lines:
            points = {x: metric.factor * of for x, of in scores.items() if of.notna().any()}
            style = look(like)
            if points:
                axes.errorbar(
                    list(points), [of.mean() for of in points.values()],
                    yerr=[np.nan_to_num(of.std()) for of in points.values()], fmt=style.line,
                    color=None if several else style.colour, marker=style.marker,
                    markersize=4, capsize=3, linewidth=1.4, label=legend_label(label),
                )  # fmt: skip
        if not axes.has_data():
            raise InputError("parameter", "has no results yet", swept.axis)
        if found and 0 < DECADE * min(swept.ticks) <= max(swept.ticks):
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks(list(swept.ticks), list(swept.ticks.values()))
        axes.set(xlabel=swept.axis, ylabel=f"test {metric.with_unit()}")
        _, name, meaning = WORDS.get(swept.score, ("", swept.score, "as in summary.csv"))
        note = f"{name.format(metric.words)} ({meaning}), mean ± standard deviation over seeds"
        return finish(axes, swept.title, [note, *swept.notes])

    def _over_key(self, sweep: Sweep, key: str, score: str | None) -> Swept:
        """A line for each method; other swept keys are at the method's best values."""
        values, first = sweep.values(key), sweep.settings[0]
        numbers = all(map(is_number, values))
        values = sorted(values) if numbers else values
        ticks = {v if numbers else i: value_text(v) for i, v in enumerate(values)}
        score, lines = score or SCORE_OF[sweep.by], []
        for label in sweep.labels(self.results):
            points = {}
            for value, place in zip(values, ticks, strict=True):
                among = [one for one in sweep.settings if value_at(one.keys, key) == value]
                if best := best_setting(self.results, sweep, label, among):
                    points[place] = self.results.scores(best[0].name, label, score)
            lines.append((label, label, points))
        others = short_names([other for other in sweep.keys if other != key]).values()
        notes = [f"{', '.join(others)} at each method's best"] if others else []
        notes += ["best chosen on the test set"] if others and sweep.by == "test" else []
        notes += first.remarks
        return Swept(sweep.name, first.metric, score, key, ticks, lines, notes)

    def _over_methods(self, parameter: str | None, score: str) -> Swept:
        """A line for each kind of method and setting, over a hyper-parameter of methods."""
        results, parameter = self.results, parameter or "period"
        over_periods, several = parameter == "period", len(results.compared) > 1
        metric, lines = self._setting(None).metric, []
        for info in results.compared:
            kinds: dict[str, dict[float, pd.Series]] = {}
            for label in results.labels(info.name):
                period = results.runs(info.name, label)["period"].iloc[0]
                point = hyper_parameter(label, period, parameter)
                scores = results.scores(info.name, label, score)
                if point and scores.notna().any():
                    kinds.setdefault(point[0], {})[point[1]] = scores
            for kind, points in kinds.items():
                if len(points) > 1:
                    called, some = (
                        f"{kind}, {info.name}" if several else kind,
                        sorted(points.items()),
                    )
                    style = "FedSkip-7" if over_periods else kind
                    lines.append((called, style, dict(some)))
        if not lines:
            fix = "run a grid such as fedskip(period=[3,5,7])"
            raise InputError("parameter", "has no two values in this study", parameter, fix)
        ticks = {x: f"{x:g}" for x in sorted({x for *_, points in lines for x in points})}
        axis = "Δ, rounds from merge to merge" if over_periods else parameter
        notes = [*(["Δ = 1 is FedAvg"] if over_periods else []), *results.remarks]
        return Swept(results.name, metric, score, axis, ticks, lines, notes)

    # --- clients and data ----------------------------------------------------------------------------

    def clients(self, setting: str | None = None, *, axes: Axes | None = None) -> Axes:
        """The headline of the last model by client, clients sorted from the worst to the best."""
        info, table = self._setting(setting), self.results.clients
        axes = axes or new_axes()
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
        return finish(axes, info.title, notes)

    def routing(
        self,
        setting: str | None = None,
        method: str | None = None,
        *,
        seed: int | None = None,
        rounds: int = 30,
        axes: Axes | None = None,
    ) -> Axes:
        """Which client each slot visits, and where the slots of a method merge: Figure 2 of the paper.

        `method`: None: the first that skips merges, or else the first of all.
        """
        info, axes = self._setting(setting), axes or new_axes()
        runs = self.results.runs(info.name)
        skipping = runs[runs["period"] != "1"]
        first = str((skipping if len(skipping) else runs)["method"].iloc[0])
        label = self.results.find(method, "method") if method else first
        runs = runs[(runs["method"] == label) & (seed is None or runs["seed"] == seed)]
        if runs.empty:
            raise InputError("seed", f"is not one that {label} was run with", seed)
        seed, period = int(runs["seed"].iloc[0]), Period.parse(str(runs["period"].iloc[0]))
        slots, policy = int(info.keys["cohort"]), info.keys.get("cohort_policy", "uniform")
        clients, rounds = info.clients(seed), min(rounds, info.rounds)
        visits = [draw_cohort(policy, seed, r, clients, slots) for r in range(rounds)]
        axes.imshow(
            np.stack(visits, 1), aspect="auto", cmap="viridis", interpolation="none",
            extent=(0.5, rounds + 0.5, slots - 0.5, -0.5), vmin=0, vmax=max(1, clients - 1),
        )  # fmt: skip
        legible = slots * rounds <= CELLS and clients <= 100
        place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6}
        for r, cohort in enumerate(visits) if legible else ():
            for k, client in enumerate(cohort):
                colour = "white" if client < clients / 2 else "black"
                axes.text(r + 1, k, str(client), color=colour, **place)
        merges = [r for r in range(1, rounds + 1) if period.merges(r)]
        for r in merges:
            axes.axvline(r + 0.5, color="#d55e00", linewidth=2)
        axes.set(xlabel="round", ylabel="slot")
        axes.locator_params("both", integer=True)
        note = f"{label}, seed {seed}; {'numbers' if legible else 'colours'} are clients; orange: {len(merges)} merges"
        return finish(axes, info.title, [note, *info.remarks], legend=False)

    def partition(
        self, setting: str | None = None, *, seed: int | None = None, axes: Axes | None = None
    ) -> Axes:
        """The training samples of each class and client; only their number where there are many clients."""
        import pandas as pd

        info, axes = self._setting(setting), axes or new_axes()
        start = f"samples-{info.keys['name']}-"
        rests = {file.stem.removeprefix(start): file for file in info.out.glob(f"{start}*.csv")}
        files = {int(rest): file for rest, file in sorted(rests.items()) if rest.isdecimal()}
        if not files:
            raise InputError("partition", "was not kept in this folder", str(info.out))
        seed = min(files) if seed is None else seed
        if seed not in files:
            fix = f"there are {', '.join(map(str, sorted(files)))}"
            raise InputError("seed", "is not one that the data were divided with", seed, fix)
        refuse_unreadable(str(files[seed]), files[seed])
        try:
            table = pd.read_csv(files[seed], index_col=0)
            counts = table.to_numpy(dtype=int)
            if not counts.size:
                raise ValueError("it has no clients")
        except ValueError as error:
            fix = "bring back the file as the study wrote it"
            rule = f"cannot be read ({first_line(error)})"
            raise InputError(str(files[seed]), rule, fix=fix) from error
        if len(counts) > 1:
            paint(counts, axes, [str(name) for name in table.index])
        else:
            sizes, colour = np.sort(counts[0])[::-1], look("FedSkip-7").colour
            if len(sizes) <= BARS:
                axes.bar(np.arange(len(sizes)), sizes, color=colour)
            else:  # a bar for each would take minutes
                some = np.linspace(0, len(sizes) - 1, BARS).astype(int)
                axes.fill_between(some, sizes[some], color=colour, step="post", linewidth=0)
            axes.set(xlabel="client, from the largest", ylabel="training samples")
        notes = [f"{counts.shape[1]} clients, seed {seed}", *info.remarks]
        return finish(axes, info.title, notes, legend=False)

    def _setting(self, name: str | None) -> SettingInfo:
        """The setting of that name, or the first that is compared; one without results is refused."""
        for setting in self.results.compared:
            if name in (None, setting.name):
                if self.results.labels(setting.name):
                    return setting
                raise InputError("setting", "has no results yet", setting.name)
        raise unknown("setting", name or "", [setting.name for setting in self.results.compared])


class Swept(NamedTuple):
    """All that a figure of scores over a hyper-parameter shows."""

    title: str
    metric: Metric
    score: str
    axis: str
    ticks: Mapping[float, str]
    # label, the method whose look a line has, and scores by seed and value
    lines: Sequence[tuple[str, str, Mapping[float, pd.Series]]]
    notes: Sequence[str]


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


# --- the lines of a setting ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Curves:
    """All that a figure of lines shows."""

    name: str  # of the y axis, with its unit
    lines: Mapping[str, pd.DataFrame]  # by method: x values, and low, mean and high over its runs
    references: Mapping[str, float]  # scores with a line of their own
    logarithmic: bool
    limits: tuple[float, float] | None  # of the y axis, where a line would flatten the others
    banded: bool  # whether there are several seeds
    notes: Sequence[str]


def curves(results: Results, setting: SettingInfo, y: str, smooth: int | None = None) -> Curves:
    """The lines of a setting; `smooth` is that of `Figures.curves`."""
    columns = drawable(setting)
    if y not in columns:
        raise unknown("y", y, columns)
    name, logarithmic, metric = columns[y]
    factor = metric.factor if metric else 1.0
    if smooth is None:
        evaluations = results.rows(setting.name).groupby("run").size().max()
        smooth = max(2, setting.rounds // 50) if evaluations >= SMOOTHED else 0
    lines: dict[str, pd.DataFrame] = {}
    left_out: list[str] = []
    lost: list[str] = []
    for label in results.labels(setting.name):
        runs, rows = results.runs(setting.name, label), results.rows(setting.name, label)
        diverged = runs["run"][runs["diverged"]]
        if len(diverged) == len(runs):
            lost.append(label)
        elif len(diverged):
            left_out.append(f"{label} ({len(diverged)} of {len(runs)})")
            rows = rows[~rows["run"].isin(diverged)]
        line = mean_line(rows, y, smooth, factor)
        if len(line):
            most = POINTS if smooth else len(line)
            kept = np.unique(np.linspace(0, len(line) - 1, most).round().astype(int))
            lines[label] = line.iloc[kept]
    outliers, limits = ([], None) if metric else without_outliers(lines, logarithmic)
    runs = results.runs(setting.name)
    seeds = sorted(runs["seed"].unique())
    several = f"mean of {len(seeds)} seeds, band: lowest to highest"
    leave = f"{', '.join(outliers)} leave{'s' if len(outliers) == 1 else ''} the picture"
    notes = {
        several if len(seeds) > 1 else f"seed {seeds[0]}": True,
        **dict.fromkeys(setting.remarks, True),
        "not finished": not results.finished,
        f"without runs that diverged: {', '.join(left_out)}": bool(left_out),
        f"all runs diverged: {', '.join(lost)}": bool(lost),
        "a line ends where the first of its runs ended": bool((runs["ended"] != "").any()),
        leave: bool(outliers),
        f"smoothed over {smooth} rounds": bool(smooth),
    }
    references = {}
    for other in results.settings if y == "test_accuracy" else ():
        same = other.metric == setting.metric and other.keys.get("data") == setting.keys.get("data")
        for label in results.labels(other.name) if other.reference and same else ():
            score = results.scores(other.name, label, "last").mean()
            if score == score:
                references[other.name] = factor * float(score)
    positive = any((line["mean"] > 0).any() for line in lines.values())
    return Curves(
        name + " (%)" * (factor > 1), lines, references, logarithmic and positive, limits,
        len(seeds) > 1, [text for text, is_so in notes.items() if is_so],
    )  # fmt: skip


def drawable(setting: SettingInfo) -> dict[str, tuple[str, bool, Metric | None]]:
    """The columns that a figure may show: name, whether on a logarithmic axis, and of which metric."""
    found: dict[str, tuple[str, bool, Metric | None]] = {
        y: (name.format(metric=setting.metric.words), log, setting.metric if "{" in name else None)
        for y, (name, log) in COLUMNS.items()
    }
    if not setting.by:
        found |= {one.column: (f"test {one.words}", False, one) for one in setting.metrics[1:]}
    return found


def mean_line(rows: pd.DataFrame, y: str, window: int, factor: float = 1.0) -> pd.DataFrame:
    """The low, mean and high of y over runs, at the rounds that all of them have, with the x values.

    `window`: the rounds of a running mean; 0 for none.
    """
    if rows.empty or y not in rows:
        return rows.iloc[:0]
    sent = (rows["bytes_down"] + rows["bytes_up"]) / 1e6
    finite = rows.assign(bytes=sent)[np.isfinite(rows[y])].sort_values(["run", "round"])
    if window and len(finite):
        by_run = (run for _, run in finite.groupby("run"))
        smooth = [
            running_mean(run["round"].to_numpy(), run[y].to_numpy(), window) for run in by_run
        ]
        finite[y] = np.concatenate(smooth)
    by_round = finite.groupby("round")
    line = factor * by_round[y].agg(["min", "mean", "max"])
    line = line.join(by_round[["merges", "bytes"]].mean())
    everywhere = by_round[y].count() == rows["run"].nunique()
    return line[everywhere].reset_index().rename(columns={"min": "low", "max": "high"})


def running_mean(rounds: np.ndarray, values: np.ndarray, window: int) -> np.ndarray:
    """The mean over the evaluations of the last `window` rounds.

    >>> running_mean(np.array([1, 2, 3, 6]), np.array([1.0, 2.0, 3.0, 9.0]), 2).tolist()
    [1.0, 1.5, 2.5, 9.0]
    """
    last = np.arange(1, len(rounds) + 1)
    first = np.searchsorted(rounds, rounds - max(window, 1), side="right")
    between = np.column_stack([first, last]).ravel()
    means: np.ndarray = np.add.reduceat([*values, 0.0], between)[::2] / (last - first)
    return means


def without_outliers(
    lines: Mapping[str, pd.DataFrame], logarithmic: bool
) -> tuple[list[str], tuple[float, float] | None]:
    """Lines far above the others, and limits of the y axis that leave them out."""
    tops = {label: float(line["mean"].max()) for label, line in lines.items()}
    usual = float(np.median([*tops.values()])) if tops else 0.0
    most = OUTLIER**4 if logarithmic else OUTLIER
    outliers = [label for label, top in tops.items() if top > most * usual > 0]
    if not outliers or len(outliers) == len(tops):
        return [], None
    others = np.concatenate(
        [line["mean"] for label, line in lines.items() if label not in outliers]
    )
    lowest = 0.8 * float(others[others > 0].min()) if logarithmic else min(0.0, float(others.min()))
    return outliers, (lowest, 1.1 * float(others.max()))


# --- how methods look ----------------------------------------------------------------------------------

# Okabe and Ito's colours, which colour-blind people tell apart, with FedAvg in grey
KNOWN = {
    "FedAvg": ("#6b6b6b", "o"), "FedProx": ("#e69f00", "s"), "SCAFFOLD": ("#009e73", "^"),
    "MOON": ("#cc79a7", "D"), "FedNova": ("#56b4e9", "v"), "FedDyn": ("#d55e00", "P"),
    "FedAvgM": ("#a08c00", "X"), "FedAdam": ("#8c564b", "*"),
    "TrimmedMean": ("#4d7c0f", "<"), "Median": ("#0f766e", ">"), "NormBounded": ("#7c3aed", "p"),
}  # fmt: skip
OTHERS = ("#7f3c8d", "#11a579", "#b5651d", "#3969ac", "#80ba5a", "#e73f74")  # for a user's own
MARKS = ("<", ">", "p", "h", "d", "8", "H", "1", "2", "3", "4", "+", "x")
PERIODS = {3: "o", 5: "s", 7: "^", 10: "D", 15: "v", 20: "P"}  # markers of FedSkip
LIGHT, DARK = bytes.fromhex("6aaee0"), bytes.fromhex("082a54")  # of FedSkip
DARKEST = 20  # the period that is darkest
SHADES = (1.0, 0.82, 0.66)  # of a method's colour, for its variants

_LABEL = re.compile(r"(.+?)(\+skip-[^(]+)?(\(.*\))?", re.DOTALL)


@dataclass(frozen=True)
class Look:
    """Of one method, in all figures of all studies."""

    colour: str
    marker: str
    line: str = "-"  # as matplotlib has it


@cache
def look(label: str) -> Look:
    """How the method that tables call `label` looks.

    FedSkip's periods are shades of one blue, the longer the darker; one that changes on the way has the shade
    of its last, and dots between its dashes. A method with skipping has its own colour, dashed; variants of a
    method are shades of its colour, with markers of their own.

    >>> look("FedAvg"), look("SCAFFOLD+skip-5").line
    (Look(colour='#6b6b6b', marker='o', line='-'), '--')
    """
    found = _LABEL.fullmatch(label)
    assert found is not None, "any text is a label"
    title, skips, options = found.groups()
    name, _, rule = title.partition("-")
    if name == "FedSkip" and rule:
        numbers = [int(number) for number in re.findall(r"\d+", rule)]
        period = numbers[-1] if numbers else 2  # a rule such as 1x10,5 ends with 5
        shade = _mixed(LIGHT, DARK, log(max(period, 2) / 2) / log(DARKEST / 2))
        other = MARKS[key("look", rule) % len(MARKS)]
        if rule.isdecimal():
            return Look(shade, PERIODS.get(period, other))
        return Look(shade, other, "-.")
    number = key("look", title)
    own = (OTHERS[number % len(OTHERS)], MARKS[number % len(MARKS)])
    colour, marker = KNOWN.get(title, own)
    if options or skips:
        number = key("look", f"{skips}{options}")
        marker = MARKS[number % len(MARKS)]
        share = SHADES[number // len(MARKS) % len(SHADES)]
        colour = _mixed(bytes(3), bytes.fromhex(colour[1:]), share)
    return Look(colour, marker, "--" if skips else "-")


def _mixed(one: bytes, other: bytes, share: float) -> str:
    mixed = (round(a + min(1.0, share) * (b - a)) for a, b in zip(one, other, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def legend_label(label: str) -> str:
    """A label that matplotlib does not take for a hidden one."""
    return f"\u200b{label}" if label.startswith("_") else label


# --- axes and files ------------------------------------------------------------------------------------


def new_axes(layout: Literal["constrained"] | None = "constrained") -> Axes:
    """Axes in a figure of their own. Without a layout they are drawn twice as fast, by `to_bytes`."""
    from matplotlib.figure import Figure  # half a second that only figures need

    axes = Figure(figsize=SIZE, layout=layout).add_subplot()
    axes._repr_png_ = partial(_for_a_notebook, axes)  # type: ignore[attr-defined]
    return axes


def _for_a_notebook(axes: Axes) -> tuple[bytes, dict[str, int]]:
    """The picture of axes at the end of a cell, in few bytes."""
    width, height = (int(100 * inches) for inches in SIZE)
    return to_bytes(axes, "png", dpi=100), {"width": width, "height": height}


def finish(axes: Axes, title: str, notes: Sequence[str], *, legend: bool = True) -> Axes:
    """Add a title, notes below it, and a legend beside the axes."""
    # a note stays on one line, where it fits
    whole = (note.replace(" ", "\xa0") if len(note) < WIDTH else note for note in notes)
    lines = [line.replace("\xa0", " ") for line in wrap("; ".join(whole), WIDTH)]
    pad = 18 + 9 * len(lines[1:])
    title = "\n".join(wrap(title, TITLE))
    texts = [axes.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=pad)]
    place: dict[str, Any] = {"transform": axes.transAxes, "fontsize": 7, "color": GREY}
    texts += [axes.text(0, 1.02, "\n".join(lines), **place), axes.xaxis.label, axes.yaxis.label]
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.grid(alpha=0.25)
        if axes.get_legend_handles_labels()[0]:
            place = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False}
            texts += axes.legend(fontsize=8, **place).get_texts()
    for each in texts:  # a dollar sign in the name of a method or setting is no formula
        each.set_parse_math(False)
    return axes


def to_bytes(axes: Axes, form: str, dpi: int = 200) -> bytes:
    """The figure of some axes as a file: text stays text, and the same figure gives the same bytes."""
    from matplotlib import rc_context

    if form not in FORMATS:
        raise unknown("figures", form, FORMATS)
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[form]
    out = io.BytesIO()
    figure = axes.get_figure(root=True)
    assert figure is not None
    style: Any = {"svg.hashsalt": "fedskip", "svg.fonttype": "none", "pdf.fonttype": 42}
    with rc_context(style | {"font.sans-serif": ["DejaVu Sans"]}):
        cut = "tight" if figure.get_layout_engine() is None else None  # to what is drawn
        figure.savefig(out, format=form, metadata=metadata, dpi=dpi, bbox_inches=cut)
    return out.getvalue()
