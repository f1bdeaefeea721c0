"""Settings of a grid: the best values of every method, and a score against what was swept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from rich.text import Text

from fedskip.input.errors import InputError, unknown
from fedskip.records.table import Row, Table
from fedskip.report import units
from fedskip.report.canvas import finish
from fedskip.report.recorded import About, Recorded
from fedskip.report.sheet import Sheet
from fedskip.report.statistics import Scores
from fedskip.report.style import look
from fedskip.spec.grid import short_names, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECADE = 10.0  # values that span more get a logarithmic axis
# how a value was chosen -> the score that it came to there, and what is said of it
SCORES = {"validation": "best_val", "test": "mean_tail"}
NOTES = {
    "validation": "Chosen for each method by the best validation score, mean over seeds; "
    "the test score is that of the round where it was best.",
    "test": "Chosen on the test set (tail), so these numbers are optimistic: "
    "with validation: 0.1 a study chooses on samples of their own.",
}


@dataclass(frozen=True)
class Sweep:
    """The settings that one grid became."""

    name: str  # of the setting as it was written
    keys: Sequence[str]  # dotted
    settings: Sequence[About]

    @property
    def by(self) -> str:
        """On what values are chosen: the validation split, where every setting has one."""
        return "validation" if all(one.keys.get("validation") for one in self.settings) else "test"

    def values(self, key: str) -> list[Any]:
        """What a key was set to, each once."""
        found: list[Any] = []
        for setting in self.settings:
            value = value_of(setting, key)
            found += [value] if value not in found else []
        return found

    def key(self, name: str) -> str | None:
        """The key that somebody means: dotted, or by its last part."""
        return next((key for key, short in short_names(self.keys).items() if name in (key, short)), None)

    @property
    def better(self) -> Callable[..., Any]:
        """`max` or `min`, by what values are chosen by."""
        setting = self.settings[0]
        metric = setting.metrics[0] if self.by == "validation" else setting.metric
        return max if metric.higher else min


@dataclass(frozen=True)
class Choice:
    """The best point of a sweep for one method."""

    method: str
    setting: About
    chosen_by: float  # the mean of what it was chosen by
    scores: Sequence[float]  # on the test set, one for each seed


def sweeps(results: Recorded) -> list[Sweep]:
    """The grids of a study."""
    found: dict[tuple[Any, ...], list[About]] = {}
    for setting in results.compared:
        about = setting.keys.get("swept")
        if about:
            found.setdefault((about["of"], *about["keys"]), []).append(setting)
    return [Sweep(name, keys, settings) for (name, *keys), settings in found.items()]


def value_of(setting: About, key: str) -> Any:
    found: Any = setting.keys
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def best(results: Recorded, sweep: Sweep, method: str, among: Sequence[About] | None = None) -> Choice | None:
    """The best setting of a sweep for a method; one in which a run diverged or is missing is none."""
    known = {s.name: _judged(results, s, method, sweep.by) for s in among or sweep.settings}
    most = max(map(len, known.values()), default=0)
    means = {
        name: fmean(v for v in scores.values() if v is not None)
        for name, scores in known.items()
        if scores and len(scores) == most and None not in scores.values()
    }
    if not means:
        return None
    name = sweep.better(means, key=means.__getitem__)
    setting = next(one for one in sweep.settings if one.name == name)
    found = results.scores(name, method, SCORES[sweep.by]).values()
    return Choice(method, setting, means[name], [score for score in found if score is not None])


def _judged(results: Recorded, setting: About, method: str, by: str) -> Scores:
    """What a setting is chosen by, seed by seed: the best validation score of a run, or its tail."""
    scores = results.scores(setting.name, method, SCORES[by])
    if by == "test":
        return scores
    most, found = max if setting.metrics[0].higher else min, {}
    for run in results.histories(setting.name, method):
        values = [row["val_accuracy"] for row in run if row["val_accuracy"] is not None]
        found[run[0]["seed"]] = most((v for v in values if not math.isnan(v)), default=None)
    return {seed: None if score is None else found.get(seed) for seed, score in scores.items()}


def labels(results: Recorded, sweep: Sweep) -> list[str]:
    return list(dict.fromkeys(label for one in sweep.settings for label in results.labels(one.name)))


def chosen(results: Recorded) -> Table:
    """For each sweep and method, the best values and what they came to."""
    found = sweeps(results)
    keys = list(dict.fromkeys(key for sweep in found for key in sweep.keys))
    rows: list[Row] = []
    for sweep in found:
        for label in labels(results, sweep):
            one = best(results, sweep, label)
            row: Row = {"sweep": sweep.name, "method": label, "setting": one and one.setting.name}
            row |= {key: one and value_of(one.setting, key) if key in sweep.keys else None for key in keys}
            row |= {"by": sweep.by, "settings": len(sweep.settings), "seeds": len(one.scores) if one else 0}
            row |= {"chosen_by": one and one.chosen_by, "score": one and fmean(one.scores)}
            rows.append(row | {"score_std": stdev(one.scores) if one and len(one.scores) > 1 else None})
    return Table(rows[0] if rows else (), rows)


def looked_at(results: Recorded) -> list[About]:
    """The settings that are worth a look one by one: of a sweep those that are some method's best."""
    some = {
        one.setting.name
        for sweep in sweeps(results)
        for label in labels(results, sweep)
        if (one := best(results, sweep, label))
    }
    return [one for one in results.compared if one.name in some or not one.keys.get("swept")]


