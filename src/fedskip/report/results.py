"""The results of a study: what its folder holds, finished or not, as pandas DataFrames.

pandas is imported where a table is made: commands that only mention results start without it.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from fedskip.config.fields import check_name
from fedskip.errors import InputError, first_line, how_to_resume, unknown
from fedskip.methods.grammar import parse
from fedskip.records.checkpoint import newest, read_notes
from fedskip.records.folder import (
    Facts,
    Folder,
    added_to,
    check_kinds,
    part_keys,
    record_of,
    settings_of,
)
from fedskip.records.history import ALWAYS, ALWAYS_SUMMARY, HISTORY, SUMMARY, summarise
from fedskip.records.table import Row, Table, to_rows
from fedskip.report.units import Metric

if TYPE_CHECKING:
    import pandas as pd

    from fedskip.report.figures import Figures

LEVEL = 0.95  # of confidence intervals
CLIENTS = ("setting", "run", "method", "period", "seed", "client", "test_accuracy")

HEADLINE_ONLY = ("final", "full_test", "worst_clients")  # scores that further metrics lack
# columns that need a value in every row; scores and what a merge gives may be empty
FILLED_SUMMARY = (
    "setting", "run", "method", "period", "seed", "rounds", "merges", "bytes_total", "diverged",
)  # fmt: skip
FILLED_HISTORY = (
    "setting", "run", "method", "period", "seed", "round", "merges", "bytes_down", "bytes_up", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class SettingInfo:
    """A setting as study.yaml has it, with what the study noted about it. Python objects are only named."""

    keys: Facts
    out: Path  # the folder of its study
    divisions: dict[int, Facts] = field(default_factory=dict)  # in numbers, by partition seed
    noted: Facts = field(default_factory=dict)  # about its first runs: machine, parameters, ...
    noted_metrics: tuple[Metric, ...] = ()
    guessing: Facts = field(default_factory=dict)  # the score of one answer for all samples
    warnings: tuple[str, ...] = ()  # of the checks before training
    precision: str = ""
    method_parts: Sequence[Sequence[str]] = ()  # methods at the start, and of every `extend`
    alias: str = ""  # its name where several studies are combined and another one has its name
    by: str = ""  # the metric in the place of the headline, see `Results.by`

    @property
    def name(self) -> str:
        return self.alias or str(self.keys["name"])

    @property
    def rounds(self) -> int:
        return int(self.keys.get("rounds") or 0)

    @property
    def remarks(self) -> list[str]:
        """What every table and figure of it has to mention: reduced, a note, low precision."""
        counts = {"rounds": self.rounds, "seeds": len(self.keys.get("seeds") or ())}
        full = {what: int(record_of(self.keys).get(f"full_{what}") or 0) for what in counts}
        less = [f"{n:,} of {full[what]:,} {what}" for what, n in counts.items() if n < full[what]]
        reduced = [f"reduced: {', '.join(less)}"] if less else []
        note = [str(self.keys["note"])] if self.keys.get("note") else []
        return [*reduced, *note, *(["in bf16"] if self.precision == "bf16" else [])]

    @property
    def reference(self) -> bool:
        """Whether it is only a line to compare with, such as centralised training."""
        return bool(self.keys.get("reference"))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All of its metrics; the first is the headline."""
        given = self.keys.get("metric", "accuracy")
        names = [str(name) for name in (given if isinstance(given, list) else [given])]
        return self.noted_metrics or tuple(
            Metric(name, percent=name in ("accuracy", "label_accuracy")) for name in names
        )

    @property
    def metric(self) -> Metric:
        """The metric that scores are of: the headline, or the one that `by` names."""
        return next((one for one in self.metrics if one.name == self.by), self.metrics[0])

    @property
    def division(self) -> Facts:
        """Its first division in numbers: clients, training and test samples."""
        return next(iter(self.divisions.values()), {})

    def clients(self, seed: int) -> int:
        """How many clients take part at a seed."""
        fixed = self.keys.get("partition_seed")
        division = self.divisions.get(seed if fixed is None else fixed) or {}
        count = division.get("clients") or self.keys.get("clients")
        if count is None:
            raise InputError("seed", f"is not one that {self.out} has noted the clients of", seed)
        return int(count)


