"""What a folder holds of a study: its settings and tables, whoever made it and however far it came."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

import yaml

from fedskip.input.errors import InputError, said, unknown
from fedskip.methods.grammar import parse
from fedskip.records.history import HISTORY, SUMMARY, summarise
from fedskip.records.provenance import Facts, Folder, settings_of
from fedskip.records.table import Table


@dataclass(frozen=True)
class About:
    """A setting as study.yaml has it, where Python objects are only named."""

    keys: Facts
    out: Path  # the folder of its study
    divisions: dict[int, Facts] = field(default_factory=dict)  # in numbers, by partition seed

    called: str = ""  # where several studies are looked at together and it has a namesake

    @property
    def name(self) -> str:
        return self.called or str(self.keys["name"])

    @property
    def rounds(self) -> int:
        return int(self.keys.get("rounds") or 0)

    @property
    def reference(self) -> bool:
        """Whether it stands beside the others, as a line to compare with."""
        return bool(self.keys.get("reference"))

    @property
    def metric(self) -> str:
        return str(self.keys.get("metric", "accuracy"))

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

    @classmethod
    def read(cls, out: Path, summary: Table | None = None) -> Self:
        """What a folder holds, whatever made it and however far it came; reading changes nothing in it.

        Args:
            summary: of a study that has just ended, before it is written.
        """
        if not Folder(out).file.exists():
            raise InputError("out", "holds no study: there is no study.yaml", str(out))
        try:
            return cls._read(out, summary)
        except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
            if isinstance(error, InputError):
                raise
            rule = f"holds damaged files ({type(error).__name__}: {said(error)})"
            raise InputError("out", rule, str(out), "bring back study.yaml and history.csv") from error

    @classmethod
    def _read(cls, out: Path, summary: Table | None) -> Self:
        folder, history = Folder(out), out / "history.csv"
        study = folder.study()
        rows = Table.read(history) if history.exists() else Table(HISTORY)
        noted = folder.record().get("settings") or {}
        settings = tuple(
            About(keys, out, dict(noted.get(keys["name"], {}).get("divisions") or {}))
            for keys in settings_of(study)
        )
        written = out / "summary.csv"  # with it a study is finished
        finished = summary is not None or written.exists()
        if summary is None:
            summary = Table.read(written) if finished else so_far(rows, settings)
        if not summary:
            fix = "wait for its first evaluation, or go on with `fedskip resume`"
            raise InputError("out", "holds a study without results yet", str(out), fix)
        return cls(out, rows, summary, study.get("name", ""), settings, finished)

    @property
    def compared(self) -> list[About]:
        """The settings whose methods are compared; references stand beside them."""
        return [setting for setting in self.settings if not setting.reference]

    @property
    def baseline(self) -> str:
        """What methods are compared with unless told otherwise: FedAvg, or else the first."""
        labels = self.labels()
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
        """What the runs of a method came to, by seed; None where one diverged."""
        rows = self.summary.where(setting=setting, method=method)
        return {row["seed"]: None if row["diverged"] else row[score] for row in rows}

    def find(self, method: str) -> str:
        """A method that was run, as tables call it; studies' way of writing it will do."""
        labels = self.labels()
        for label in labels:
            if method.lower() == label.lower():
                return label
        try:
            [found] = parse(method)
        except (InputError, ValueError):
            raise unknown("baseline", method, labels) from None
        if found.label not in labels:
            raise unknown("baseline", found.label, labels)
        return found.label


def so_far(history: Table, settings: Iterable[About]) -> Table:
    """The summary of runs that are under way, from their history."""
    rounds = {setting.name: setting.rounds for setting in settings}
    rows = []
    for run in dict.fromkeys(history.column("run")):
        mine = history.where(run=run)
        about = {name: mine[0][name] for name in ("setting", "run", "method", "period", "seed")}
        rows.append(about | summarise(mine, rounds=rounds[mine[0]["setting"]]) | {"diverged": False})
    return Table(SUMMARY, rows)
