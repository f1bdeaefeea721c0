"""What a study shows: tables and sentences for one baseline, score and target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from fedskip.config.study import short_names, value_text
from fedskip.errors import InputError
from fedskip.report.results import Results, SettingInfo
from fedskip.report.statistics import (
    BETTER,
    NO_SEED,
    ONE_SEED,
    OPEN,
    WORSE,
    Sweep,
    compare,
    is_number,
    leaders,
    sweeps,
    time_to_target,
)
from fedskip.report.tables import (
    ENOUGH,
    WORDS,
    TextTable,
    best_values_table,
    closing_table,
    comparison_table,
    count,
    difference,
    listed,
    score,
    size,
    spread,
    target_name,
    target_table,
)

if TYPE_CHECKING:
    import pandas as pd

SCORE = "mean_tail"  # that methods are compared by, unless another one is asked for
NEAR = 1e-9  # scores that differ by less are equal


class Findings:
    """Tables and sentences about results, for terminal and page; each is made once.

    Args:
        baseline: the method that others are compared with; None: FedAvg, or else the first.
        score: the column of the summary that is compared.
        target: a score, or a method whose best it is; None: what the settings say.
    """

    def __init__(
        self,
        results: Results,
        baseline: str | None = None,
        score: str = SCORE,
        target: float | str | None = None,
    ) -> None:
        self.results, self.score = results, score
        asked, several = baseline is not None or score != SCORE, len(results.labels()) > 1
        # differences from the baseline, and what it takes to reach the target
        self.comparison: pd.DataFrame | None = None
        self.targets: pd.DataFrame | None = None
        if asked or several:
            self.baseline = results.find(results.baseline if baseline is None else baseline)
            try:
                self.comparison = compare(results, self.baseline, score)
            except InputError:  # nothing was measured
                if asked:
                    raise
        if target is not None or several:
            targets = time_to_target(results, target)
            self.targets = targets if target is not None or targets["seeds"].any() else None
        self.closing = closing_table(results)
        others = map(results.by, results.further_metrics)
        self.further = [closing_table(other, costs=False) for other in others]
        self.warnings = warnings(results)
        self.tuned = [sentence for sweep in sweeps(results) for sentence in _tuned(results, sweep)]
        self.compared = [sentence for one in results.shown for sentence in self._compared(one)]
        self.reached = [sentence for one in results.shown for sentence in self._reached(one)]
        self.tables: dict[str, TextTable] = {}  # by the names of their files, but the closing one
        if len(results.chosen):
            self.tables["chosen"] = best_values_table(results)
        if self.comparison is not None and (asked or self.compared):
            table = comparison_table(results, self.comparison, self.baseline, score)
            self.tables["compare"] = table
        if self.targets is not None:
            self.tables["time_to_target"] = target_table(results, self.targets)

    def frames(self) -> dict[str, pd.DataFrame]:
        """The same tables and the closing one as numbers."""
        frames = {"table": self.results.table, "chosen": self.results.chosen}
        frames |= {"compare": self.comparison, "time_to_target": self.targets}
        return {name: frame for name, frame in frames.items() if name in ("table", *self.tables)}

    def closing_parts(self) -> list[RenderableType]:
        """What ends a study on a terminal: its scores, what they are, and reasons for caution."""
        cautions = [Text(line, "yellow") for line in self.warnings]
        return [self.closing, *self.further, Text(self.closing.note, "dim"), *cautions]

    def sentences(self, *, targets: bool = True) -> list[str]:
        """All sentences; `targets`: whether to say what it takes to reach the target."""
        return [*self.tuned, *self.compared, *(self.reached if targets else ())]

    def _compared(self, setting: SettingInfo) -> list[str]:
        """The best method of a setting, and those that are better or worse than the baseline."""
        labels = self.results.labels(setting.name)
        if self.comparison is None or len(self.results.labels()) < 2 or not labels:
            return []
        start = f"{setting.name}: " if len(self.results.compared) > 1 else ""
        if self.baseline not in labels:
            return [f"{start}nothing to compare, as {self.baseline} was not run."]
        rows = self.comparison[self.comparison["setting"] == setting.name]
        others = rows[rows["method"] != self.baseline].to_dict("records")
        if not others:
            return []
        by_verdict: dict[str, list[str]] = {}
        for row in others:
            points = " points" if setting.metric.percent else ""
            apart = f" ({difference(row['difference'], setting.metric)}{points})"
            name = row["method"] + (apart if row["verdict"] in (BETTER, WORSE) else "")
            by_verdict.setdefault(row["verdict"], []).append(name)
        one_seed, sentences = by_verdict.pop(ONE_SEED, None), [self._best(setting)]
        whole = {
            BETTER: BETTER,
            WORSE: WORSE,
            OPEN: f"{OPEN} (95 % CI includes 0)",
            NO_SEED: NO_SEED,
        }
        parts = [f"{w}: {listed(by_verdict.pop(v))}" for v, w in whole.items() if v in by_verdict]
        parts += [f"{name} {verdict}" for verdict, names in by_verdict.items() for name in names]
        if parts:
            sentences.append(f"Compared with {self.baseline}: {'; '.join(parts)}.")
        seeds, number = max(row["n"] for row in others), count(len(others), "comparison")
        if seeds > 1:
            sentences.append(f"(Paired differences, {seeds} seeds, {number} without correction.)")
        if one_seed:
            alone = f"One seed is not enough to compare with {self.baseline}"
            sentences.append(f"{alone}; run at least five.")
        elif 1 < seeds < ENOUGH:
            sentences.append(f"{seeds} seeds are few: run at least five before you rely on this.")
        return [start + " ".join(filter(None, sentences))]

    def _best(self, setting: SettingInfo) -> str:
        """The method with the best mean, and those that are not significantly different from it."""
        best = leaders(self.results, setting.name, self.score)
        if not best:
            return ""
        metric = setting.metric
        scores = {m: self.results.scores(setting.name, m, self.score) for m in best}
        sign = -1 if metric.higher else 1
        first, *others = sorted(best, key=lambda label: sign * scores[label].mean())
        mean = spread(scores[first].mean(), scores[first].std(), metric)
        _, name, meaning = WORDS[self.score]
        sentence = f"{first} leads in {name.format(metric.words)} ({meaning}): {mean}{' %' * metric.percent}."
        if others:
            verb = "is" if len(others) == 1 else "are"
            sentence += f" {listed(others)} {verb} not significantly different from it."
        return sentence

    def _reached(self, setting: SettingInfo) -> list[str]:
        """The method that reaches the target of a setting first, and those with the least cost."""
        if self.targets is None:
            return []
        rows = self.targets[self.targets["setting"] == setting.name]
        there = rows[(rows["reached"] == rows["seeds"]) & (rows["seeds"] > 0)]
        if len(rows) < 2 or there.empty:
            return []
        start = f"{setting.name}: " if len(self.results.compared) > 1 else ""
        target = rows["target"].iloc[0]
        goal = target_name(target, setting.metric)
        own = there[there["method"] == target].to_dict("records")  # of the method whose best it is
        others = there[there["method"] != target].to_dict("records")
        if not others:
            return [f"{start}No other method reaches {goal} at every seed."]
        first = min(others, key=lambda row: row["rounds"])
        earlier = not own or first["rounds"] < own[0]["rounds"]
        start += (
            f"{goal} is reached first by"
            if earlier
            else f"No other method reaches {goal} earlier; next is"
        )
        sentence = f"{start} {first['method']}: {_costs(first)}"
        for cost in ("merges", "bytes"):
            least = min(others, key=lambda row: row[cost])
            if least[cost] < first[cost]:
                sentence += f"; with the fewest {cost} by {least['method']}: {_costs(least)}"
        itself = f" {own[0]['method']} itself: {_costs(own[0])}." if own else ""
        return [f"{sentence}.{itself}"]


def _costs(row: Mapping[str, Any]) -> str:
    """The mean costs of a method.

    >>> _costs({"rounds": 20.4, "merges": 4, "bytes": 2e6})
    '20 rounds, 4 merges, 2 MB'
    """
    rounds, merges = (count(round(row[name]), name[:-1]) for name in ("rounds", "merges"))
    return f"{rounds}, {merges}, {size(row['bytes'])}"


def _tuned(results: Results, sweep: Sweep) -> list[str]:
    """The best values of every method, and where the grid may be too narrow."""
    table = results.chosen[results.chosen["sweep"] == sweep.name]
    rows = table[table["setting"].notna()].to_dict("records")
    if not rows:
        return []
    short, metric = short_names(sweep.keys), sweep.settings[0].metric
    on = "the validation split" if sweep.by == "validation" else "the test set (optimistic)"
    best = [
        f"{row['method']} {', '.join(f'{short[k]}={value_text(row[k])}' for k in sweep.keys)} "
        f"({spread(row['score'], row['score_std'], metric)})"
        for row in rows
    ]
    number = count(len(sweep.settings), "setting")
    sentence = f"{sweep.name}, best of {number}, chosen on {on}: {'; '.join(best)}."
    edges = [edge for key in sweep.keys for edge in _edges(sweep, key, short[key], rows)]
    return [sentence + (f" At the edge of the grid: {'; '.join(edges)}." if edges else "")]


def _edges(sweep: Sweep, key: str, short: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The methods whose best value is the lowest or highest of at least three numbers."""
    values = sweep.values(key)
    if len(values) < 3 or not all(map(is_number, values)):
        return []
    ends = {
        end: [row["method"] for row in rows if row[key] == end]
        for end in (min(values), max(values))
    }
    return [
        f"{short}={value_text(end)} ({', '.join(names)})" for end, names in ends.items() if names
    ]


