"""TensorBoard: OUT/tensorboard has a folder for each run of the study.

When a study resumes, its runs are written again from the history. So nothing is doubled or missing: neither
after a kill between a row and its checkpoint, nor after training for a while without this tracker.

It appends one record per row of the history. torch's `SummaryWriter` would keep a thread and an open file for
every run of the study.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedskip.files import refuse_link
from fedskip.records.table import Row
from fedskip.report.results import Results
from fedskip.report.trackers import Start, Tracker, finite_numbers, importing

EVENTS = "events.out.tfevents"  # TensorBoard reads files with this prefix


class TensorBoard(Tracker):
    """Writes scalars by round, hyper-parameters and, at the end, the summary."""

    def __init__(self) -> None:
        with importing("tensorboard"):
            import torch.utils.tensorboard  # noqa: F401
        self._files: dict[str, Path] = {}  # by run

    def on_start(self, start: Start) -> None:
        from torch.utils.tensorboard.summary import hparams

        now = time.time()
        for run in start.runs:
            folder = start.out / "tensorboard" / run.name
            refuse_link(folder.parent)
            refuse_link(folder)
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob(f"{EVENTS}.*"):
                refuse_link(old)
                os.truncate(old, 0)  # if it were deleted, an open viewer would wait for it
            self._files[run.name] = folder / f"{EVENTS}.{now:.0f}.fedskip"
            # no `Experiment`: only the first would count, and hide the other runs' parameters
            _, begins, _ = hparams(dict(run.keys), {})
            self._append(run.name, now, file_version="brain.Event:2")
            # makes an open viewer forget what it has read
            self._append(run.name, now, session_log={"status": "START"})
            self._append(run.name, now, summary=begins)
        ago = {row["setting"]: row["seconds"] for row in start.rows}  # of the last row of each
        for row in start.rows:
            self._write(row, now + row["seconds"] - ago[row["setting"]])

    def on_rows(self, rows: list[Row]) -> None:
        for row in rows:
            self._write(row, time.time())

    def on_end(self, results: Results) -> None:
        from torch.utils.tensorboard.summary import hparams

        _, _, ends = hparams({}, {})
        for row in results.summary.to_dict("records"):
            scores = {f"summary/{name}": value for name, value in finite_numbers(row).items()}
            self._append(row["run"], time.time(), row["rounds"], summary=_scalars(scores))
            self._append(row["run"], time.time(), summary=ends)

    def _write(self, row: Row, at: float) -> None:
        self._append(row["run"], at, row["round"], summary=_scalars(finite_numbers(row)))

    def _append(self, run: str, at: float, step: int = 0, **what: Any) -> None:
        """Add an event to the file of a run."""
        from tensorboard.compat.proto.event_pb2 import Event
        from torch.utils.tensorboard import RecordWriter

        with self._files[run].open("ab") as file:
            RecordWriter(file).write(Event(wall_time=at, step=step, **what).SerializeToString())


def _scalars(values: Mapping[str, float]) -> Mapping[str, Any]:
    return {"value": [{"tag": tag, "simple_value": value} for tag, value in values.items()]}
