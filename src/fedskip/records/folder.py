"""The folder of a study: what it holds, and how that was made.

study.yaml holds the study as it was begun and, under `record`, what it noted about itself: what shapes the
arithmetic, and the data in numbers. A study that resumes compares these with what it finds.
"""

import contextlib
import copy
import itertools
import json
import os.path
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from fedskip.config.setting import KEYS, RECORD, part_key
from fedskip.config.tree import flatten, moved, read_in, written_in
from fedskip.config.yaml_text import load, read_text, written
from fedskip.errors import (
    InputError,
    flag,
    how_to_resume_study,
    join_some,
    option,
    require,
    shorten,
)
from fedskip.files import digest, remove_partial_files, write_text
from fedskip.records.checkpoint import Newest, newest, read_history, read_notes
from fedskip.records.history import SUMMARY, HistoryFile
from fedskip.records.table import Table
from fedskip.version import same_device

Facts = dict[str, Any]
PARTS = ("checkpoints", "models", "figures")  # folders in it
FEW = 3  # differences that an error names
DEVICE = "machine.device_name"


class Folder:
    """The folder of a study. A study is plain values here, as study.yaml has them."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, path / "study.yaml"
        self._read_at, self._content = (0, 0), Facts()  # the file's stamp, and what it held

    def study(self) -> Facts:
        """The study that was begun here, with the paths of its files as they are from here."""
        return moved(self._written(), partial(read_in, self.path))

    def _written(self) -> Facts:
        """As it is in the file."""
        return {key: value for key, value in self._read().items() if key != RECORD}

    def record(self) -> Facts:
        """What it noted about itself."""
        return dict(self._read().get(RECORD) or {})

    def contents(self) -> tuple[Facts, Facts]:
        """The study and its record, of a file that is read once."""
        values = self._read()
        study = {key: value for key, value in values.items() if key != RECORD}
        return moved(study, partial(read_in, self.path)), dict(values.get(RECORD) or {})

    def write(self, study: Facts, record: Facts) -> None:
        """Write a study, its paths as they are from the folder; the record gets a digest of it."""
        study = moved(study, partial(written_in, self.path))
        record["study"] = _digest(study)
        write_text(self.file, written(study, compact=True) + written({RECORD: record}))
        self._content, self._read_at = copy.deepcopy({**study, RECORD: record}), self._stamp()

    def _read(self) -> Facts:
        """What the file holds; it is parsed once, until somebody changes it."""
        if not self.file.exists():
            return {}
        stamp = self._stamp()
        if stamp != self._read_at:
            self._content = load(read_text(self.file), str(self.file))
            _refuse_damaged(self._content, str(self.file))
            self._read_at = stamp
        return copy.deepcopy(self._content)

    def _stamp(self) -> tuple[int, int]:
        """When the file was written, and how long it is."""
        stat = self.file.stat()
        return stat.st_mtime_ns, stat.st_size

    @property
    def identity(self) -> str:
        """A digest of the study, which stays when it is made longer, gets more runs, and when files move."""
        return _digest(moved(as_begun(self._written()), os.path.basename))

    def is_finished(self) -> bool:
        """Whether all settings have done their rounds and all their runs are in the summary."""
        settings, written = settings_of(self.study()), self.summary().column("run")
        return bool(settings) and all(
            self.is_done(key, one.get("rounds"), written)
            for one in settings
            for key in part_keys(one)
        )

    def summary(self) -> Table:
        """The runs that are done; none where that cannot be read: it is written again."""
        file = self.path / "summary.csv"
        with contextlib.suppress(InputError):
            return Table.read(file) if file.exists() else Table(SUMMARY)
        return Table(SUMMARY)

    def is_done(self, part: str, rounds: int | None, written: Collection[str]) -> bool:
        """Whether a part of a setting has done its rounds, and its runs are among those that are written."""
        if rounds is None or any(one.round < rounds for one in self._newest(part)):
            return False
        return self.saved_rounds(part).keys() <= set(written)

    def last_rounds(self) -> dict[str, int]:
        """By part of a setting, the round that all its runs have saved; 0: not all have saved any."""
        parts = [key for setting in settings_of(self.study()) for key in part_keys(setting)]
        return {key: min(one.round for one in self._newest(key)) for key in parts}

    def saved_rounds(self, part: str) -> dict[str, int]:
        """By run of a part, the round of the newest checkpoint that holds it; none for those without one."""
        rounds: dict[str, int] = {}
        for one in self._newest(part):
            for run in read_notes(one.path)["runs"] if one.path else ():
                rounds[run] = max(one.round, rounds.get(run, 0))
        return rounds

    def _newest(self, part: str) -> list[Newest]:
        return newest(self.path / "checkpoints", part)

    def recover(self, history: HistoryFile) -> None:
        """Up to the last checkpoints, the history is what they hold, whatever became of its file."""
        settings = settings_of(self.study())
        names = [setting["name"] for setting in settings]
        history.table.rows = [row for row in history.table if row["setting"] in names]
        for key in (key for setting in settings for key in part_keys(setting)):
            held = {one.path: one.round for one in self._newest(key) if one.path}
            for file, round in sorted(
                held.items(), key=lambda one: one[1]
            ):  # the newest has the last word
                recorded = read_history(file)
                if recorded is not None:
                    history.recover(key, read_notes(file)["runs"], round, recorded)

    def refuse_taken(self, study: Facts) -> None:
        """Refuse to begin a study in a folder that holds one, parts of one, or anything else."""
        another = f"choose another folder ({option('out', 'FOLDER')})"
        if self.file.exists():
            if not _alike(self.study(), study, self.path):
                raise self.other(study, another)
            if self.is_finished():
                raise InputError("out", "holds this study, finished", str(self.path), another)
            fix = f"continue it with {how_to_resume_study(self.path)}"
            raise InputError("out", "holds this study, unfinished", str(self.path), fix)
        for part in ("checkpoints", "history.csv", "partition-*.npz"):
            if any(self.path.glob(part)):
                rule = f"holds {part}, but not the study.yaml that it belongs to"
                raise InputError("out", rule, str(self.path), f"{another}, or empty it")
        held = [path.name for path in self.path.iterdir()] if self.path.is_dir() else []
        others = sorted(name for name in held if not name.startswith("."))
        if others:  # which the study's own files might replace
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            raise InputError(
                "out", f"is not empty: it holds {others[0]}{more}", str(self.path), another
            )

    def refuse_other(self, study: Facts) -> None:
        """Refuse to go on with another study than the one that was begun here, but for its rounds."""
        if not _alike(as_begun(self.study()), as_begun(study), self.path):
            raise self.other(study, "choose its own folder")

    def other(self, study: Facts, fix: str) -> InputError:
        """The folder holds another study than this one; says in what they differ."""
        here = partial(written_in, self.path)
        apart = changes(moved(self.study(), here), moved(study, here))
        first = "; ".join(shorten(words, 70) for words in apart[:FEW])
        more = f"; and {len(apart) - FEW} more" if len(apart) > FEW else ""
        what = f"{first}{more}" or "its keys are the same, their order is not"
        return InputError("out", f"holds another study: {what}", str(self.path), fix)

    def refuse_edited(self) -> None:
        """Refuse to go on where the file is not what the study wrote."""
        if self.record().get("study") != _digest(self._written()):
            fix = f"undo that, or run the changed study into another folder ({option('out', 'FOLDER')}); "
            fix += (
                f"{flag('anyway')} mixes the two. More rounds are had with {option('rounds', 'N')}"
            )
            raise InputError(str(self.file), "was changed after the study began", fix=fix)

    def refuse_blocked(self) -> None:
        """Refuse to go on where a file, or a link to nothing, takes the place of a folder that is needed."""
        for path in (self.path / part for part in PARTS):
            if os.path.lexists(path) and not path.is_dir():
                raise InputError(
                    str(path), "must be a folder", fix="move away what is there, then resume"
                )

    def refuse_gone(self) -> None:
        """Refuse to go on where somebody has taken the folder away while the study ran."""
        if not self.file.exists():
            fix = "bring the folder back and resume it, or begin again in another one"
            raise InputError(
                str(self.file), "is gone: its folder was moved or deleted meanwhile", fix=fix
            )

    def clear(self) -> None:
        """Remove what a kill has left half written."""
        for part in ("", *PARTS):
            remove_partial_files(self.path / part)


def _refuse_damaged(content: Any, file: str) -> None:
    """Refuse a study.yaml that does not have the parts which a study writes."""
    parts = content if isinstance(content, dict) else {}
    record = parts.get(RECORD, {})
    noted = record.get("settings", {}) if isinstance(record, dict) else None
    facts = list(noted.values()) if isinstance(noted, dict) else [None]
    settings = parts.get("settings")
    named = isinstance(settings, list) and all(
        isinstance(s, dict) and "name" in s for s in settings
    )
    fix = f"begin it in another folder with `fedskip run {file}`, or bring back what a study wrote"
    require(file, named or RECORD in parts, "is of no study that was begun", fix=fix)
    for part, ok in {
        "settings": named and bool(settings),
        RECORD: isinstance(record, dict)
        and (not noted or isinstance(record.get("versions"), dict)),
        f"{RECORD}.settings": all(map(_has_facts, facts)),
    }.items():
        fix = f"bring back what the study wrote, or begin again in another folder ({option('out', 'FOLDER')})"
        require(f"{file} {part}", ok, "is damaged", fix=fix)


def _has_facts(setting: Any) -> bool:
    """Whether what was noted of a setting is all there."""
    if not isinstance(setting, dict) or "parameters" not in setting:
        return False
    parts = [setting.get(key) for key in ("machine", "divisions", "data")]
    counts = [
        part.get(key)
        for part in parts[:1]
        if isinstance(part, dict)
        for key in ("processes", "rows")
    ]
    return all(isinstance(part, dict) for part in parts) and all(
        isinstance(n, int | None) for n in counts
    )


def next_folder(name: str) -> Path:
    """`runs/NAME-N` with the first N that is free."""
    return next(
        path for n in itertools.count(1) if not (path := Path("runs") / f"{name}-{n}").exists()
    )


def _digest(study: Facts) -> str:
    """Of plain values, whatever the order of their keys."""
    return digest(json.dumps(study, sort_keys=True, default=str).encode())


def _alike(one: Facts, other: Facts, folder: Path) -> bool:
    """Whether two studies are the same; paths are compared as they are from a folder."""
    here = partial(written_in, folder)
    return moved(one, here) == moved(other, here)


def as_begun(study: Facts) -> Facts:
    """A study without what may change: it is made longer, and gets more runs."""
    settings = [
        {**setting, RECORD: record_of(setting) | {"added": None}, "rounds": None}
        for setting in study.get("settings") or ()
    ]
    return {**study, "rounds": None, "settings": settings}


def part_keys(setting: Facts) -> list[str]:
    """How checkpoints and the record call the parts of a setting: what it began with, and additions."""
    return [part_key(setting["name"], number) for number in range(1 + len(added_to(setting)))]


def changes(before: Facts, now: Facts) -> list[str]:
    """What a study differs in from another, in words, by dotted key."""
    settings = [
        {one["name"]: flatten(one) for one in settings_of(study)} for study in (before, now)
    ]
    lost, new = ([*a.keys() - b.keys()] for a, b in (settings, settings[::-1]))
    named = (
        [f"the settings were {join_some(settings[0])} and are {join_some(settings[1])}"]
        if lost or new
        else []
    )
    plain = [
        {
            key: value
            for key, value in study.items()
            if key not in (*KEYS, "settings") or key == "name"
        }
        for study in (before, now)
    ]
    pairs = [(one, settings[1][name]) for name, one in settings[0].items() if name in settings[1]]
    changed = [
        words for one, other in [(plain[0], plain[1]), *pairs] for words in _changed(one, other)
    ]
    return list(dict.fromkeys([*named, *changed]))


def _changed(one: Facts, other: Facts) -> list[str]:
    return [
        f"{key} was {_show(one.get(key))} and is {_show(other.get(key))}"
        for key in sorted({*one, *other})
        if one.get(key) != other.get(key)
    ]


def _show(value: Any) -> str:
    return "not set" if value is None else repr(value)


def settings_of(study: Facts) -> list[Facts]:
    """The keys of each setting, those that all share included."""
    shared = {key: value for key, value in study.items() if key in KEYS and key != "name"}
    return [shared | own for own in study.get("settings") or ()]


def record_of(setting: Facts) -> Facts:
    """What commands noted about a setting."""
    return setting.get(RECORD) or {}


def added_to(setting: Facts) -> list[Facts]:
    """The methods and seeds of every addition to a setting."""
    return record_of(setting).get("added") or []


def check_kinds(keys: Facts, file: Path) -> None:
    """Refuse a setting that was edited to what no study writes: tables and figures would stumble over it."""
    fix = "bring back the file as the study wrote it"
    record = record_of(keys)
    if not isinstance(record, dict):
        raise InputError(RECORD, "must be a mapping", record, fix, str(file))
    counts = {"rounds": keys.get("rounds")}
    counts |= {f"{RECORD}.{name}": record.get(name, 0) for name in ("full_rounds", "full_seeds")}
    for name, count in counts.items():
        if not _is_count(count):
            raise InputError(name, "must be a whole number", count, fix, str(file))
    for name, kind in {"seeds": "whole numbers", "methods": "methods"}.items():
        value, fits = keys.get(name, []), _is_count if name == "seeds" else _is_text
        if type(value) is not list or not all(map(fits, value)):
            raise InputError(name, f"must be a list of {kind}", value, fix, str(file))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: Any) -> bool:
    return type(value) is str


def compare(before: Facts, now: Facts, out: Path) -> None:
    """Refuse to go on where what shapes the arithmetic has changed."""
    one, other = _flat(before), _flat(now)
    if DEVICE in other and same_device(one.get(DEVICE), other[DEVICE]):
        one[DEVICE] = other[DEVICE]
    if apart := _changed(one, other):
        raise InputError(
            "resume", f"would not repeat the same numbers: {'; '.join(apart)}", ...,
            f"restore that, or go on all the same with {how_to_resume_study(out, anyway=True)}",
        )  # fmt: skip


def compare_data(before: Facts, now: Facts, out: Path) -> None:
    """Refuse to add runs to a study whose data have changed since they were divided."""
    one, other = (
        {"parameters": None, **{k: facts.get(k, {}) for k in ("data", "divisions")}}
        for facts in (before, now)
    )
    one["divisions"] = {
        seed: one["divisions"].get(seed, each) for seed, each in other["divisions"].items()
    }
    if apart := _changed(_flat(one), _flat(other)):
        fix = "bring back the data that it was run on, or begin another study"
        raise InputError("out", f"was run on other data: {'; '.join(apart)}", str(out), fix)


def _flat(facts: Facts) -> Facts:
    flat = {"parameters": facts["parameters"]}
    for part in ("versions", "machine", "divisions", "data"):
        flat |= {f"{part}.{key}": value for key, value in facts.get(part, {}).items()}
    return flat