@dataclass(frozen=True, eq=False)
class Results:
    """The results of a study as DataFrames; printed, or at the end of a notebook cell, its closing table."""

    out: Path
    name: str
    settings: Sequence[SettingInfo]
    summary: pd.DataFrame  # a row for each run, as in summary.csv
    history: pd.DataFrame  # a row for each run and evaluation, as in history.csv
    finished: bool = True  # else the tables hold what there is so far
    record: Facts = field(default_factory=dict)  # what the study noted about itself
    studies: Sequence[Self] = ()  # the studies that were combined
    _clients: pd.DataFrame | None = None  # of studies that were combined

    @classmethod
    def read(cls, folder: str | os.PathLike[str], metric: str | None = None) -> Self:
        """The results in a folder, finished or not; nothing in it is changed.

        `metric`: one of the study's further metrics, in the place of the headline.
        """
        out = Path(folder)
        if not Folder(out).file.exists():
            raise InputError("out", "holds no study: there is no study.yaml", str(out))
        damage = (ValueError, KeyError, TypeError, AttributeError, csv.Error, yaml.YAMLError)
        try:
            results = cls(*_read(out))
        except damage as error:
            if isinstance(error, InputError):
                raise
            rule = f"holds damaged files ({type(error).__name__}: {first_line(error)})"
            fix = "bring back study.yaml and history.csv"
            raise InputError("out", rule, str(out), fix) from error
        return results if metric is None else results.by(metric)

    # --- tables ------------------------------------------------------------------------------------

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each setting and method: means and standard deviations over seeds, and costs."""
        from fedskip.report.statistics import over_seeds

        return over_seeds(self)

    @cached_property
    def chosen(self) -> pd.DataFrame:
        """For each method the best of the swept values, and its test score there.

        Chosen on the validation split; without one on the test set, which is optimistic: column `by`.
        """
        from fedskip.report.sweeps import best_values

        return best_values(self)

    def compare(
        self,
        baseline: str | None = None,
        score: str = "mean_tail",
        level: float = LEVEL,
        *,
        bootstrap: bool = False,
    ) -> pd.DataFrame:
        """How every method differs from a baseline, seed by seed: `statistics.compare`."""
        from fedskip.report.statistics import compare

        return compare(self, baseline, score, level, bootstrap=bootstrap)

    def to_target(self, target: float | str | None = None, score: str = "best") -> pd.DataFrame:
        """Rounds, merges and bytes until a score is first reached: `statistics.time_to_target`."""
        from fedskip.report.statistics import time_to_target

        return time_to_target(self, target, score)

    def leaders(self, setting: str, score: str = "mean_tail", level: float = LEVEL) -> list[str]:
        """The methods that are not significantly different from the one with the best mean."""
        from fedskip.report.statistics import leaders

        return leaders(self, setting, score, level)

    @property
    def clients(self) -> pd.DataFrame:
        """A row for each run and client, as in clients.csv; empty where clients were not measured."""
        if self._clients is not None:
            return self._clients
        file = self.out / "clients.csv"
        filled = ("setting", "method", "seed", "client", "test_accuracy")
        table = Table.read(file, filled=filled, whole=True) if file.exists() else Table(CLIENTS)
        return table.frame()

    @cached_property
    def plot(self) -> Figures:
        """Its figures: `plot.curves()`, `bytes`, `drift`, `sweep`, `clients`, `routing` and `partition`."""
        from fedskip.report.figures import Figures

        return Figures(self)

    def __repr__(self) -> str:
        from fedskip.report.tables import closing_text

        return f"{closing_text(self)}\n{self.out}"

    def _repr_html_(self) -> str:
        from fedskip.report.tables import closing_html

        return closing_html(self)

    # --- methods and settings ----------------------------------------------------------------------

    @property
    def compared(self) -> list[SettingInfo]:
        """The settings whose methods are compared: all but references."""
        return [setting for setting in self.settings if not setting.reference]

    @cached_property
    def shown(self) -> list[SettingInfo]:
        """The settings to show one by one: of a sweep, only those that are best for some method."""
        best = set(self.chosen["setting"]) if len(self.chosen) else set()
        return [
            one for one in self.compared if one.name in best or not record_of(one.keys).get("sweep")
        ]

    @property
    def remarks(self) -> list[str]:
        """What has to be mentioned wherever its settings are shown together."""
        return list(dict.fromkeys(text for setting in self.settings for text in setting.remarks))

    @property
    def baseline(self) -> str:
        """The method that others are compared with by default: FedAvg, or else the first."""
        labels = self.labels()
        if not labels:
            rule = "holds nothing to compare: every setting is a reference"
            raise InputError("out", rule, str(self.out))
        return "FedAvg" if "FedAvg" in labels else labels[0]

    def labels(self, setting: str | None = None) -> list[str]:
        """The labels of its methods, as in tables."""
        names = [setting] if setting else [one.name for one in self.compared]
        rows = self.summary[self.summary["setting"].isin(names)]
        return [str(label) for label in rows["method"].unique()]

    def find(self, method: str, field: str = "baseline") -> str:
        """The label of a method that was run, also written as in a study file: `fedskip(period=5)`.

        `field`: the name of the argument, for errors.
        """
        labels = self.labels()
        for label in labels:
            if method.lower() == label.lower():
                return label
        try:
            [parsed] = parse(method)
        except (InputError, ValueError):
            raise unknown(field, method, labels) from None
        names = [one.name for one in dataclasses.fields(parsed)]
        # in a grid, a label also shows parameters that are at their defaults
        spellings = {parsed.label_with(some) for some in ((), names, *([name] for name in names))}
        for label in labels:
            if label in spellings:
                return label
        raise unknown(field, parsed.label, labels)

    # --- runs --------------------------------------------------------------------------------------

    def scores(self, setting: str, method: str, score: str = "mean_tail") -> pd.Series:
        """The scores of a method's runs, by seed; NaN where a run diverged or has no such score."""
        runs = self.runs(setting, method).set_index("seed")
        if score not in runs:
            return runs["rounds"].astype("float64") * math.nan
        values = runs[score].astype("float64")
        return values.where(~runs["diverged"] & (values.abs() < math.inf))

    def runs(self, setting: str, method: str | None = None) -> pd.DataFrame:
        """The rows of the summary for a setting, or for one of its methods."""
        if method is None:
            return self.summary[self.summary["setting"] == setting]
        return self._runs.get((setting, method), self.summary.iloc[:0])

    def rows(self, setting: str, method: str) -> pd.DataFrame:
        """The rows of the history for the runs of a method."""
        return self._rows.get((setting, method), self.history.iloc[:0])

    @cached_property
    def _runs(self) -> dict[tuple[str, str], pd.DataFrame]:
        return dict(iter(self.summary.groupby(["setting", "method"], sort=False)))

    @cached_property
    def _rows(self) -> dict[tuple[str, str], pd.DataFrame]:
        return dict(iter(self.history.groupby(["setting", "method"], sort=False)))

    # --- further metrics ---------------------------------------------------------------------------

    @property
    def further_metrics(self) -> list[str]:
        """The metrics beside the headline; none where one of them is in its place."""
        shown = [setting for setting in self.compared if not setting.by]
        return list(dict.fromkeys(one.name for setting in shown for one in setting.metrics[1:]))

    def by(self, metric: str) -> Self:
        """The same results with a further metric in the place of the headline.

        `best_val` is then the metric at the round with the best validation score of the headline.
        Settings without the metric are left out.
        """
        settings = [one for one in self.settings if metric in [m.name for m in one.metrics]]
        if not settings:
            names = {m.name for one in self.settings for m in one.metrics}
            raise unknown("metric", metric, names)
        history: list[Row] = []
        summary: list[Row] = []
        for setting in settings:
            rows = to_rows(self.history[self.history["setting"] == setting.name])
            runs = to_rows(self.runs(setting.name))
            if metric != setting.metrics[0].name:
                rows, runs = _by(rows, runs, setting, metric)
            history, summary = history + rows, summary + runs
        renamed = [
            replace(one, by="" if metric == one.metrics[0].name else metric) for one in settings
        ]
        return replace(
            self,
            settings=renamed,
            history=Table(self.history.columns, history).frame(),
            summary=Table(self.summary.columns, summary).frame(),
        )