# --- shown ---------------------------------------------------------------------------------------------


def sheet(results: Recorded) -> Sheet:
    """The best values as a table."""
    found = sweeps(results)
    keys = list(dict.fromkeys(key for sweep in found for key in sweep.keys))
    names = ["sweep"] * (len(found) > 1) + ["method"]
    judges = {sweep.by for sweep in found}
    headers = [*names, *short_names(keys).values(), "validation", "test"]
    rows: list[list[Text]] = []
    for sweep in found:
        metric = sweep.settings[0].metric
        for label in labels(results, sweep):
            one = best(results, sweep, label)
            shown = [_value(one, key) if key in sweep.keys else "" for key in keys]
            by = sweep.settings[0].metrics[0]  # which is validated
            judged = units.score(one.chosen_by if one and sweep.by == "validation" else None, by)
            scores = units.scores(one.scores, metric) if one else "diverged or not done"
            place = [Text(sweep.name)] * (len(found) > 1)
            rows.append([*place, Text(label), *map(Text, [*shown, judged, scores])])
    said = [words for by, words in NOTES.items() if by in judges]
    note = " ".join(filter(None, [*said, units.sentences(results.marks)]))
    return Sheet("Best values", headers, len(names), rows, note)


def _value(one: Choice | None, key: str) -> str:
    return units.NONE if one is None else text(value_of(one.setting, key))


def in_words(results: Recorded) -> list[str]:
    """For each sweep, the best values of every method, and where a grid may be too narrow."""
    sentences = []
    for sweep in sweeps(results):
        found = [one for label in labels(results, sweep) if (one := best(results, sweep, label))]
        short, metric = short_names(sweep.keys), sweep.settings[0].metric
        if not found:
            continue
        by = "the validation split" if sweep.by == "validation" else "the test set, which is optimistic"
        best_of = [
            f"{one.method} {', '.join(f'{short[k]}={_value(one, k)}' for k in sweep.keys)} "
            f"({units.scores(one.scores, metric)})"
            for one in found
        ]
        number = units.count(len(sweep.settings), "setting")
        sentences.append(f"{sweep.name}, best of {number} by {by}: {'; '.join(best_of)}.")
        edges = [words for key in sweep.keys for words in _edges(sweep, key, short[key], found)]
        sentences[-1] += f" At the edge of the grid: {'; '.join(edges)}." if edges else ""
    return sentences


def _edges(sweep: Sweep, key: str, short: str, found: Sequence[Choice]) -> list[str]:
    """The methods whose best value is the first or last of at least three numbers."""
    values = sweep.values(key)
    if len(values) < 3 or not all(map(_is_number, values)):
        return []
    at = {
        end: [c.method for c in found if value_of(c.setting, key) == end]
        for end in (min(values), max(values))
    }
    return [f"{short}={text(end)} ({', '.join(names)})" for end, names in at.items() if names]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def find(results: Recorded, parameter: str | None, name: str | None) -> tuple[Sweep, str] | None:
    """The sweep and the key that somebody means; None: it is no key that was swept."""
    known = [sweep for sweep in sweeps(results) if name in (None, sweep.name)]
    if name is not None and not known:
        raise unknown("sweep", name, [sweep.name for sweep in sweeps(results)])
    for sweep in known:
        key = sweep.keys[0] if parameter is None else sweep.key(parameter)
        if key is not None:
            return sweep, key
    return None


def draw(results: Recorded, sweep: Sweep, key: str, score: str | None, axes: Axes) -> Axes:
    """A score against a key, mean and standard deviation over seeds; a line for each method.

    Other keys that were swept are at the method's best values there.
    """
    values, metric = sweep.values(key), sweep.settings[0].metric
    numbers = all(map(_is_number, values))
    values = sorted(values) if numbers else values
    places = values if numbers else range(len(values))
    share = 100.0 if metric.percent else 1.0
    score = score or SCORES[sweep.by]
    for label in labels(results, sweep):
        points = {}
        for value, place in zip(values, places, strict=True):
            among = [one for one in sweep.settings if value_of(one, key) == value]
            one = best(results, sweep, label, among)
            found = results.scores(one.setting.name, label, score).values() if one else ()
            known = [share * v for v in found if v is not None]
            if known:
                points[place] = fmean(known), stdev(known) if len(known) > 1 else 0.0
        if points:
            seen, (means, spreads) = look(label), zip(*points.values(), strict=True)
            axes.errorbar(
                list(points), means, yerr=spreads, fmt=seen.line, color=seen.colour, marker=seen.marker,
                markersize=4, capsize=3, linewidth=1.4, label=label,
            )  # fmt: skip
    if not axes.has_data():
        raise InputError("parameter", "has no results yet", key)
    if numbers and min(values) > 0 and max(values) >= DECADE * min(values):
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(list(places), [text(value) for value in values])
    axes.set(xlabel=key, ylabel=f"test {metric.with_unit()}")
    others = [other for other in sweep.keys if other != key]
    at = f"{', '.join(short_names(others).values())} at each method's best" if others else ""
    optimistic = "best chosen on the test set" if others and sweep.by == "test" else ""
    called = {"best_val": "by val.", "mean_tail": "tail"}.get(score, score)
    notes = [f"{called}, mean ± standard deviation over seeds", at, optimistic, *sweep.settings[0].marks]
    return finish(axes, sweep.name, [note for note in notes if note])