def warnings(results: Results) -> list[str]:
    """Reasons for caution: what the checks before training found, and methods no better than a guess."""
    lines = []
    for setting in results.settings:
        start = f"{setting.name}: " if len(results.settings) > 1 else ""
        for line in (*setting.warnings, *_no_better_than_a_guess(results, setting)):
            end = "" if line[-1] in ".?!" else "."
            lines.append(f"{start}{line[0].upper()}{line[1:]}{end}")
    return lines


def _no_better_than_a_guess(results: Results, setting: SettingInfo) -> list[str]:
    """The methods with runs that end no better than one answer for all samples."""
    by_seed, answer = setting.guessing.get("scores") or {}, setting.guessing.get("always")
    if not by_seed or setting.by:  # the guess is of the headline
        return []
    metric, poor = setting.metric, []
    guess = sum(by_seed.values()) / len(by_seed)
    sign = 1 if metric.higher else -1
    for label in results.labels(setting.name):
        scores = results.scores(setting.name, label, "last").dropna()
        guesses = scores.index.to_series().map(lambda seed: by_seed.get(seed, guess))
        low = scores[sign * (scores - guesses) <= NEAR]
        if len(low):
            some = "" if len(low) == len(scores) else f", {len(low)} of {len(scores)} runs"
            poor.append(f"{label} ({score(low.mean(), metric)}{some})")
    if not poor:
        return []
    verb = "is" if len(poor) == 1 else "are"
    several = "on average " if len(set(by_seed.values())) > 1 else ""
    least = several + score(guess, metric) + " %" * metric.percent
    return [f"{listed(poor)} {verb} no better than always answering {answer} ({least})"]
