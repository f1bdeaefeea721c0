"""What a folder holds of a study: its settings and tables, whoever made it and however far it came."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import yaml

from fedskip.input.errors import InputError, resuming, said, unknown
from fedskip.methods.grammar import parse
from fedskip.records.checkpoint import newest, read_notes
from fedskip.records.history import ALWAYS, ALWAYS_SUMMARY, HISTORY, SUMMARY, summarise
from fedskip.records.provenance import Facts, Folder, check_kinds, part_keys, settings_of
from fedskip.records.table import Row, Table
from fedskip.report.units import Metric
from fedskip.spec.setting import check_name

# what a row of the summary must hold, and one of the history; what a metric or a merge gives may be empty
FILLED = ("setting", "run", "method", "period", "seed", "rounds", "merges", "bytes_total", "diverged")
NEEDED = (
    "setting", "run", "method", "period", "seed", "round", "merges", "bytes_down", "bytes_up", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class About:
    """A setting as study.yaml has it, where Python objects are only named."""

    keys: Facts
    out: Path  # the folder of its study
    divisions: dict[int, Facts] = field(default_factory=dict)  # in numbers, by partition seed
    short: dict[int, int] = field(default_factory=dict)  # clients that fill no batch, by partition seed
    called: str = ""  # where several studies are looked at together and it has a namesake
    known: tuple[Metric, ...] = ()  # its metrics, as the study has noted them
    by: str = ""  # the further metric that it is looked at by
    guessing: Facts = field(default_factory=dict)  # what one answer for all samples would score
    warned: tuple[str, ...] = ()  # what was odd about it
    precision: str = ""  # that it was trained in, as the study has noted it
    parts: Sequence[Sequence[str]] = ()  # the methods that it began with, and those of every addition

    @property
    def name(self) -> str:
        return self.called or str(self.keys["name"])

    @property
    def rounds(self) -> int:
        return int(self.keys.get("rounds") or 0)

    @property
    def marks(self) -> list[str]:
        """What has to be said wherever it is shown: if it is less than it should be, its note, few digits."""
        counts = {"rounds": self.rounds, "seeds": len(self.keys.get("seeds") or ())}
        whole = {what: int(self.keys.get(f"of_{what}") or 0) for what in counts}
        less = [f"{n:,} of {whole[what]:,} {what}" for what, n in counts.items() if n < whole[what]]
        note = self.keys.get("note")
        said = [*[f"reduced: {', '.join(less)}"] * bool(less), *[str(note)] * bool(note)]
        return [*said, *["in bf16"] * (self.precision == "bf16")]

    @property
    def reference(self) -> bool:
        """Whether it stands beside the others, as a line to compare with."""
        return bool(self.keys.get("reference"))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All of its metrics; the first is the headline. Older studies have noted only their names."""
        named = self.keys.get("metric", "accuracy")
        names = [str(one) for one in (named if isinstance(named, list) else [named])]
        return self.known or tuple(Metric(name, name in ("accuracy", "label_accuracy")) for name in names)

    @property
    def metric(self) -> Metric:
        """The one that it is looked at by: the headline, unless told otherwise."""
        return next((one for one in self.metrics if one.name == self.by), self.metrics[0])

    def clients(self, seed: int) -> int:
        """How many clients take part at a seed."""
        fixed = self.keys.get("partition_seed")
        division = self.divisions.get(seed if fixed is None else fixed) or {}
        known = division.get("clients") or self.keys.get("clients")
        if known is None:
            raise InputError("seed", f"is not one that {self.out} has noted the clients of", seed)
        return int(known)


