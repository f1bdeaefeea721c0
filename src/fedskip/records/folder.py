"""The folder of a study: what it holds, and how that was made.

study.yaml holds the study as it was begun and, under `record`, what it noted about itself: what shapes the
arithmetic, and the data in numbers. A study that resumes compares these with what it finds.
"""

import contextlib
import copy
import csv
import itertools
import json
import os.path
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedskip.config.setting import KEYS, RECORD, Setting, part_key
from fedskip.config.tree import flatten, moved, read_in, written_in
from fedskip.config.yaml_text import load, read_text, written
from fedskip.errors import (
    InputError,
    either,
    flag,
    how_to_resume_study,
    join_some,
    option,
    require,
    shorten,
)
from fedskip.files import digest, refuse_link, refuse_not_utf8, remove_partial_files, write_text
from fedskip.records.checkpoint import interval, newest, read_history, read_notes
from fedskip.records.history import SUMMARY, HistoryFile
from fedskip.records.table import Row, Table
from fedskip.version import same_device

Facts = dict[str, Any]
PARTS = ("checkpoints", "models", "figures")  # folders in it
FEW = 3  # differences that an error names
DEVICE = "machine.device_name"


class Folder:
    """The folder of a study. A study is plain values here, as study.yaml has them.

    `shown` is the path as it was given, for messages; `path` stays right if the working folder changes.
    """

    def __init__(self, path: Path) -> None:
        self.shown, self.path = path, path.absolute()
        refuse_not_utf8("out", self.path)
        self.shown_file = path / "study.yaml"
        self.file, self.checkpoints = self.path / "study.yaml", self.path / "checkpoints"
        # when the file was written and how long it was, and what it held
        self._stamp, self._content = (0, 0), Facts()

    def study(self) -> Facts:
        """The study that was begun here, with the paths of its files as they are from here."""
        return moved(self.contents()[0], partial(read_in, self.path))

    def record(self) -> Facts:
        """What it noted about itself."""
        return self.contents()[1]

    def contents(self) -> tuple[Facts, Facts]:
        """The study, with paths as they are in its file, and its record. It is parsed once."""
        if not self.file.exists():
            return {}, {}
        stat = self.file.stat()
        if (stamp := (stat.st_mtime_ns, stat.st_size)) != self._stamp:
            content = load(read_text(self.file), str(self.shown_file))
            _refuse_damaged(content, str(self.shown_file))
            self._stamp, self._content = stamp, content
        study = copy.deepcopy(self._content)
        return study, study.pop(RECORD, None) or {}

    def write(self, study: Facts, record: Facts) -> None:
        """Write a study, its paths as they are from the folder; the record gets a digest of it."""
        study = moved(study, partial(written_in, self.path))
        record["study"] = _digest(study)
        write_text(self.file, written(study, compact=True) + written({RECORD: record}))
        stat = self.file.stat()
        self._stamp = stat.st_mtime_ns, stat.st_size
        self._content = copy.deepcopy({**study, RECORD: record})

    @property
    def identity(self) -> str:
        """A digest of the study, which stays when it is made longer, gets more runs, and when files move."""
        return _digest(moved(as_begun(self.contents()[0]), os.path.basename))

    # --- how far it is -------------------------------------------------------------------------------

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
        if rounds is None or any(one.round < rounds for one in newest(self.checkpoints, part)):
            return False
        return self.saved_rounds(part).keys() <= set(written)

    def last_rounds(self) -> dict[str, int]:
        """By part of a setting, the round that all its runs have saved; 0: not all have saved any."""
        parts = [key for setting in settings_of(self.study()) for key in part_keys(setting)]
        return {key: min(one.round for one in newest(self.checkpoints, key)) for key in parts}

    def saved_rounds(self, part: str) -> dict[str, int]:
        """By run of a part, the round of the newest checkpoint that holds it; none for those without one."""
        rounds: dict[str, int] = {}
        for one in newest(self.checkpoints, part):
            for run in read_notes(one.path)["runs"] if one.path else ():
                rounds[run] = max(one.round, rounds.get(run, 0))
        return rounds

    def recover(self, history: HistoryFile, parts: Sequence[Setting]) -> bool:
        """The history of these parts: up to their last checkpoints what those hold, whatever became of its file.

        Gives whether its file held something else.
        """
        differed = False
        for part in parts:
            held = {one.path: one.round for one in newest(self.checkpoints, part.key) if one.path}
            for file in sorted(held, key=held.__getitem__):  # the newest is right
                runs, recorded = read_notes(file)["runs"], read_history(file)
                differed |= history.recover(part.key, runs, held[file], recorded)
        known = {run for part in parts for run in part.run_names}
        history.table = Table(history.columns, (r for r in history.table if r["run"] in known))
        return differed

    def clear(self) -> None:
        """Remove what a kill has left half written."""
        for part in ("", *PARTS):
            remove_partial_files(self.path / part)

    # --- what is refused -----------------------------------------------------------------------------

    def refuse_taken(self, study: Facts) -> None:
        """Refuse to begin a study in a folder that holds one, parts of one, or anything else."""
        another = f"choose another folder ({option('out', 'FOLDER')})"
        if self.file.exists():
            if not _alike(self.study(), study, self.path):
                raise self.other(study, another)
            if self.is_finished():
                raise InputError("out", "holds this study, finished", str(self.shown), another)
            fix = f"continue it with {how_to_resume_study(self.shown)}"
            raise InputError("out", "holds this study, unfinished", str(self.shown), fix)
        for part in ("checkpoints", "history.csv", "partition-*.npz"):
            if any(self.path.glob(part)):
                rule = f"holds {part}, but not the study.yaml that it belongs to"
                raise InputError("out", rule, str(self.shown), f"{another}, or empty it")
        held = [path.name for path in self.path.iterdir()] if self.path.is_dir() else []
        others = sorted(name for name in held if not name.startswith("."))
        if others:  # which the study's own files might replace
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            rule = f"is not empty: it holds {others[0]}{more}"
            raise InputError("out", rule, str(self.shown), another)

    def refuse_other(self, study: Facts) -> None:
        """Refuse to go on with another study than the one that was begun here, but for its rounds."""
        if not _alike(as_begun(self.study()), as_begun(study), self.path):
            raise self.other(study, "choose its own folder")

    def other(self, study: Facts, fix: str) -> InputError:
        """The folder holds another study than this one; says in what they differ."""
        here = partial(written_in, self.path)
        apart = changes(moved(self.study(), here), moved(study, here))
        what = _some(apart) or "the same keys in another order, or with other additions"
        return InputError("out", f"holds another study: {what}", str(self.shown), fix)

    def refuse_edited(self) -> None:
        """Refuse to go on where the file is not what the study wrote."""
        study, record = self.contents()
        if record.get("study") != _digest(study):
            another, more = option("out", "FOLDER"), option("rounds", "N")
            fix = f"undo that, or run the changed study into another folder ({another}); "
            fix += f"{flag('anyway')} mixes the two. More rounds are had with {more}"
            raise InputError(str(self.shown_file), "was changed after the study began", fix=fix)

    def refuse_federation(self) -> None:
        """Refuse the folder of a federation, which holds that of its study."""
        if (self.path / "federation.yaml").exists():
            fix = f"its results are in {self.shown / 'run'}"
            raise InputError("out", "is the folder of a federation", str(self.shown), fix)

    def refuse_blocked(self) -> None:
        """Refuse to go on where a file or a link takes the place of a folder that is needed."""
        for path in (self.path / part for part in PARTS):
            refuse_link(path)
            if os.path.lexists(path) and not path.is_dir():
                fix = "move away what is there, then resume"
                raise InputError(str(path), "must be a folder", fix=fix)

    def refuse_gone(self) -> None:
        """Refuse to go on where somebody has taken the folder away while the study ran."""
        if not self.file.exists():
            rule = "is gone: its folder was moved or deleted meanwhile"
            fix = "bring the folder back and resume it, or begin again in another one"
            raise InputError(str(self.shown_file), rule, fix=fix)

    def refuse_lost_checkpoints(
        self, begun: Sequence[tuple[Setting, int]], every: int | None
    ) -> None:
        """Refuse to go on where runs with results would start at round 0, and lose them.

        A study that was killed before its first checkpoint has no summary, and no rows after the round of
        that checkpoint. It starts again, and loses no more than those.

        Args:
            begun: all parts, with the rounds that the folder has them for.
            every: rounds from one checkpoint to the next, as the study says.
        """
        held = {part.key: newest(self.checkpoints, part.key) for part, _ in begun}
        restarted = {
            part.key: {
                run
                for number, one in enumerate(held[part.key])
                for run in part.run_names[number :: len(held[part.key])]
                if not one.round
            }
            for part, _ in begun
        }
        if not any(restarted.values()):
            return
        kept = any(one.round for files in held.values() for one in files)
        history = existing_history(self.path, kept)
        written = set(self.summary().column("run"))
        for part, rounds in begun:
            runs = restarted[part.key]
            last = max((row["round"] for row in history if row["run"] in runs), default=0)
            results = [f"history.csv up to round {last}"] * (last > interval(rounds, every))
            results += ["summary.csv"] * bool(runs & written)
            if results:
                run = either(
                    f"`fedskip run {self.shown_file} --out NEW`", "`Study('NEW', ...).run()`"
                )
                whose = part.key if runs == {*part.run_names} else join_some(sorted(runs))
                instead = f"run its study into another folder with {run}"
                raise lost_checkpoints(self, whose, results, instead)


