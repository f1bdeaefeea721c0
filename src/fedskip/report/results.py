"""The results of a study: its tables, what follows from them, and its figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fedskip.input.errors import InputError, require, unknown
from fedskip.records.table import Row, Table
from fedskip.report import sweep
from fedskip.report.choices import SCORES
from fedskip.report.closing import as_html, as_text
from fedskip.report.looked import Looked
from fedskip.report.plot import Plot
from fedskip.report.statistics import LEVEL, Difference, Scores, difference, ranks

ALL = "(all)"  # how tables call all settings together; no setting can have this name


@dataclass(frozen=True)
class Results(Looked):
    """The results of a study; shown as its closing table."""

    def __repr__(self) -> str:
        return f"{as_text(self)}\n{self.out}"

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def plot(self) -> Plot:
        """Its figures: `plot.curves()`, `bytes`, `drift`, `sweep`, `clients`, `routing` and `partition`."""
        return Plot(self)

    def table(self) -> Table:
        """A row for each setting and method: means and standard deviations over its seeds, and its costs."""
        rows = []
        for setting in self.settings:
            for label in self.labels(setting.name):
                runs = self.summary.where(setting=setting.name, method=label)
                row: Row = {"setting": setting.name, "method": label, "seeds": len(runs)}
                row["diverged"] = sum(map(bool, runs.column("diverged")))
                for name in (*SCORES, "final"):
                    row[name], row[f"{name}_std"] = _spread(self.scores(setting.name, label, name).values())
                for name in ("rounds", "merges", "bytes_total"):
                    row[name] = _spread(runs.column(name))[0]
                for metric in setting.metrics[1:]:
                    name = metric.column
                    row[name], row[f"{name}_std"] = _spread(self.scores(setting.name, label, name).values())
                rows.append(row)
        return Table(dict.fromkeys(name for row in rows for name in row), rows)

    def chosen(self) -> Table:
        """For each method the best of what was swept, and the test score there, over seeds.

        Chosen on the validation split; where there is none, on the test set, which is optimistic: the
        column `by` says which.
        """
        return sweep.chosen(self)

    def compare(
        self,
        baseline: str = "FedAvg",
        *,
        score: str = "mean_tail",
        level: float = LEVEL,
        bootstrap: bool = False,
    ) -> Table:
        """How every method differs from a baseline, seed by seed.

        A run that diverged has no score and has lost against one that did not. With several settings, the
        last rows hold the wins, the losses and the mean rank over all of them.

        Args:
            baseline: a method, as tables call it or as studies write it.
            score: the column of the summary that is compared.
            level: of the intervals.
            bootstrap: intervals by resampling the seeds, not by Student's t.
        """
        if score not in SCORES:
            raise unknown("score", score, SCORES)
        require("level", 0 < level < 1, "must be between 0 and 1", level, "0.95 is usual")
        baseline = self.find(baseline)
        rows: list[Row] = []
        for setting in self.compared:
            scores = {label: self.scores(setting.name, label, score) for label in self.labels(setting.name)}
            if baseline not in scores:
                continue
            higher = self._higher(setting.name)
            placed = mean_ranks(scores, higher)
            for label, mine in scores.items():
                found = difference(mine, scores[baseline], level, bootstrap=bootstrap, higher=higher)
                row = {"setting": setting.name, "method": label, "mean": _spread(mine.values())[0]}
                runs = self.summary.where(setting=setting.name, method=label)
                broken = any(runs.column("diverged"))
                rows.append(row | _shown(found, label == baseline, broken) | {"rank": placed[label]})
        if rows and all(row["mean"] is None for row in rows):
            raise InputError("score", "was not measured in this study", score)
        if len(self.compared) > 1:
            rows += _over_settings(rows)
        return Table(rows[0] if rows else (), rows)

    def to_target(self, target: float | str | None = None, *, score: str = "best") -> Table:
        """Rounds, merges and bytes until a score is first reached, over the seeds at which it is.

        Args:
            target: a score, such as a test accuracy from 0 to 1; or a method, whose `score` at the same seed
                is the target; None: what the setting's own `target` says, or else the baseline.
        """
        rows: list[Row] = []
        for setting in self.compared:
            own = setting.keys.get("target", self.baseline)
            own = self.baseline if setting.by and not isinstance(own, str) else own  # it is of the headline
            aim = own if target is None else target
            if isinstance(target, float | int) and setting.metric.percent:
                require("target", 0 <= target <= 1, "must be from 0 to 1", target, "write 0.68 for 68 %")
            label = self.find(aim, "target") if isinstance(aim, str) else None
            bests = self.scores(setting.name, label, score) if label else {}
            for method in self.labels(setting.name):
                runs = self.summary.where(setting=setting.name, method=method)
                histories = {one[0]["run"]: one for one in self.histories(setting.name, method)}
                reached, seeds = [], 0
                for run in runs:
                    goal = bests.get(run["seed"]) if label else aim
                    # else its history was not kept
                    known = run["run"] in histories or run["diverged"] or not run["merges"]
                    if goal is None or not known:  # where the other diverged, there is nothing to reach
                        continue
                    seeds += 1
                    higher = setting.metric.higher
                    first = first_at(histories.get(run["run"], ()), float(goal), higher)
                    reached += [first] if first else []
                row: Row = {"setting": setting.name, "method": method, "target": label or aim}
                row |= {"seeds": seeds, "reached": len(reached)}
                for name in ("rounds", "merges", "bytes"):
                    row[name], row[f"{name}_std"] = _spread(first[name] for first in reached)
                rows.append(row)
        return Table(rows[0] if rows else (), rows)


def first_at(history: Iterable[Row], goal: float, higher: bool = True) -> Row | None:
    """Rounds, merges and bytes when a run first reached a score; None if it never did."""
    for row in history:
        score = row["test_accuracy"]
        if score is not None and (score >= goal if higher else score <= goal):
            bytes_ = row["bytes_down"] + row["bytes_up"]
            return {"rounds": row["round"], "merges": row["merges"], "bytes": bytes_}
    return None


def mean_ranks(scores: Mapping[str, Scores], higher: bool = True) -> dict[str, float | None]:
    """The rank of each method, 1 being the best, averaged over the seeds that all methods have."""
    seeds = sorted(set.intersection(*(set(mine) for mine in scores.values())))
    at = [ranks({label: mine[seed] for label, mine in scores.items()}, higher) for seed in seeds]
    return {label: fmean(one[label] for one in at) if at else None for label in scores}


def _shown(found: Difference, is_baseline: bool, broken: bool) -> Row:
    """How a method differs, in a row; `broken`: some of its runs diverged. Others may have no score yet."""
    words = {1: "better", -1: "worse", 0: "not told apart"}[found.sign]
    if found.missing:
        lacks = "diverged" if broken else "has no score"
        words = f"{lacks} at {found.missing} of {found.missing + found.seeds + found.unmatched} seeds"
    elif found.low is None:
        words = "one seed tells nothing" if found.seeds == 1 else "no seed to compare"
    return {
        "seeds": found.seeds, "difference": found.mean, "low": found.low, "high": found.high,
        "wins": found.wins, "losses": found.losses, "verdict": "baseline" if is_baseline else words,
    }  # fmt: skip


def _over_settings(rows: list[Row]) -> list[Row]:
    found = []
    for label in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == label]
        sums = {name: sum(row[name] for row in mine) for name in ("seeds", "wins", "losses")}
        known = [row["rank"] for row in mine if row["rank"] is not None]
        rank = fmean(known) if known else None
        found.append(dict.fromkeys(mine[0]) | {"setting": ALL, "method": label, **sums, "rank": rank})
    return found


def _spread(values: Iterable[Any]) -> tuple[float | None, float | None]:
    """The mean of what is known, and its standard deviation where there are several."""
    known = [float(value) for value in values if value is not None]
    return fmean(known) if known else None, stdev(known) if len(known) > 1 else None