@dataclass(frozen=True)
class Recorded:
    """The folder of a study, and its tables."""

    out: Path
    history: Table
    summary: Table
    name: str = field(repr=False)  # of the study
    settings: tuple[About, ...] = field(repr=False)
    finished: bool = True  # else the tables hold what there is so far
    parts: tuple[Self, ...] = field(default=(), repr=False)  # the studies that it was put together from

    @classmethod
    def read(cls, out: str | os.PathLike[str]) -> Self:
        """What a folder holds, whatever made it and however far it came; reading changes nothing in it."""
        out = Path(out)
        if not Folder(out).file.exists():
            raise InputError("out", "holds no study: there is no study.yaml", str(out))
        try:
            return cls._read(out)
        except (ValueError, KeyError, TypeError, AttributeError, csv.Error, yaml.YAMLError) as error:
            if isinstance(error, InputError):
                raise
            rule = f"holds damaged files ({type(error).__name__}: {said(error)})"
            raise InputError("out", rule, str(out), "bring back study.yaml and history.csv") from error

    @classmethod
    def _read(cls, out: Path) -> Self:
        folder, history = Folder(out), out / "history.csv"
        study = folder.study()
        for keys in settings_of(study):
            check_name(keys["name"])  # it names files
            check_kinds(keys, folder.file)
        written = out / "summary.csv"
        rows = Table.read(history, filled=NEEDED, present=ALWAYS) if history.exists() else Table(HISTORY)
        noted = folder.record().get("settings") or {}
        settings = [_about(keys, out, noted) for keys in settings_of(study)]
        _refuse_unknown(rows, settings, history)
        summary, finished = Table(SUMMARY), False
        if written.exists():
            summary = Table.read(written, filled=FILLED, present=ALWAYS_SUMMARY, whole=True)
            _refuse_unknown(summary, settings, written)
            if not summary:
                fix = f"delete it, and {resuming(out)} writes it again"
                raise InputError(str(written), "holds no runs", fix=fix)
            finished = all(_is_whole(keys, summary) for keys in settings_of(study))
        if not finished:
            done = set(summary.column("run"))
            under_way = [row for row in rows if row["run"] not in done]
            later = so_far(under_way, study, settings, out / "checkpoints")
            summary = Table(dict.fromkeys([*summary.columns, *later.columns]), [*summary, *later])
        _refuse_unlike(rows, summary, settings, history)
        if not summary:
            fix = f"wait for its first evaluation, or go on with {resuming(out)}"
            raise InputError("out", "holds a study without results yet", str(out), fix)
        return cls(out, rows, summary, study.get("name", ""), tuple(settings), finished)

    @property
    def compared(self) -> list[About]:
        """The settings whose methods are compared; references stand beside them."""
        return [setting for setting in self.settings if not setting.reference]

    @property
    def marks(self) -> list[str]:
        """What has to be said of its settings wherever they are shown together."""
        return list(dict.fromkeys(words for setting in self.settings for words in setting.marks))

    @property
    def baseline(self) -> str:
        """What methods are compared with unless told otherwise: FedAvg, or else the first."""
        labels = self.labels()
        if not labels:
            raise InputError("out", "holds nothing to compare: every setting is a reference", str(self.out))
        return "FedAvg" if "FedAvg" in labels else labels[0]

    def labels(self, setting: str | None = None) -> list[str]:
        """The methods, as tables call them."""
        names = {setting} if setting else {one.name for one in self.compared}
        return list(dict.fromkeys(row["method"] for row in self.summary if row["setting"] in names))

    @cached_property
    def _histories(self) -> dict[tuple[str, str], dict[str, Table]]:
        """The history of every run, by setting and method."""
        found: dict[tuple[str, str], dict[str, Table]] = {}
        for row in self.history:
            runs = found.setdefault((row["setting"], row["method"]), {})
            runs.setdefault(row["run"], Table(self.history.columns)).rows.append(row)
        return found

    def histories(self, setting: str, method: str) -> list[Table]:
        """The history of each run of a method, seed by seed."""
        return list(self._histories.get((setting, method), {}).values())

    def scores(self, setting: str, method: str, score: str = "mean_tail") -> dict[int, float | None]:
        """What the runs of a method came to, by seed; None where one diverged or has no such number."""
        rows = self._runs.get((setting, method), ())
        return {row["seed"]: _finite(row.get(score)) if not row["diverged"] else None for row in rows}

    @cached_property
    def _runs(self) -> dict[tuple[str, str], list[Row]]:
        """The rows of the summary, by setting and method."""
        found: dict[tuple[str, str], list[Row]] = {}
        for row in self.summary:
            found.setdefault((row["setting"], row["method"]), []).append(row)
        return found

    def find(self, method: str, field: str = "baseline") -> str:
        """A method that was run, as tables call it; studies' way of writing it will do."""
        labels = self.labels()
        for label in labels:
            if method.lower() == label.lower():
                return label
        try:
            [found] = parse(method)
        except (InputError, ValueError):
            raise unknown(field, method, labels) from None
        names = [one.name for one in dataclasses.fields(found)]
        called = {found.label, found.label_with(names), *(found.label_with([name]) for name in names)}
        for label in labels:  # in a grid, what is at its default is shown, too
            if label in called:
                return label
        raise unknown(field, found.label, labels)


def _whole(keys: Facts) -> Facts:
    """The keys of a setting, in which methods and seeds that were added are among the others."""
    added = keys.get("added") or ()
    found = {key: value for key, value in keys.items() if key != "added"}
    for name in ("methods", "seeds") if added else ():
        found[name] = list(dict.fromkeys(one for some in (keys, *added) for one in some[name]))
    return found


def _is_whole(keys: Facts, summary: Table) -> bool:
    """Whether all runs of a setting are in the summary, into which those of a part come together."""
    written = len(summary.where(setting=keys["name"]))
    runs = [len(some["methods"]) * len(some["seeds"]) for some in (keys, *(keys.get("added") or ()))]
    return written >= (sum(runs) if len(runs) > 1 else 1)