def lost_checkpoints(
    folder: Folder, whose: str, results: Sequence[str], instead: str
) -> InputError:
    """The error that checkpoints of `whose`, a part or some runs, are gone but not their results.

    `instead`: how to begin elsewhere.
    """
    fix = "bring them back to checkpoints/; to start again here all the same, move history.csv and "
    fix += f"summary.csv away; or {instead}"
    rule = f"has no checkpoints of {whose} any more: to start again would lose its {' and '.join(results)}"
    return InputError("out", rule, str(folder.shown), fix)


def existing_history(out: Path, kept: bool = False) -> Table:
    """What history.csv holds.

    Where checkpoints `kept` some of it, of a damaged file the lines that can be read count; else, and where
    there are none, it is refused.
    """
    file = out / "history.csv"
    if not file.exists() or not file.stat().st_size:
        return Table(())
    try:
        return Table.read(file, filled=("run", "round"))
    except InputError as error:
        if kept and (rows := [*_readable(file)]):
            return Table(("run", "round"), rows)
        fix = f"{error.fix}, or delete it: what no checkpoint has of it is lost then"
        raise InputError(error.field, error.rule, error.value, fix) from None


def _readable(file: Path) -> Iterator[Row]:
    """The run and the round of each line that can be read."""
    text = file.open(encoding="utf-8", errors="replace", newline="")
    with text, contextlib.suppress(csv.Error):
        for row in csv.DictReader(text):
            run, round = row.get("run"), row.get("round")
            if run and round and round.isdecimal() and len(round) < 10:
                yield {"run": run, "round": int(round)}


