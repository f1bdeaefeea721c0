"""Studies for trackers: what they should get, and a kill between a row and its checkpoint."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from fedskip.records.table import Row, Table
from fedskip.report.results import Results
from fedskip.report.trackers import TrackerList, finite_numbers
from studies import as_table

# checkpoints after rounds 3, 6 and 7; two groups of runs, each in a process of its own where those are 2
FEW = {"methods": "fedavg, fedskip(period=2)", "seeds": 1, "rounds": 7, "checkpoint_every": 3}
Numbers = dict[str, dict[int, dict[str, float]]]  # by run and round

KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import fedskip
from studies import study
from tracked import FEW, stopped

# the last checkpoint is of round 3
with stopped(5, lambda: os.kill(os.getpid(), signal.SIGKILL)):
    study(Path({out!r}), **FEW, processes=1).run(trackers=[{tracker!r}])
"""


def interrupt() -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def stopped(round: int, stop: Callable[[], None] = interrupt) -> Iterator[None]:
    """Inside, studies stop when their trackers have got this round."""
    on_rows = TrackerList.on_rows

    def on_rows_and_stop(self: TrackerList, rows: list[Row]) -> None:
        on_rows(self, rows)
        if any(row["round"] == round for row in rows):
            for thread in self._threads:
                thread.calls.join()
            stop()

    with mock.patch.object(TrackerList, "on_rows", on_rows_and_stop):
        yield


def kill(out: Path, tracker: str) -> None:
    """Begin a study with a tracker, and kill it after round 5."""
    code = KILLED.format(tests=str(Path(__file__).parent), out=str(out), tracker=tracker)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def history(out: Path) -> Numbers:
    """What a tracker should have got."""
    heard: Numbers = {}
    for row in Table.read(out / "history.csv"):
        heard.setdefault(row["run"], {})[row["round"]] = finite_numbers(row)
    return heard


def summaries(results: Results) -> dict[str, dict[str, float]]:
    return {row["run"]: finite_numbers(row) for row in as_table(results.summary)}


def without_clock(heard: Numbers) -> Numbers:
    """Rounds that were found again came at another time."""
    return {
        run: {r: {k: v for k, v in row.items() if k != "seconds"} for r, row in rows.items()}
        for run, rows in heard.items()
    }


def flat(rows: list[tuple[int, dict[str, Any]]]) -> dict[int, dict[str, Any]]:
    """By round; no round may be there twice."""
    assert len(dict(rows)) == len(rows)
    return dict(rows)
