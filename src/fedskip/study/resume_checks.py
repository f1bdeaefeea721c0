"""A study whose checkpoints are gone is not started again: that would lose its results."""

import contextlib
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedskip.config import Setting
from fedskip.errors import InputError, either, join_some
from fedskip.records.checkpoint import newest
from fedskip.records.folder import Folder
from fedskip.records.table import Row, Table
from fedskip.study.setting_plan import interval


def refuse_lost_checkpoints(
    folder: Folder, begun: Sequence[tuple[Setting, int]], every: int | None
) -> None:
    """Refuse to go on where runs with results would start at round 0.

    A study that was killed before its first checkpoint has no summary, and no rows after the round of that
    checkpoint. It starts again, and loses no more than those.

    Args:
        begun: all parts, with the rounds that the folder has them for.
        every: rounds from one checkpoint to the next, as the study says.
    """
    restarted = [
        (part, rounds, runs)
        for part, rounds in begun
        if (runs := _without_checkpoint(folder, part))
    ]
    if not restarted:
        return
    kept = any(
        one.round for part, _ in begun for one in newest(folder.path / "checkpoints", part.key)
    )
    history, written = existing_history(folder.path, kept), set(folder.summary().column("run"))
    for part, rounds, runs in restarted:
        last = max((row["round"] for row in history if row["run"] in runs), default=0)
        results = [f"history.csv up to round {last}"] if last > interval(rounds, every) else []
        results += ["summary.csv"] if runs & written else []
        if results:
            run = either(f"`fedskip run {folder.file} --out NEW`", "`Study('NEW', ...).run()`")
            whose = part.key if runs == {*part.run_names} else join_some(sorted(runs))
            raise lost_checkpoints(
                folder, whose, results, f"run its study into another folder with {run}"
            )


def _without_checkpoint(folder: Folder, part: Setting) -> set[str]:
    """The runs of a part that are to start at round 0."""
    held = newest(folder.path / "checkpoints", part.key)
    shares = (part.run_names[index :: len(held)] for index in range(len(held)))
    return {run for one, share in zip(held, shares, strict=True) if not one.round for run in share}


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
    with (
        file.open(encoding="utf-8", errors="replace", newline="") as text,
        contextlib.suppress(csv.Error),
    ):
        for row in csv.DictReader(text):
            run, round = row.get("run"), row.get("round")
            if run and round and round.isdecimal() and len(round) < 10:
                yield {"run": run, "round": int(round)}


def lost_checkpoints(
    folder: Folder, whose: str, results: Sequence[str], instead: str
) -> InputError:
    """The error that checkpoints of `whose`, a part or some runs, are gone but not their results.

    `instead`: how to begin elsewhere.
    """
    fix = "bring them back to checkpoints/; to start again here all the same, move history.csv and "
    fix += f"summary.csv away; or {instead}"
    rule = f"has no checkpoints of {whose} any more: to start again would lose its {' and '.join(results)}"
    return InputError("out", rule, str(folder.path), fix)
