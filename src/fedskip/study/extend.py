"""Adds runs to a study that is finished; what is there stays as it is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedskip.config import Setting, StudySpec
from fedskip.config.fields import read_seeds
from fedskip.errors import require
from fedskip.methods.grammar import parse_many
from fedskip.records.folder import Facts, Folder, compare_data
from fedskip.records.history import HistoryFile
from fedskip.records.table import Row
from fedskip.study.prepare import Prepared
from fedskip.version import versions

log = logging.getLogger(__name__)


def extended(spec: StudySpec, settings: Sequence[Setting], methods: Any, seeds: Any) -> StudySpec:
    """The study with more methods or seeds in all settings that are compared, which are given as resolved."""
    wanted, later = _asked(methods, parse_many), _asked(seeds, read_seeds)
    fix = "name methods or seeds that the study does not have"
    require("extend", bool(wanted or later), "must be given methods or seeds", fix=fix)
    drafts, new = [], False
    for draft, setting in zip(spec.settings, settings, strict=True):
        more = setting if setting.reference else setting.extended(wanted, later)
        drafts.append(replace(draft, record=more.record))
        new |= more.record != setting.record
    require("extend", new, "would add no run: all of them are there already", fix=fix)
    compared = [setting for setting in settings if not setting.reference]
    for method in wanted:
        if all(method in setting.all_methods for setting in compared):
            log.warning("%s is there already, and stays as it is", method.label)
    return replace(spec, settings=tuple(drafts))


def _asked(written: Any, read: Any) -> list[Any]:
    """What was asked for, as it is read; None and () ask for nothing."""
    return [] if written is None or written == () else [*read(written)]


def note_additions(record: Facts, begun: Sequence[Setting], settings: Sequence[Setting]) -> None:
    """Note when and with which versions the parts were added that had not begun."""
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    for before, after in zip(begun, settings, strict=True):
        for part in after.parts()[1 + len(before.record.added) :]:
            made_with(record, part).update(when=now, versions=versions())


def made_with(record: Facts, part: Setting) -> Facts:
    """Where the record has the versions that a part was made with: those of additions are their own."""
    added = bool(part.earlier)
    made: Facts = record.setdefault("added", {}).setdefault(part.key, {}) if added else record
    return made


def refuse_other_data(prepared: Prepared, record: Facts, out: Path) -> None:
    """Refuse to add runs on other data, or another division of them, than those that are there have."""
    begun = record.get("settings", {}).get(prepared.setting.name)
    if begun is not None and prepared.setting.key not in record["settings"]:
        divisions = {seed: each.facts() for seed, each in prepared.divisions.items()}
        compare_data(begun, {"data": dict(prepared.pool.digests), "divisions": divisions}, out)


def kept_rows(folder: Folder, history: HistoryFile, parts: Sequence[Setting]) -> list[Row]:
    """The rows up to the last checkpoints; those after them will be found again."""
    rounds = {
        name: round for part in parts for name, round in folder.saved_rounds(part.key).items()
    }
    return [dict(row) for row in history.table if row["round"] <= rounds.get(row["run"], 0)]
