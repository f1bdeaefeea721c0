"""Studies grow: what is added to one that is finished, and what stays of what is there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedskip.files import write_text
from fedskip.input.errors import require
from fedskip.methods.grammar import parse_many
from fedskip.records.history import HistoryFile
from fedskip.records.provenance import Facts, Folder, compare_data
from fedskip.records.table import Row, Table
from fedskip.spec import Draft, Setting, StudySpec
from fedskip.spec.keys import seeds as seeds_of
from fedskip.spec.parts import Part, grown, parts
from fedskip.study.prepare import Prepared
from fedskip.version import versions

log = logging.getLogger(__name__)


def grown_study(spec: StudySpec, settings: Sequence[Setting], methods: Any, seeds: Any) -> StudySpec:
    """The study with more methods or seeds in all settings that are compared, which are given as resolved."""
    wanted, later = _asked(methods, parse_many), _asked(seeds, seeds_of)
    fix = "name methods or seeds that the study does not have"
    require("extend", bool(wanted or later), "must be given methods or seeds", fix=fix)
    drafts, new = [], False
    for draft, setting in zip(spec.settings, settings, strict=True):
        more = setting if setting.reference else grown(setting, wanted, later)
        drafts.append(Draft({**draft.keys, "added": more.added}))
        new |= more.added != setting.added
    require("extend", new, "would add no run: all of them are there already", fix=fix)
    compared = [setting for setting in settings if not setting.reference]
    for method in wanted:
        if all(method in setting.all_methods for setting in compared):
            log.warning("%s is there already, and stays as it is", method.label)
    return replace(spec, settings=tuple(drafts))


def _asked(written: Any, read: Any) -> list[Any]:
    """What was asked for, as it is read; None and () ask for nothing."""
    return [] if written is None or written == () else [*read(written)]


def noted(record: Facts, begun: Sequence[Setting], settings: Sequence[Setting]) -> Facts:
    """The record, with when and with what the parts were added that had not begun."""
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    for before, after in zip(begun, settings, strict=True):
        for part in parts(after)[1 + len(before.added or ()) :]:
            made_with(record, part).update(when=now, versions=versions())
    return record


def made_with(record: Facts, part: Setting) -> Facts:
    """Where the record has the versions that a part was made with: those of additions are their own."""
    number = part.number if isinstance(part, Part) else 0
    made: Facts = record.setdefault("added", {}).setdefault(part.key, {}) if number else record
    return made


def refuse_other_data(prepared: Prepared, record: Facts, out: Path) -> None:
    """Refuse to add runs on other data, or another division of them, than those that are there have."""
    known = record.get("settings", {}).get(prepared.setting.name)
    if known is not None and prepared.setting.key not in record["settings"]:
        divisions = {seed: each.facts() for seed, each in prepared.divisions.items()}
        compare_data(known, {"data": dict(prepared.pool.digests), "divisions": divisions}, out)


def kept_rows(folder: Folder, history: HistoryFile, parts: Sequence[Setting]) -> list[Row]:
    """The rows up to the last checkpoints; those after them will be found again."""
    rounds = {name: round for part in parts for name, round in folder.saved_rounds(part.key).items()}
    return [dict(row) for row in history.table if row["round"] <= rounds.get(row["run"], 0)]


class Done:
    """The parts of settings that are done: what is written of them is kept as it is."""

    def __init__(self, folder: Folder, parts: Sequence[Setting]) -> None:
        self._folder, self._keys = folder, {part.key for part in parts}
        runs = {name for part in parts for name in part.run_names}
        file = folder.path / "clients.csv"
        by_client = Table.read(file) if runs and file.exists() else Table(())
        self._rows = [row for row in folder.summary() if row["run"] in runs]
        self._clients = [row for row in by_client if row["run"] in runs]

    def __contains__(self, part: str) -> bool:
        return part in self._keys

    def summary(self, part: Setting) -> list[Row]:
        return [row for row in self._rows if row["run"] in part.run_names]

    def clients(self, part: Setting) -> list[Row]:
        return [row for row in self._clients if row["run"] in part.run_names]

    def only_those_are_written(self) -> None:
        """What is not done is in no summary; with the last of it, a study is finished."""
        (self._folder.path / "report.html").unlink(missing_ok=True)
        file = self._folder.path / "summary.csv"
        if not self._rows:
            file.unlink(missing_ok=True)
        elif len(self._rows) < len(self._folder.summary()):
            write_text(file, Table(self._folder.summary().columns, self._rows).csv())
