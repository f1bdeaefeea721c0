"""A study whose checkpoints are gone does not start anew: that would lose the results that it has."""

import contextlib
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedskip.input.errors import InputError, either, few
from fedskip.records.checkpoint import newest
from fedskip.records.provenance import Folder
from fedskip.records.table import Row, Table
from fedskip.spec.parts import Part
from fedskip.study.session import interval


def refuse_lost(folder: Folder, begun: Sequence[tuple[Part, int]], every: int | None) -> None:
    """Refuse to go on where runs with results would start at round 0.

    `begun`: all parts, with the rounds that the folder has them for. `every`: as the study says.

    A study that was killed before its first checkpoint has no summary, and rows up to the round of that
    checkpoint: it starts anew, and loses no more than those.
    """
    anew = [(part, rounds, runs) for part, rounds in begun if (runs := _without_checkpoint(folder, part))]
    if not anew:
        return
    kept = any(one.round for part, _ in begun for one in newest(folder.path / "checkpoints", part.key))
    history, written = history_of(folder.path, kept), set(folder.summary().column("run"))
    for part, rounds, runs in anew:
        last = max((row["round"] for row in history if row["run"] in runs), default=0)
        found = [f"history.csv up to round {last}"] if last > interval(rounds, every) else []
        found += ["summary.csv"] if runs & written else []
        if found:
            run = either(f"`fedskip run {folder.file} --out NEW`", "`Study('NEW', ...).run()`")
            whose = part.key if runs == {*part.run_names} else few(sorted(runs))
            raise results_lost(folder, whose, found, f"run its study into another folder with {run}")


def _without_checkpoint(folder: Folder, part: Part) -> set[str]:
    """The runs of a part that are to start at round 0."""
    held = newest(folder.path / "checkpoints", part.key)
    shares = (part.run_names[index :: len(held)] for index in range(len(held)))
    return {run for one, share in zip(held, shares, strict=True) if not one.round for run in share}


def history_of(out: Path, kept: bool = False) -> Table:
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
    with file.open(encoding="utf-8", errors="replace", newline="") as text, contextlib.suppress(csv.Error):
        for row in csv.DictReader(text):
            run, round = row.get("run"), row.get("round")
            if run and round and round.isdecimal() and len(round) < 10:
                yield {"run": run, "round": int(round)}


def results_lost(folder: Folder, whose: str, found: Sequence[str], instead: str) -> InputError:
    """Results without checkpoints of `whose`, a part or runs of it; `instead`: how to begin elsewhere."""
    fix = "bring them back to checkpoints/; to start anew here all the same, move history.csv and "
    fix += f"summary.csv away; or {instead}"
    rule = f"has no checkpoints of {whose} any more: to start anew would lose its {' and '.join(found)}"
    return InputError("out", rule, str(folder.path), fix)