def _by(
    rows: list[Row], runs: list[Row], setting: SettingInfo, metric: str
) -> tuple[list[Row], list[Row]]:
    """The history and the summary of a setting, with a further metric in the place of the headline."""
    higher = next(one.higher for one in setting.metrics if one.name == metric)
    unknown_for_it = {"slot_accuracy": None, "x_broadcast_accuracy": None}
    rows = [row | unknown_for_it | {"test_accuracy": row.get(f"x_{metric}")} for row in rows]
    by_run = _by_run(rows)
    summary = []
    for run in runs:
        mine = by_run.get(run["run"], [])
        summarised = summarise(
            mine, rounds=run["rounds"] if run.get("ended") else setting.rounds, higher=higher,
            validated_higher=setting.metrics[0].higher,
        )  # fmt: skip
        names = ("last", "best", "best_round", "mean_tail", "best_val")
        scores = {name: summarised[name] for name in names}
        if not mine:  # its history was not kept
            scores["last"] = run.get(f"x_{metric}")
        summary.append(run | scores | dict.fromkeys(HEADLINE_ONLY))
    return rows, summary


# --- reading a folder ------------------------------------------------------------------------------


def _read(
    out: Path,
) -> tuple[Path, str, list[SettingInfo], pd.DataFrame, pd.DataFrame, bool, Facts]:
    """The fields of `Results`, read from a folder and checked against each other."""
    folder = Folder(out)
    study, record = folder.contents()
    all_keys = settings_of(study)
    for keys in all_keys:
        check_name(keys["name"])  # it is part of file names
        check_kinds(keys, folder.file)
    settings = [_setting(keys, out, record.get("settings") or {}) for keys in all_keys]
    files = (out / "history.csv", out / "history.csv.xz")
    file = next((one for one in files if one.exists()), files[0])
    history = (
        Table.read(file, filled=FILLED_HISTORY, present=ALWAYS) if file.exists() else Table(HISTORY)
    )
    _refuse_unknown(history, settings, file)
    summary, finished = _read_summary(out, all_keys, settings)
    if not finished:
        done = set(summary.column("run"))
        running = [row for row in history if row["run"] not in done]
        later = so_far(running, all_keys, settings, out / "checkpoints")
        summary = Table(dict.fromkeys([*summary.columns, *later.columns]), [*summary, *later])
    _refuse_unlike(history, summary, settings, file)
    if not summary:
        fix = f"wait for its first evaluation, or go on with {how_to_resume(out)}"
        raise InputError("out", "holds a study without results yet", str(out), fix)
    # also the columns that came later than the files
    runs = Table(dict.fromkeys([*SUMMARY, *summary.columns]), summary)
    rows = Table(dict.fromkeys([*HISTORY, *history.columns]), history)
    name = study.get("name", "")
    return out, name, settings, runs.frame(), rows.frame(), finished, record