def so_far(history: Iterable[Row], study: Facts, settings: Sequence[About], checkpoints: Path) -> Table:
    """The summary of runs that are under way, from their history; a checkpoint knows which are over."""
    rounds = {setting.name: setting.rounds for setting in settings}
    higher = {setting.name: setting.metric.higher for setting in settings}
    noted: dict[str, Facts] = {}  # by run
    for key in (key for keys in settings_of(study) for key in part_keys(keys)):
        with contextlib.suppress(LookupError, ValueError, OSError):  # none yet, or it makes way for the next
            for one in newest(checkpoints, key):
                noted |= read_notes(one.path)["runs"] if one.path else {}
    runs: dict[str, list[Row]] = {}
    for row in history:
        runs.setdefault(row["run"], []).append(row)
    rows = []
    for run, mine in runs.items():
        about = {name: mine[0][name] for name in ("setting", "run", "method", "period", "seed")}
        lost = noted.get(run, {})
        diverged = bool(lost.get("diverged"))
        broke, name = (diverged and lost.get("broke")) or (), mine[0]["setting"]
        row = about | summarise(mine, rounds=lost.get("ended_at") or rounds[name], higher=higher[name])
        row |= zip(("broke_round", "broke_client", "broke_slot"), broke, strict=False)
        row |= {"diverged": diverged, "set_aside": mine[-1].get("x_set_aside")}
        rows.append(row | {"ended": lost.get("ended", "")})
    return Table(dict.fromkeys([*SUMMARY, *(name for row in rows for name in row)]), rows)


def _about(keys: Facts, out: Path, noted: Facts) -> About:
    """A setting, and what the study has noted of its parts."""
    facts = [noted.get(key, {}) for key in part_keys(keys)]

    def by_seed(name: str) -> dict[Any, Any]:
        return {seed: value for part in facts for seed, value in (part.get(name) or {}).items()}

    return About(
        _whole(keys), out, by_seed("divisions"), by_seed("short"),
        guessing=guesses(part.get("guessing") or {} for part in facts),
        known=tuple(Metric(**one) for one in facts[0].get("metrics") or ()),
        precision=" and ".join(dict.fromkeys(_precisions(facts))),
        warned=tuple(dict.fromkeys(str(line) for part in facts for line in part.get("warned") or ())),
        parts=[keys.get("methods", ()), *(one["methods"] for one in keys.get("added") or ())],
    )  # fmt: skip


def _precisions(parts: Iterable[Facts]) -> Iterator[str]:
    for part in parts:
        if known := (part.get("machine") or {}).get("precision"):
            yield str(known)


def guesses(parts: Iterable[Facts]) -> Facts:
    """What one answer for all would score, over the seeds of all parts."""
    known = [part for part in parts if part]
    scores = {seed: score for part in known for seed, score in part["scores"].items()}
    return {**known[0], "scores": scores} if known else {}


def _refuse_unknown(table: Table, settings: Iterable[About], file: Path) -> None:
    """Refuse rows of settings that the study does not have."""
    if other := sorted({row["setting"] for row in table} - {setting.name for setting in settings}):
        fix = f"bring back {file.name} and study.yaml of the same study"
        raise InputError(str(file), "has rows of a setting that study.yaml lacks", other[0], fix)


def _refuse_unlike(history: Table, summary: Table, settings: Sequence[About], file: Path) -> None:
    """Refuse a history with rows that are missing, doubled or edited, as far as it or the summary tells."""
    higher = {setting.name: setting.metric.higher for setting in settings}
    often = {setting.name for setting in settings if setting.keys.get("eval_every", 1) == 1}
    runs: dict[str, list[Row]] = {}
    fix = "bring back the files as the study wrote them"
    for row in history:
        mine = runs.setdefault(row["run"], [])
        if mine and row["round"] <= mine[-1]["round"]:
            rule = f"must have the rounds of {row['run']} in order, each once; round {row['round']} is not"
            raise InputError(str(file), rule, fix=fix)
        mine.append(row)
        # where every merge is evaluated, or every round of a run that never merges, rows are numbered
        if row["setting"] in often and len(mine) != (row["merges"] or row["round"]):
            raise InputError(str(file), f"lacks a row of {row['run']} before round {row['round']}", fix=fix)
    if lost := sorted(runs.keys() - set(summary.column("run"))):
        raise InputError(str(file.with_name("summary.csv")), "lacks a run of history.csv", lost[0], fix)
    for row in summary if runs else ():
        for name, value in _told(runs.get(row["run"], []), higher[row["setting"]]).items():
            if value != row.get(name) and value == value:  # a metric may be undefined
                rule = f"does not fit summary.csv, where {row['run']} has {row.get(name)} as {name}"
                raise InputError(str(file), rule, value, fix)


def _told(rows: list[Row], higher: bool) -> Row:
    """What a run's history tells of its summary."""
    if not rows:
        return {"last": None, "best": None}
    scores = [row["test_accuracy"] for row in rows]
    known = [score for score in scores if score is not None and not math.isnan(score)]
    best = (max if higher else min)(known, default=None)
    found = {"last": scores[-1], "best": best, "merges": rows[-1]["merges"]}
    return found if rows[-1]["merges"] else {**found, "rounds": rows[-1]["round"]}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