def next_folder(name: str) -> Path:
    """`runs/NAME-N` with the first N that is free."""
    paths = (Path("runs") / f"{name}-{n}" for n in itertools.count(1))
    return next(path for path in paths if not path.exists())


# --- a study as plain values -----------------------------------------------------------------------------


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


def part_keys(setting: Facts) -> list[str]:
    """How checkpoints and the record call the parts of a setting: what it began with, and additions."""
    return [part_key(setting["name"], number) for number in range(1 + len(added_to(setting)))]


def as_begun(study: Facts) -> Facts:
    """A study without what may change: it is made longer, and gets more runs."""
    settings = [
        {**setting, RECORD: record_of(setting) | {"added": None}, "rounds": None}
        for setting in study.get("settings") or ()
    ]
    return {**study, "rounds": None, "settings": settings}


def _digest(study: Facts) -> str:
    """Of plain values, whatever the order of their keys."""
    return digest(json.dumps(study, sort_keys=True, default=str).encode())


def _alike(one: Facts, other: Facts, folder: Path) -> bool:
    """Whether two studies are the same; paths are compared as they are from a folder."""
    here = partial(written_in, folder)
    return moved(one, here) == moved(other, here)


def _refuse_damaged(content: Any, file: str) -> None:
    """Refuse a study.yaml that does not have the parts which a study writes."""
    study = content if isinstance(content, dict) else {}
    settings, record = study.get("settings"), study.get(RECORD, {})
    named = isinstance(settings, list) and all(
        isinstance(setting, dict) and "name" in setting for setting in settings
    )
    fix = f"begin it in another folder with `fedskip run {file}`, or bring back what a study wrote"
    require(file, named or RECORD in study, "is of no study that was begun", fix=fix)
    noted = record.get("settings", {}) if isinstance(record, dict) else None
    whole = isinstance(noted, dict) and all(map(_has_facts, noted.values()))
    whole &= not noted or isinstance(record.get("versions"), dict)
    fix = f"bring back what the study wrote, or begin again in another folder ({option('out', 'FOLDER')})"
    for part, ok in {"settings": named and bool(settings), RECORD: whole}.items():
        require(f"{file} {part}", ok, "is damaged", fix=fix)


