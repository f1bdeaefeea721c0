"""What a study shows: tables and sentences for one baseline, score and target. Each is computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from fedskip.errors import InputError
from fedskip.report import sweeps, units
from fedskip.report.results import Results, SettingInfo
from fedskip.report.statistics import BETTER, NO_SEED, ONE_SEED, OPEN, WORSE
from fedskip.report.tables import (
    ENOUGH,
    TextTable,
    best_values_table,
    closing_table,
    comparison_table,
    explanation,
    name_of,
    notes,
    target_name,
    target_table,
)
from fedskip.report.warnings import warnings

if TYPE_CHECKING:
    import pandas as pd

SCORE = "mean_tail"  # that methods are compared by, unless another one is asked for


class Findings:
    """Tables and sentences about results, for terminal and page.

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
        self.results, self.score, self.target = results, score, target
        self.asked = baseline is not None or score != SCORE
        self._baseline = baseline

    # --- what is computed ----------------------------------------------------------------------------

    @cached_property
    def baseline(self) -> str:
        return self.results.find(self._baseline or self.results.baseline)

    @cached_property
    def comparison(self) -> pd.DataFrame | None:
        """Differences from the baseline; None where there is nothing to compare, unless it was asked for."""
        if not self.asked and len(self.results.labels()) < 2:
            return None
        try:
            return self.results.compare(self.baseline, self.score)
        except InputError:
            if self.asked:
                raise
            return None

    @cached_property
    def targets(self) -> pd.DataFrame | None:
        """What it takes to reach the target; None where there is nothing to compare."""
        if self.target is None and len(self.results.labels()) < 2:
            return None
        targets = self.results.to_target(self.target)
        return targets if self.target is not None or targets["seeds"].any() else None

    # --- tables --------------------------------------------------------------------------------------

    @cached_property
    def closing(self) -> TextTable:
        return closing_table(self.results)

    @cached_property
    def further(self) -> list[TextTable]:
        """A table of scores for each further metric."""
        names = self.results.further_metrics
        return [closing_table(self.results.by(name), costs=False) for name in names]

    @cached_property
    def tables(self) -> dict[str, TextTable]:
        """The other tables that there are, by the names of their files."""
        tables = {}
        if len(self.results.chosen):
            tables["chosen"] = best_values_table(self.results)
        if self.comparison is not None and (self.asked or self.compared):
            tables["compare"] = comparison_table(
                self.results, self.comparison, self.baseline, self.score
            )
        if self.targets is not None:
            tables["time_to_target"] = target_table(self.results, self.targets)
        return tables

    def frames(self) -> dict[str, pd.DataFrame]:
        """The same tables and the closing one as numbers."""
        frames = {"table": self.results.table, "chosen": self.results.chosen}
        frames |= {"compare": self.comparison, "time_to_target": self.targets}
        return {name: frame for name, frame in frames.items() if name in ("table", *self.tables)}

    def closing_parts(self) -> list[RenderableType]:
        """What ends a study on a terminal: its scores, what they are, and reasons for caution."""
        below = Text("\n".join(notes(self.results)), "dim")
        cautions = [Text(line, "yellow") for line in warnings(self.results)]
        return [self.closing, *self.further, below, *cautions]

    # --- sentences -----------------------------------------------------------------------------------

    def sentences(self, *, targets: bool = True) -> list[str]:
        """All sentences; `targets`: whether to say what it takes to reach the target."""
        return [*self.tuned, *self.compared, *(self.reached if targets else ())]

    @cached_property
    def tuned(self) -> list[str]:
        """The best values of sweeps."""
        return sweeps.in_sentences(self.results)

    @cached_property
    def compared(self) -> list[str]:
        """For each setting: the best method, and those that are better or worse than the baseline."""
        if self.comparison is None or len(self.results.labels()) < 2:
            return []
        sentences = []
        for setting in self.results.shown:
            rows = self.comparison[self.comparison["setting"] == setting.name]
            others = rows[rows["method"] != self.baseline].to_dict("records")
            labels = self.results.labels(setting.name)
            start = f"{setting.name}: " if len(self.results.compared) > 1 else ""
            if others:
                sentences.append(start + self._verdict(setting, others))
            elif labels and self.baseline not in labels:
                sentences.append(f"{start}nothing to compare, as {self.baseline} was not run.")
        return sentences

    def _verdict(self, setting: SettingInfo, rows: Sequence[Mapping[str, Any]]) -> str:
        """The best method, and how the others compare with the baseline."""
        by_verdict: dict[str, list[str]] = {}
        for row in rows:
            points = " points" if setting.metric.percent else ""
            apart = f" ({units.difference(row['difference'], setting.metric)}{points})"
            name = row["method"] + (apart if row["verdict"] in (BETTER, WORSE) else "")
            by_verdict.setdefault(row["verdict"], []).append(name)
        by_verdict.pop(ONE_SEED, None)
        order = sorted(by_verdict, key=lambda verdict: {BETTER: 0, WORSE: 1}.get(verdict, 2))
        parts = "; ".join(
            f"{verdict}: {units.listed(by_verdict[verdict])}"
            if verdict in (BETTER, WORSE, OPEN, NO_SEED)
            else "; ".join(f"{name} {verdict}" for name in by_verdict[verdict])
            for verdict in order
        )
        seeds, count = max(row["n"] for row in rows), units.count(len(rows), "comparison")
        sentences = [self._best(setting)]
        if parts:
            sentences.append(f"Compared with {self.baseline}: {parts}.")
        if seeds > 1:
            sentences.append(
                f"(95 % CI of paired differences, {seeds} seeds, {count} without correction.)"
            )
        if any(row["verdict"] == ONE_SEED for row in rows):
            sentences.append(
                f"One seed is not enough to compare with {self.baseline}; run at least five."
            )
        elif 1 < seeds < ENOUGH:
            sentences.append(f"{seeds} seeds are few: run at least five before you rely on this.")
        return " ".join(filter(None, sentences))

    def _best(self, setting: SettingInfo) -> str:
        """The method with the best mean, and those that are not significantly different from it."""
        leaders = self.results.leaders(setting.name, self.score)
        if not leaders:
            return ""
        scores = {m: self.results.scores(setting.name, m, self.score) for m in leaders}
        sign = -1 if setting.metric.higher else 1
        first, *others = sorted(leaders, key=lambda label: sign * scores[label].mean())
        mean = units.spread(scores[first].mean(), scores[first].std(), setting.metric)
        name = name_of(self.score, setting.metric)
        text = f"{first} has the {setting.metric.best} {name} ({explanation(self.results, self.score)}): {mean}."
        if others:
            verb = "is" if len(others) == 1 else "are"
            text += f" {units.listed(others)} {verb} not significantly different from it."
        return text

    @cached_property
    def reached(self) -> list[str]:
        """For each setting, the method that reaches the target first, and with the least cost."""
        if self.targets is None:
            return []
        sentences = []
        for setting in self.results.shown:
            rows = self.targets[self.targets["setting"] == setting.name]
            there = rows[(rows["reached"] == rows["seeds"]) & (rows["seeds"] > 0)]
            if len(rows) < 2 or there.empty:
                continue
            target = rows["target"].iloc[0]
            own = there[there["method"] == target].to_dict("records")
            others = there[there["method"] != target].to_dict("records")
            start = f"{setting.name}: " if len(self.results.compared) > 1 else ""
            sentences.append(start + _reached(target_name(target, setting.metric), own, others))
        return sentences


def _reached(
    goal: str, own: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> str:
    """Who reaches a goal first, and who at the least cost; `own`: the method whose best it is."""
    if not others:
        return f"No other method reaches {goal} at every seed."
    first = min(others, key=lambda row: row["rounds"])
    tied = own and first["rounds"] >= own[0]["rounds"]
    text = (
        f"{goal} is reached {'as late' if tied else 'first'} by {first['method']}: {_bill(first)}"
    )
    for cost, words in (("merges", "fewest merges"), ("bytes", "fewest bytes")):
        least = min(others, key=lambda row: row[cost])
        if least[cost] < first[cost]:
            text += f"; with the {words} by {least['method']}: {_bill(least)}"
    return text + (f". {own[0]['method']} itself: {_bill(own[0])}." if own else ".")


def _bill(row: Mapping[str, Any]) -> str:
    """The mean costs of a method.

    >>> _bill({"rounds": 20.4, "merges": 4, "bytes": 2e6})
    '20 rounds, 4 merges, 2 MB'
    """
    rounds, merges = (units.count(round(row[name]), name[:-1]) for name in ("rounds", "merges"))
    return f"{rounds}, {merges}, {units.size(row['bytes'])}"
