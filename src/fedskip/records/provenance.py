"""The folder of a study: what it holds, and how that was made.

study.yaml holds the study as it was begun and, under `record`, what it noted about itself: what shapes the
arithmetic, and the data in numbers. A study that resumes compares these with what it finds.
"""

import itertools
import json
import os.path
from pathlib import Path
from typing import Any

import yaml

from fedskip.files import clear_parts, digest, write_text
from fedskip.input.errors import InputError, flag, option, require, resuming_it
from fedskip.input.plain import load, read_text
from fedskip.records.checkpoint import found, read_history, read_notes
from fedskip.records.history import HistoryFile
from fedskip.records.table import Table
from fedskip.spec.paths import moved, read_in, written_in
from fedskip.spec.setting import KEYS
from fedskip.spec.study import RECORD, as_yaml

Facts = dict[str, Any]
PARTS = ("checkpoints", "models", "figures")  # folders in it


class Folder:
    """The folder of a study. A study is plain values here, as study.yaml has them."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, path / "study.yaml"

    def study(self) -> Facts:
        """The study that was begun here, with the paths of its files as they are from here."""
        return moved(self._written(), read_in(self.path))

    def _written(self) -> Facts:
        """As it is in the file."""
        return {key: value for key, value in self._read().items() if key != RECORD}

    def record(self) -> Facts:
        """What it noted about itself."""
        return dict(self._read().get(RECORD) or {})

    def write(self, text: str, record: Facts) -> None:
        """Write a study given as YAML, its paths as they are from the folder; the record gets a digest."""
        study = moved(yaml.safe_load(text), written_in(self.path))
        record["study"] = _digest(study)
        write_text(self.file, as_yaml(study) + yaml.safe_dump({RECORD: record}, sort_keys=False))

    def _read(self) -> Facts:
        if not self.file.exists():
            return {}
        found: Facts = load(read_text(self.file), str(self.file))
        _refuse_damaged(found, str(self.file))
        return found

    @property
    def identity(self) -> str:
        """A digest of the study, which stays when it is made longer and when files are moved."""
        return _digest(moved(without_rounds(self._written()), os.path.basename))

    def is_finished(self) -> bool:
        """Whether all settings have done their rounds and all their runs are in the summary."""
        summary, settings = self.path / "summary.csv", settings_of(self.study())
        if not settings or not summary.exists():
            return False
        try:
            written = set(Table.read(summary).column("run"))
        except InputError:  # it is written again
            return False
        return all(self._is_done(setting, written) for setting in settings)

    def _is_done(self, setting: Facts, written: set[str]) -> bool:
        saved, rounds = found(self.path / "checkpoints", setting["name"]), setting.get("rounds")
        if not saved or rounds is None or saved[-1][0] < rounds:
            return False
        return set(read_notes(saved[-1][1])["runs"]) <= written

    def recover(self, history: HistoryFile) -> None:
        """Up to the last checkpoints, the history is what they hold, whatever became of its file."""
        names = [setting["name"] for setting in settings_of(self.study())]
        history.table.rows = [row for row in history.table if row["setting"] in names]
        for name in names:
            for round, file in found(self.path / "checkpoints", name)[-1:]:
                recorded = read_history(file)
                if recorded is not None:
                    history.recover(name, round, recorded)

    def refuse_taken(self, study: Facts) -> None:
        """Refuse to begin a study in a folder that holds one, parts of one, or anything else."""
        another = f"choose another folder ({option('out', 'FOLDER')})"
        if self.file.exists():
            if not _alike(self.study(), study, self.path):
                raise InputError("out", "holds another study", str(self.path), another)
            if self.is_finished():
                raise InputError("out", "holds this study, finished", str(self.path), another)
            fix = f"continue it with {resuming_it(self.path)}"
            raise InputError("out", "holds this study, unfinished", str(self.path), fix)
        for part in ("checkpoints", "history.csv", "partition-*.npz"):
            if any(self.path.glob(part)):
                rule = f"holds {part}, but not the study.yaml that it belongs to"
                raise InputError("out", rule, str(self.path), f"{another}, or empty it")
        held = [path.name for path in self.path.iterdir()] if self.path.is_dir() else []
        others = sorted(name for name in held if not name.startswith("."))
        if others:  # which the study's own files might replace
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            raise InputError("out", f"is not empty: it holds {others[0]}{more}", str(self.path), another)

    def refuse_other(self, study: Facts) -> None:
        """Refuse to go on with another study than the one that was begun here, but for its rounds."""
        if not _alike(without_rounds(self.study()), without_rounds(study), self.path):
            raise InputError("out", "holds another study", str(self.path), "choose its own folder")

    def refuse_edited(self) -> None:
        """Refuse to go on where the file is not what the study wrote."""
        if self.record().get("study") != _digest(self._written()):
            fix = f"undo that, or run the changed study into another folder ({option('out', 'FOLDER')}); "
            fix += f"{flag('anyway')} mixes the two. More rounds are had with {option('rounds', 'N')}"
            raise InputError(str(self.file), "was changed after the study began", fix=fix)

    def refuse_blocked(self) -> None:
        """Refuse to go on where a file, or a link to nothing, takes the place of a folder that is needed."""
        for path in (self.path / part for part in PARTS):
            if os.path.lexists(path) and not path.is_dir():
                raise InputError(str(path), "must be a folder", fix="move away what is there, then resume")

    def refuse_gone(self) -> None:
        """Refuse to go on where somebody has taken the folder away while the study ran."""
        if not self.file.exists():
            fix = "bring the folder back and resume it, or begin again in another one"
            raise InputError(str(self.file), "is gone: its folder was moved or deleted meanwhile", fix=fix)

    def clear(self) -> None:
        """Remove what a kill has left half written."""
        for part in ("", *PARTS):
            clear_parts(self.path / part)


def _refuse_damaged(found: Any, file: str) -> None:
    """Refuse a study.yaml that does not have the parts which a study writes."""
    parts = found if isinstance(found, dict) else {}
    record = parts.get(RECORD, {})
    known = record.get("settings", {}) if isinstance(record, dict) else None
    facts = list(known.values()) if isinstance(known, dict) else [None]
    settings = parts.get("settings")
    named = isinstance(settings, list) and all(isinstance(s, dict) and "name" in s for s in settings)
    fix = f"begin it in another folder with `fedskip run {file}`, or bring back what a study wrote"
    require(file, named or RECORD in parts, "is of no study that was begun", fix=fix)
    for part, ok in {
        "settings": named and bool(settings),
        RECORD: isinstance(record, dict) and (not known or isinstance(record.get("versions"), dict)),
        f"{RECORD}.settings": all(map(_has_facts, facts)),
    }.items():
        fix = f"bring back what the study wrote, or begin again in another folder ({option('out', 'FOLDER')})"
        require(f"{file} {part}", ok, "is damaged", fix=fix)


def _has_facts(setting: Any) -> bool:
    """Whether what was noted of a setting is all there."""
    if not isinstance(setting, dict) or "parameters" not in setting:
        return False
    parts = [setting.get(key) for key in ("machine", "divisions", "data")]
    counts = [part.get(key) for part in parts[:1] if isinstance(part, dict) for key in ("processes", "rows")]
    return all(isinstance(part, dict) for part in parts) and all(isinstance(n, int | None) for n in counts)


def next_folder(name: str) -> Path:
    """`runs/NAME-N` with the first N that is free."""
    return next(path for n in itertools.count(1) if not (path := Path("runs") / f"{name}-{n}").exists())


def _digest(study: Facts) -> str:
    """Of plain values, whatever the order of their keys."""
    return digest(json.dumps(study, sort_keys=True, default=str).encode())


def _alike(one: Facts, other: Facts, folder: Path) -> bool:
    """Whether two studies are the same; paths are compared as they are from a folder."""
    here = written_in(folder)
    return moved(one, here) == moved(other, here)


def without_rounds(study: Facts) -> Facts:
    """A study that may be made longer."""
    settings = [{**setting, "rounds": None} for setting in study.get("settings") or ()]
    return {**study, "rounds": None, "settings": settings}


def settings_of(study: Facts) -> list[Facts]:
    """The keys of each setting, those that all share included."""
    shared = {key: value for key, value in study.items() if key in KEYS and key != "name"}
    return [shared | own for own in study.get("settings") or ()]


def compare(before: Facts, now: Facts, out: Path) -> None:
    """Refuse to go on where what shapes the arithmetic has changed."""
    one, other = _flat(before), _flat(now)
    changes = [
        f"{key} was {one.get(key)!r} and is {other.get(key)!r}"
        for key in sorted({*one, *other})
        if one.get(key) != other.get(key)
    ]
    if changes:
        raise InputError(
            "resume", f"would not repeat the same numbers: {'; '.join(changes)}", ...,
            f"restore that, or go on all the same with {resuming_it(out, anyway=True)}",
        )  # fmt: skip


def _flat(facts: Facts) -> Facts:
    found = {"parameters": facts["parameters"]}
    for part in ("versions", "machine", "divisions", "data"):
        found |= {f"{part}.{key}": value for key, value in facts.get(part, {}).items()}
    return found