def _has_facts(noted: Any) -> bool:
    """Whether what was noted of a setting is all there."""
    return (
        isinstance(noted, dict)
        and "parameters" in noted
        and all(isinstance(noted.get(key), dict) for key in ("machine", "divisions", "data"))
        and all(isinstance(noted["machine"].get(key), int | None) for key in ("processes", "rows"))
    )


def check_kinds(keys: Facts, file: Path) -> None:
    """Refuse a setting that was edited to what no study writes: tables and figures would stumble over it."""

    def is_count(value: Any) -> bool:
        return type(value) is int and value >= 0

    record, seeds, methods = record_of(keys), keys.get("seeds", []), keys.get("methods", [])
    whole = isinstance(record, dict)
    counts = {"rounds": keys.get("rounds")}
    if whole:
        counts |= {f"{RECORD}.{n}": record.get(n, 0) for n in ("full_rounds", "full_seeds")}
    are_counts = type(seeds) is list and all(map(is_count, seeds))
    are_texts = type(methods) is list and all(type(method) is str for method in methods)
    for name, value, ok, kind in [
        (RECORD, record, whole, "a mapping"),
        *((name, count, is_count(count), "a whole number") for name, count in counts.items()),
        ("seeds", seeds, are_counts, "a list of whole numbers"),
        ("methods", methods, are_texts, "a list of methods"),
    ]:
        if not ok:
            fix = "bring back the file as the study wrote it"
            raise InputError(name, f"must be {kind}", value, fix, str(file))


# --- what has changed ------------------------------------------------------------------------------------


def changes(before: Facts, now: Facts) -> list[str]:
    """What a study differs in from another, by dotted key; not in what commands noted of settings."""
    one, other = ({own["name"]: own for own in settings_of(study)} for study in (before, now))
    apart = []
    if one.keys() != other.keys():
        apart = [f"the settings were {join_some(one)} and are {join_some(other)}"]
    left_out = {*KEYS, "settings"} - {"name"}
    pairs = [(before, now, left_out)]
    pairs += [(one[name], other[name], {RECORD}) for name in one if name in other]
    for old, new, ignored in pairs:
        apart += _changed(
            *(flatten({k: v for k, v in s.items() if k not in ignored}) for s in (old, new))
        )
    return list(dict.fromkeys(apart))


def _changed(one: Facts, other: Facts) -> list[str]:
    def show(value: Any) -> str:
        return "not set" if value is None else repr(value)

    return [
        f"{key} was {show(one.get(key))} and is {show(other.get(key))}"
        for key in sorted({*one, *other})
        if one.get(key) != other.get(key)
    ]


def _some(apart: Sequence[str]) -> str:
    """The first few differences."""
    more = f"; and {len(apart) - FEW} more" if len(apart) > FEW else ""
    return "; ".join(shorten(words, 70) for words in apart[:FEW]) + more


def compare(before: Facts, now: Facts, out: Path) -> None:
    """Refuse to go on where what shapes the arithmetic has changed."""
    one, other = _flat(before), _flat(now)
    if DEVICE in other and same_device(one.get(DEVICE), other[DEVICE]):
        one[DEVICE] = other[DEVICE]
    if apart := _changed(one, other):
        fix = f"restore that, or go on all the same with {how_to_resume_study(out, anyway=True)}"
        rule = f"would not repeat the same numbers: {'; '.join(apart)}"
        raise InputError("resume", rule, fix=fix)


def compare_data(before: Facts, now: Facts, out: Path) -> None:
    """Refuse to add runs to a study whose data have changed since they were divided."""
    divisions = {
        seed: before.get("divisions", {}).get(seed, each) for seed, each in now["divisions"].items()
    }
    then = {"data": before.get("data", {}), "divisions": divisions}
    if apart := _changed(_flat(then), _flat(now)):
        fix = "bring back the data that it was run on, or begin another study"
        raise InputError("out", f"was run on other data: {'; '.join(apart)}", str(out), fix)


def _flat(facts: Facts) -> Facts:
    flat = {"parameters": facts.get("parameters")}
    for part in ("versions", "machine", "divisions", "data"):
        flat |= {f"{part}.{key}": value for key, value in facts.get(part, {}).items()}
    return flat
