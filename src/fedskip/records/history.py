"""What a study records: one row per run and evaluation, one summary row per run."""

import contextlib
import logging
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedskip.errors import InputError
from fedskip.files import with_filename, write_bytes
from fedskip.records.table import Row, Table

HISTORY = (
    "setting", "run", "method", "period", "seed", "round", "merges", "test_accuracy", "test_loss",
    "val_accuracy", "slot_accuracy", "train_loss", "drift_mean", "drift_broadcast", "bytes_down", "bytes_up",
    "seconds", "x_broadcast_accuracy", "x_set_aside",
)  # fmt: skip
SUMMARY = (
    "setting", "run", "method", "period", "seed", "last", "best", "best_round", "mean_tail", "merged",
    "rounds", "merges", "bytes_total", "diverged", "best_val", "full_test", "broke_round",
    "broke_client", "broke_slot", "set_aside", "worst_clients", "ended",
)  # fmt: skip
# columns that were there from the beginning; others have come later
ALWAYS = tuple(name for name in HISTORY if not name.startswith("x_"))
ALWAYS_SUMMARY = SUMMARY[: SUMMARY.index("full_test")]
TAIL = 0.1  # the share of the rounds that `mean_tail` looks back on

log = logging.getLogger(__name__)


class HistoryFile:
    """history.csv: rows are appended as they come, and cut back when a study resumes.

    All rows are in memory, too. A file that somebody changes while the study runs is written again.
    """

    def __init__(self, path: Path, further: Iterable[str] = ()) -> None:
        """`further`: columns that follow, of further metrics."""
        self.path = path
        self.columns = (*HISTORY, *further)
        self.table = Table(self.columns)
        self._size = -1  # bytes of the file as it was written here
        if path.exists():
            try:
                self.table += Table.read(path, filled=("setting", "run", "round"), present=ALWAYS)
            except InputError as error:  # a checkpoint has it, too
                log.warning("%s", error)

    def append(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        self.table += rows
        if not self._is_ours():
            self._write()
            return
        lines = Table(self.columns, rows).csv().split("\n", 1)[1].encode()
        with with_filename(self.path), self.path.open("ab") as file:
            file.write(lines)
        self._size += len(lines)

    def sync(self) -> None:
        """Make sure that the disk has it all, so that no checkpoint is ever ahead of its history."""
        if not self._is_ours():
            self._write()
        with with_filename(self.path), self.path.open("ab") as file:
            os.fsync(file.fileno())

    def cut(self, rounds: Mapping[str, int], restarted: Collection[str] = ()) -> None:
        """Forget what runs recorded after their rounds, half a line, and runs that start again."""
        rounds = {**rounds, **dict.fromkeys(restarted, 0)}
        kept = (row for row in self.table if row["round"] <= rounds.get(row["run"], row["round"]))
        self.table = Table(self.columns, kept)
        self._write()

    def sort(self, key: Callable[[Row], Any]) -> None:
        """Put all rows in order, here and in the file; those with the same key stay as they are."""
        self.table.sort(key=key)
        self._write()

    def of(self, runs: Collection[str], round: int) -> str:
        """What runs have recorded up to a round, as text."""
        rows = [row for row in self.table if row["run"] in runs and row["round"] <= round]
        return Table(self.columns, rows).csv()

    def recover(self, part: str, runs: Collection[str], round: int, recorded: str) -> bool:
        """Up to a round, take the rows of runs that a checkpoint of `part` holds, if the file has others.

        Gives whether it had.
        """
        # the checkpoint may be older than some columns
        saved = Table(self.columns, Table.parse(recorded, self.path))
        if differed := self.of(runs, round) != saved.csv():
            log.warning(
                "%s was changed or lost: what %s recorded up to round %d is taken from its checkpoint",
                self.path, part, round,
            )  # fmt: skip
            others = [row for row in self.table if row["run"] not in runs]
            self.table = Table(self.columns, [*saved, *others])
        return differed

    def _is_ours(self) -> bool:
        """Whether the file is as it was written here, and no link."""
        with contextlib.suppress(OSError):
            found = self.path.lstat()
            return stat.S_ISREG(found.st_mode) and found.st_size == self._size
        return False

    def _write(self) -> None:
        content = self.table.csv().encode()
        write_bytes(self.path, content)
        self._size = len(content)


def summarise(
    rows: Sequence[Row], *, rounds: int, higher: bool = True, validated_higher: bool | None = None
) -> Row:
    """Summarise the history of one run, which was made for `rounds` rounds.

    `higher`: whether higher scores are better; `validated_higher`: the same of those on the validation
    samples, if they are of another metric.
    """
    last = rows[-1] if rows else {}
    # a metric may be undefined: its cell is empty, or held a NaN
    scored = [row for row in rows if (score := row["test_accuracy"]) is not None and score == score]
    validated = [row for row in scored if row["val_accuracy"] is not None]
    tail = [row["test_accuracy"] for row in scored if row["round"] > (1 - TAIL) * rounds]
    further = [name for name in last if name.startswith("x_") and name not in HISTORY]

    def first_best(rows: Sequence[Row], column: str, higher: bool) -> Row:
        return (max if higher else min)(rows, key=lambda row: float(row[column]), default={})

    best = first_best(scored, "test_accuracy", higher)
    validated_higher = higher if validated_higher is None else validated_higher
    return {
        "last": last.get("test_accuracy"),
        "best": best.get("test_accuracy"),
        "best_round": best.get("round"),
        "mean_tail": float(np.mean(tail)) if tail else last.get("test_accuracy"),
        "rounds": last.get("round", 0),
        "merges": last.get("merges", 0),
        "bytes_total": last.get("bytes_down", 0) + last.get("bytes_up", 0),
        "best_val": first_best(validated, "val_accuracy", validated_higher).get("test_accuracy"),
        **{name: last[name] for name in further},
    }
