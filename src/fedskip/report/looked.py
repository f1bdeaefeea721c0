"""A study as one looks at it: which methods lead, and by which of its metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Self

from fedskip.input.errors import unknown
from fedskip.records.history import summarise
from fedskip.records.table import Row, Table
from fedskip.report.choices import SCORES
from fedskip.report.recorded import About, Recorded
from fedskip.report.statistics import LEVEL, Scores, difference


@dataclass(frozen=True)
class Looked(Recorded):
    """What is recorded of a study, and the best of it."""

    def leaders(self, setting: str, score: str = "mean_tail", level: float = LEVEL) -> list[str]:
        """The methods that are not told apart from the one with the best mean.

        With one seed it stands alone. A method of which a run diverged, or which lacks seeds that others
        have, is not among them.
        """
        if score not in (*SCORES, "final"):
            raise unknown("score", score, SCORES)
        scores = {label: self.scores(setting, label, score) for label in self.labels(setting)}
        most = max(map(len, scores.values()), default=0)
        means = {
            label: fmean(known)
            for label, mine in scores.items()
            if len(mine) == most and (known := _whole(mine))
        }
        if not means:
            return []
        higher = self._higher(setting)
        best = (max if higher else min)(means, key=means.__getitem__)
        apart = {label: difference(scores[label], scores[best], level, higher=higher) for label in means}
        return [
            label
            for label, found in apart.items()
            if means[label] == means[best] or (found.low is not None and found.sign >= 0)
        ]

    def _higher(self, setting: str) -> bool:
        """Whether higher scores are better there."""
        return all(one.metric.higher for one in self.settings if one.name == setting)

    def by(self, metric: str) -> Self:
        """The same study, looked at by one of its further metrics: its scores, tables, figures and verdicts.

        `best_val` is then the metric where the headline was best on the validation samples. Settings without
        the metric are left out.
        """
        settings = [one for one in self.settings if metric in [known.name for known in one.metrics]]
        if not settings:
            raise unknown("metric", metric, {known.name for one in self.settings for known in one.metrics})
        history: list[Row] = []
        summary: list[Row] = []
        for setting in settings:
            if metric == setting.metrics[0].name:
                history += self.history.where(setting=setting.name)
                summary += self.summary.where(setting=setting.name)
                continue
            rows, runs = _by(self, setting, metric)
            history, summary = history + rows, summary + runs
        looked = tuple(replace(s, by="" if metric == s.metrics[0].name else metric) for s in settings)
        tables = Table(self.history.columns, history), Table(self.summary.columns, summary)
        return replace(self, history=tables[0], summary=tables[1], settings=looked)

    @property
    def further(self) -> list[str]:
        """The metrics that stand beside the headline of some setting; none while looked at by one of them."""
        shown = [setting for setting in self.compared if not setting.by]
        return list(dict.fromkeys(one.name for setting in shown for one in setting.metrics[1:]))


def _by(results: Recorded, setting: About, metric: str) -> tuple[list[Row], list[Row]]:
    """The history and the summary of a setting, with a further metric in the place of the headline."""
    higher = next(one.higher for one in setting.metrics if one.name == metric)
    nobody = {"slot_accuracy": None, "x_broadcast_accuracy": None}  # has looked at these
    rows: list[Row] = []
    runs: dict[str, list[Row]] = {}
    for row in results.history.where(setting=setting.name):
        rows.append(row | nobody | {"test_accuracy": row.get(f"x_{metric}")})
        runs.setdefault(row["run"], []).append(rows[-1])
    summary = []
    for run in results.summary.where(setting=setting.name):
        mine = runs.get(run["run"], [])
        found = summarise(
            mine, rounds=run["rounds"] if run.get("ended") else setting.rounds, higher=higher,
            validated_higher=setting.metrics[0].higher,
        )  # fmt: skip
        scores = {name: found[name] for name in ("last", "best", "best_round", "mean_tail", "best_val")}
        scores |= {} if mine else {"last": run.get(f"x_{metric}")}  # its history was not kept
        summary.append(run | scores | {"final": None, "full_test": None})
    return rows, summary


def _whole(scores: Scores) -> list[float]:
    """The scores of all seeds; none if a run has none."""
    known = [score for score in scores.values() if score is not None]
    return known if len(known) == len(scores) else []