def _read_summary(
    out: Path, all_keys: Sequence[Facts], settings: Sequence[SettingInfo]
) -> tuple[Table, bool]:
    """summary.csv, and whether it holds all runs of the study."""
    file = out / "summary.csv"
    if not file.exists():
        return Table(SUMMARY), False
    summary = Table.read(file, filled=FILLED_SUMMARY, present=ALWAYS_SUMMARY, whole=True)
    _refuse_unknown(summary, settings, file)
    if not summary:
        fix = f"delete it, and {how_to_resume(out)} writes it again"
        raise InputError(str(file), "holds no runs", fix=fix)
    return summary, all(_is_complete(keys, summary) for keys in all_keys)


def _is_complete(keys: Facts, summary: Table) -> bool:
    """Whether all runs of a setting are in the summary. The runs of a part are written together."""
    written = len(summary.where(setting=keys["name"]))
    parts = (keys, *added_to(keys))
    planned = [len(part["methods"]) * len(part["seeds"]) for part in parts]
    return written >= (sum(planned) if len(planned) > 1 else 1)


def so_far(
    history: Iterable[Row],
    all_keys: Sequence[Facts],
    settings: Sequence[SettingInfo],
    checkpoints: Path,
) -> Table:
    """The summary of runs under way, from their history; checkpoints know which of them are over."""
    by_name = {setting.name: setting for setting in settings}
    noted: dict[str, Facts] = {}  # by run
    for key in (key for keys in all_keys for key in part_keys(keys)):
        # there may be no checkpoint yet, or one that is just being replaced
        with contextlib.suppress(LookupError, ValueError, OSError):
            for one in newest(checkpoints, key):
                noted |= read_notes(one.path)["runs"] if one.path else {}
    rows = []
    for run, mine in _by_run(history).items():
        facts, setting = noted.get(run, {}), by_name[mine[0]["setting"]]
        diverged = bool(facts.get("diverged"))
        row = {name: mine[0][name] for name in ("setting", "run", "method", "period", "seed")}
        row |= summarise(
            mine, rounds=facts.get("ended_at") or setting.rounds, higher=setting.metric.higher
        )
        broke = (diverged and facts.get("broke")) or ()
        row |= zip(("broke_round", "broke_client", "broke_slot"), broke, strict=False)
        row |= {"diverged": diverged, "set_aside": mine[-1].get("x_set_aside")}
        rows.append(row | {"ended": facts.get("ended", "")})
    return Table(dict.fromkeys([*SUMMARY, *(name for row in rows for name in row)]), rows)


