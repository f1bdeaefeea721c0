"""The results of a study: what its folder holds, finished or not, as pandas DataFrames.

Reading a folder loads no data, no model and no code. pandas is imported where a table is made: commands that only
mention results start without it.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import yaml

from fedskip.config.fields import check_name
from fedskip.errors import InputError, first_line, how_to_resume, unknown
from fedskip.methods.grammar import parse
from fedskip.parsing import PYTHON, is_own
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

if TYPE_CHECKING:
    import pandas as pd

    from fedskip.report.figures import Figures

LEVEL = 0.95  # of confidence intervals
CLIENTS = ("setting", "run", "method", "period", "seed", "client", "test_accuracy")
HEADLINE_ONLY = ("merged", "full_test", "worst_clients")  # scores that further metrics lack
# columns that need a value in every row; scores and what a merge gives may be empty
ABOUT = ("setting", "run", "method", "period", "seed")
FILLED_SUMMARY = (*ABOUT, "rounds", "merges", "bytes_total", "diverged")
FILLED_HISTORY = (*ABOUT, "round", "merges", "bytes_down", "bytes_up", "seconds")
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, csv.Error, yaml.YAMLError)
RESTORE = "bring back the files as the study wrote them"

# names of data, partitions, models and their options, where these are not those of the keys
NAMES = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "synthetic": "SYNTHETIC", "femnist": "FEMNIST",
    "shakespeare": "SHAKESPEARE", "cnn": "CNN", "resnet50": "ResNet-50", "lstm": "LSTM", "iid": "IID",
    "natural": "natural partition", "pooled": "pooled data", "dirichlet": "Dirichlet", "beta": "β",
}  # fmt: skip
_WORDS = {
    "macro_f1": "macro F1", "auroc": "AUROC", "r2": "R²", "mae": "mean absolute error", "rmse": "RMSE",
}  # fmt: skip


class Metric(NamedTuple):
    """A metric: its name, its unit, and which way is better."""

    name: str
    percent: bool = False  # a share from 0 to 1, shown in per cent
    higher: bool = True  # is better

    @property
    def words(self) -> str:
        """Its name as text; for a custom metric, the name of its function.

        >>> Metric("label_accuracy").words, Metric("r2").words, Metric("python:mine.top_5").words
        ('label accuracy', 'R²', 'top 5')
        """
        short = self.name.replace(":", ".").rpartition(".")[2]
        return _WORDS.get(short) or short.replace("_", " ")

    @property
    def column(self) -> str:
        """Its column in tables where it is not the headline."""
        return f"x_{self.name}"

    @property
    def factor(self) -> float:
        """The factor from stored to shown numbers."""
        return 100.0 if self.percent else 1.0

    def with_unit(self, sign: str = " (%)") -> str:
        """Its name with its unit.

        >>> ACCURACY.with_unit(), ACCURACY.with_unit(" in %"), Metric("r2").with_unit()
        ('accuracy (%)', 'accuracy in %', 'R²')
        """
        return self.words + sign * self.percent


ACCURACY = Metric("accuracy", percent=True)


@dataclass(frozen=True)
class SettingInfo:
    """A setting as study.yaml has it, with what the study noted about it. Python objects are only named."""

    name: str  # among several studies, one that no other setting has
    rounds: int
    reference: bool  # only a line to compare with, such as centralised training
    keys: Facts
    out: Path  # the folder of its study
    metrics: Sequence[Metric]  # the first is the headline
    metric: Metric  # the one that scores are of: the headline, but see `Results.by`
    divisions: dict[int, Facts]  # in numbers, by partition seed
    noted: Facts  # about its first runs: machine, parameters, ...
    guessing: Facts  # the score of one answer for all samples
    warnings: Sequence[str]  # of the checks before training
    precision: str
    methods: Sequence[str]  # with all their hyper-parameters, where the study noted them
    method_parts: Sequence[Sequence[str]]  # as written: at the start, and of every `extend`

    @classmethod
    def of(cls, keys: Facts, out: Path, noted: Mapping[str, Facts]) -> Self:
        """`noted`: by the parts of settings, what the study noted about them."""
        parts = [noted.get(key, {}) for key in part_keys(keys)]
        added, own = added_to(keys), dict(keys)
        for name in ("methods", "seeds") if added else ():
            own[name] = list(dict.fromkeys(v for part in (keys, *added) for v in part[name]))
        given = keys.get("metric", "accuracy")
        metrics = [Metric(**one) for one in parts[0].get("metrics") or ()] or [
            Metric(str(name), percent=name in ("accuracy", "label_accuracy"))
            for name in (given if isinstance(given, list) else [given])
        ]
        precisions = [(part.get("machine") or {}).get("precision") for part in parts]
        return cls(
            str(keys["name"]), int(keys.get("rounds") or 0), bool(keys.get("reference")), own, out, metrics, metrics[0],
            divisions={s: d for part in parts for s, d in (part.get("divisions") or {}).items()},
            noted=parts[0],
            guessing=merge_guesses(part.get("guessing") or {} for part in parts),
            warnings=list(dict.fromkeys(str(w) for part in parts for w in part.get("warned") or ())),
            precision=" and ".join(dict.fromkeys(str(one) for one in precisions if one)),
            methods=[m for part in parts for m in part.get("methods") or ()] or own.get("methods", ()),
            method_parts=[keys.get("methods", ()), *(part["methods"] for part in added)],
        )  # fmt: skip

    @property
    def by(self) -> bool:
        """Whether scores are of a further metric."""
        return self.metric != self.metrics[0]

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
    def title(self) -> str:
        """Its name, data, clients and partition: `CIFAR-10, 50 clients, β = 0.5`."""
        own, partition = NAMES.get(self.name, self.name), self.keys.get("partition")
        # a Python object has no name of its own
        data = own if PYTHON in str(self.keys.get("data")) else named(self.keys.get("data"))
        clients = next(iter(self.divisions.values()), self.keys).get("clients")
        kind = named(partition)
        if isinstance(partition, dict) and partition.get("kind") == "dirichlet":
            kind = f"β = {partition.get('beta')}"
        about = ", ".join(filter(None, (data, f"{clients} clients" * bool(clients), kind)))
        return about if own == data.partition(" (")[0] else f"{self.name}: {about}"

    def clients(self, seed: int) -> int:
        """How many clients take part at a seed."""
        fixed = self.keys.get("partition_seed")
        division = self.divisions.get(seed if fixed is None else fixed) or {}
        count = division.get("clients") or self.keys.get("clients")
        if count is None:
            raise InputError("seed", f"is not one that {self.out} has noted the clients of", seed)
        return int(count)


def named(value: Any) -> str:
    """A data set, a partition or a model with its options, in one line.

    >>> named({"kind": "dirichlet", "beta": 0.5}), named("python:mine.Net")
    ('Dirichlet (β = 0.5)', 'Net')
    """
    if not isinstance(value, dict):
        value = {"name": str(value).rpartition(".")[2]}
    tag = next((key for key in ("name", "kind", "file") if key in value), "")
    name = str(value.get(tag, ""))
    options = (f"{NAMES.get(k, k)} = {given}" for k, given in value.items() if k != tag)
    listed = ", ".join(options)
    return NAMES.get(name, name) + (f" ({listed})" if listed else "")


def merge_guesses(parts: Iterable[Facts]) -> Facts:
    """The score of one answer for all samples, over the seeds of all parts."""
    noted = [part for part in parts if part]
    scores = {seed: score for part in noted for seed, score in part["scores"].items()}
    return {**noted[0], "scores": scores} if noted else {}


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
        Folder(out).refuse_federation()
        if not (out / "study.yaml").exists():
            raise InputError("out", "holds no study: there is no study.yaml", str(out))
        try:
            results = cls(out, *_read(out))
        except InputError:
            raise
        except DAMAGE as error:
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
        from fedskip.report.statistics import best_values

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

    @property
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

    # --- settings and methods ----------------------------------------------------------------------

    @property
    def compared(self) -> list[SettingInfo]:
        """The settings whose methods are compared: all but references."""
        return [setting for setting in self.settings if not setting.reference]

    @property
    def shown(self) -> list[SettingInfo]:
        """The settings to show one by one: of a sweep, only those that are best for some method."""
        best = set(self.chosen["setting"]) if len(self.chosen) else set()
        return [s for s in self.compared if s.name in best or not record_of(s.keys).get("sweep")]

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
        if is_own(method):  # its code is not imported
            if (written := method.removesuffix("()")) in self._labels_of_texts:
                return self._labels_of_texts[written]
            raise unknown(field, method, labels)
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

    @property
    def _labels_of_texts(self) -> dict[str, str]:
        """The labels of all methods, by their texts in study.yaml; of settings whose methods have all ended."""
        found: dict[str, str] = {}
        for setting in self.compared:
            texts, labels = setting.keys.get("methods", ()), self.labels(setting.name)
            found |= dict(zip(texts, labels, strict=True)) if len(texts) == len(labels) else {}
        return found

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
        rows = self.summary[self.summary["setting"] == setting]
        return rows if method is None else rows[rows["method"] == method]

    def rows(self, setting: str, method: str | None = None) -> pd.DataFrame:
        """The rows of the history for a setting, or for one of its methods."""
        rows = self.history[self.history["setting"] == setting]
        return rows if method is None else rows[rows["method"] == method]

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
        settings = [
            replace(setting, metric=one)
            for setting in self.settings
            for one in setting.metrics
            if one.name == metric
        ]
        if not settings:
            raise unknown("metric", metric, {m.name for one in self.settings for m in one.metrics})
        history: list[Row] = []
        summary: list[Row] = []
        for setting in settings:
            rows, runs = to_rows(self.rows(setting.name)), to_rows(self.runs(setting.name))
            if setting.by:
                lacking = {"slot_accuracy": None, "x_broadcast_accuracy": None}
                rows = [row | lacking | {"test_accuracy": row.get(f"x_{metric}")} for row in rows]
                by_run: dict[str, list[Row]] = {}
                for row in rows:
                    by_run.setdefault(row["run"], []).append(row)
                runs = [run | _scores_by(setting, run, by_run.get(run["run"], [])) for run in runs]
            history, summary = history + rows, summary + runs
        return replace(
            self,
            settings=settings,
            history=Table(self.history.columns, history).frame(),
            summary=Table(self.summary.columns, summary).frame(),
        )


def _scores_by(setting: SettingInfo, run: Row, rows: list[Row]) -> Row:
    """The scores of a run by a further metric, from its history by that metric."""
    summarised = summarise(
        rows, rounds=run["rounds"] if run.get("ended") else setting.rounds,
        higher=setting.metric.higher, validated_higher=setting.metrics[0].higher,
    )  # fmt: skip
    scores = {
        name: summarised[name] for name in ("last", "best", "best_round", "mean_tail", "best_val")
    }
    if not rows:  # its history was not kept
        scores["last"] = run.get(setting.metric.column)
    return scores | dict.fromkeys(HEADLINE_ONLY)


# --- reading a folder ------------------------------------------------------------------------------


def _read(
    out: Path,
) -> tuple[str, list[SettingInfo], pd.DataFrame, pd.DataFrame, bool, Facts]:
    """Name, settings, summary, history, whether it is finished, and record; checked against each other."""
    study, record = Folder(out).contents()
    all_keys = settings_of(study)
    for keys in all_keys:
        check_name(keys["name"])  # it is part of file names
        check_kinds(keys, out / "study.yaml")
    settings = {
        keys["name"]: SettingInfo.of(keys, out, record.get("settings") or {}) for keys in all_keys
    }
    file, packed, table = out / "history.csv", out / "history.csv.xz", out / "summary.csv"
    file = packed if packed.exists() and not file.exists() else file
    history, summary, finished = Table(HISTORY), Table(SUMMARY), False
    if file.exists():
        history = Table.read(file, filled=FILLED_HISTORY, present=ALWAYS)
    runs = _check_history(history, settings, file)
    if table.exists():
        summary = Table.read(table, filled=FILLED_SUMMARY, present=ALWAYS_SUMMARY, whole=True)
        _check_settings(summary, settings, table)
        if not summary:
            fix = f"delete it, and {how_to_resume(out)} writes it again"
            raise InputError(str(table), "holds no runs", fix=fix)
        finished = True
        for keys in all_keys:  # the runs of a part are written together
            planned = [len(p["methods"]) * len(p["seeds"]) for p in (keys, *added_to(keys))]
            least = sum(planned) if len(planned) > 1 else 1
            finished &= len(summary.where(setting=keys["name"])) >= least
    if not finished:
        done = set(summary.column("run"))
        running = {run: rows for run, rows in runs.items() if run not in done}
        later = so_far(running, all_keys, settings, out / "checkpoints")
        columns = [*summary.columns, *(name for row in later for name in row)]
        summary = Table(dict.fromkeys(columns), [*summary, *later])
    _check_summary(summary, runs, settings, file)
    if not summary:
        fix = f"wait for its first evaluation, or go on with {how_to_resume(out)}"
        raise InputError("out", "holds a study without results yet", str(out), fix)
    frames = [  # also with the columns that came later than the files
        Table(dict.fromkeys([*columns, *rows.columns]), rows).frame()
        for columns, rows in ((SUMMARY, summary), (HISTORY, history))
    ]
    return study.get("name", ""), [*settings.values()], frames[0], frames[1], finished, record


def so_far(
    runs: Mapping[str, list[Row]],
    all_keys: Sequence[Facts],
    settings: Mapping[str, SettingInfo],
    checkpoints: Path,
) -> list[Row]:
    """The summary of runs under way, from their history; checkpoints know which of them are over."""
    noted: dict[str, Facts] = {}  # by run
    for part in (part for keys in all_keys for part in part_keys(keys)):
        # there may be no checkpoint yet, or one that is just being replaced
        with contextlib.suppress(LookupError, ValueError, OSError):
            for one in newest(checkpoints, part):
                noted |= read_notes(one.path)["runs"] if one.path else {}
    rows = []
    for run, mine in runs.items():
        facts, setting = noted.get(run, {}), settings[mine[0]["setting"]]
        rounds, diverged = facts.get("ended_at") or setting.rounds, bool(facts.get("diverged"))
        row = {name: mine[0][name] for name in ABOUT}
        row |= summarise(mine, rounds=rounds, higher=setting.metric.higher)
        broke = (diverged and facts.get("broke")) or ()
        row |= zip(("broke_round", "broke_client", "broke_slot"), broke, strict=False)
        row |= {"diverged": diverged, "set_aside": mine[-1].get("x_set_aside")}
        rows.append(row | {"ended": facts.get("ended", "")})
    return rows


def _check_settings(table: Table, settings: Mapping[str, SettingInfo], file: Path) -> None:
    """Refuse rows of settings that the study does not have."""
    if other := sorted(set(table.column("setting")) - settings.keys()):
        fix = f"bring back {file.name} and study.yaml of the same study"
        raise InputError(str(file), "has rows of a setting that study.yaml lacks", other[0], fix)


def _check_history(
    history: Table, settings: Mapping[str, SettingInfo], file: Path
) -> dict[str, list[Row]]:
    """The rows of each run; refuses missing and doubled ones, as far as they show it."""
    _check_settings(history, settings, file)
    runs: dict[str, list[Row]] = {}
    for row in history:
        mine = runs.setdefault(row["run"], [])
        if mine and row["round"] <= mine[-1]["round"]:
            rule = f"must have the rounds of {row['run']} in order, each once; round {row['round']} is not"
            raise InputError(str(file), rule, fix=RESTORE)
        mine.append(row)
        # every merge is evaluated, or every round of a run that never merges: so rows are counted
        numbered = settings[row["setting"]].keys.get("eval_every", 1) == 1
        if numbered and len(mine) != (row["merges"] or row["round"]):
            rule = f"lacks a row of {row['run']} before round {row['round']}"
            raise InputError(str(file), rule, fix=RESTORE)
    return runs


def _check_summary(
    summary: Table,
    runs: Mapping[str, list[Row]],
    settings: Mapping[str, SettingInfo],
    file: Path,
) -> None:
    """Refuse a history that was edited, as far as the summary shows it; `file` is the history's."""
    if lacking := sorted(runs.keys() - set(summary.column("run"))):
        place = str(file.with_name("summary.csv"))
        raise InputError(place, "lacks a run of history.csv", lacking[0], RESTORE)
    for row in summary if runs else ():
        rows, metric = runs.get(row["run"], []), settings[row["setting"]].metric
        scores = [one["test_accuracy"] for one in rows]
        finite = [score for score in scores if score is not None and not math.isnan(score)]
        best = (max if metric.higher else min)(finite, default=None)
        implied = {"last": scores[-1] if rows else None, "best": best}
        if rows:
            implied["merges"] = rows[-1]["merges"]
            implied |= {} if rows[-1]["merges"] else {"rounds": rows[-1]["round"]}
        for name, value in implied.items():
            if value != row.get(name) and value == value:  # a metric may be undefined: NaN
                rule = f"does not fit summary.csv, where {row['run']} has {row.get(name)} as {name}"
                raise InputError(str(file), rule, value, RESTORE)