def _by_run(rows: Iterable[Row]) -> dict[str, list[Row]]:
    runs: dict[str, list[Row]] = {}
    for row in rows:
        runs.setdefault(row["run"], []).append(row)
    return runs


def _setting(keys: Facts, out: Path, noted: Facts) -> SettingInfo:
    """A setting with what the study noted about it and its additions."""
    parts = [noted.get(key, {}) for key in part_keys(keys)]
    added, own = added_to(keys), dict(keys)
    for name in ("methods", "seeds") if added else ():
        own[name] = list(dict.fromkeys(value for part in (keys, *added) for value in part[name]))
    precisions = [(part.get("machine") or {}).get("precision") for part in parts]
    return SettingInfo(
        own, out,
        divisions={s: facts for part in parts for s, facts in (part.get("divisions") or {}).items()},
        noted=parts[0],
        noted_metrics=tuple(Metric(**one) for one in parts[0].get("metrics") or ()),
        guessing=merge_guesses(part.get("guessing") or {} for part in parts),
        warnings=tuple(dict.fromkeys(str(line) for part in parts for line in part.get("warned") or ())),
        precision=" and ".join(dict.fromkeys(str(one) for one in precisions if one)),
        method_parts=[keys.get("methods", ()), *(part["methods"] for part in added)],
    )  # fmt: skip


def merge_guesses(parts: Iterable[Facts]) -> Facts:
    """The score of one answer for all samples, over the seeds of all parts."""
    noted = [part for part in parts if part]
    scores = {seed: score for part in noted for seed, score in part["scores"].items()}
    return {**noted[0], "scores": scores} if noted else {}


def _refuse_unknown(table: Table, settings: Iterable[SettingInfo], file: Path) -> None:
    """Refuse rows of settings that the study does not have."""
    if other := sorted({row["setting"] for row in table} - {setting.name for setting in settings}):
        fix = f"bring back {file.name} and study.yaml of the same study"
        raise InputError(str(file), "has rows of a setting that study.yaml lacks", other[0], fix)


def _refuse_unlike(
    history: Table, summary: Table, settings: Sequence[SettingInfo], file: Path
) -> None:
    """Refuse a history with missing, doubled or edited rows, as far as it or the summary shows that."""
    higher = {setting.name: setting.metric.higher for setting in settings}
    numbered = {setting.name for setting in settings if setting.keys.get("eval_every", 1) == 1}
    fix = "bring back the files as the study wrote them"
    runs: dict[str, list[Row]] = {}
    for row in history:
        mine = runs.setdefault(row["run"], [])
        if mine and row["round"] <= mine[-1]["round"]:
            rule = f"must have the rounds of {row['run']} in order, each once; round {row['round']} is not"
            raise InputError(str(file), rule, fix=fix)
        mine.append(row)
        # every merge is evaluated, or every round of a run that never merges: so rows are counted
        if row["setting"] in numbered and len(mine) != (row["merges"] or row["round"]):
            rule = f"lacks a row of {row['run']} before round {row['round']}"
            raise InputError(str(file), rule, fix=fix)
    if lacking := sorted(runs.keys() - set(summary.column("run"))):
        rule, place = "lacks a run of history.csv", str(file.with_name("summary.csv"))
        raise InputError(place, rule, lacking[0], fix)
    for row in summary if runs else ():
        for name, value in _implied(runs.get(row["run"], []), higher[row["setting"]]):
            if value != row.get(name) and value == value:  # a metric may be undefined: NaN
                rule = f"does not fit summary.csv, where {row['run']} has {row.get(name)} as {name}"
                raise InputError(str(file), rule, value, fix)


def _implied(rows: list[Row], higher: bool) -> Iterator[tuple[str, Any]]:
    """The cells of the summary that the history of a run implies."""
    scores = [row["test_accuracy"] for row in rows]
    finite = [score for score in scores if score is not None and not math.isnan(score)]
    yield "last", scores[-1] if rows else None
    yield "best", (max if higher else min)(finite, default=None)
    if rows:
        yield "merges", rows[-1]["merges"]
        if not rows[-1]["merges"]:
            yield "rounds", rows[-1]["round"]
