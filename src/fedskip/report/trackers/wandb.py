"""Weights & Biases: one run for each run of the study, grouped by the study.

Offline unless WANDB_MODE says otherwise. W&B cannot open an offline run again: when a study goes on, its runs
are written anew, so that each has one folder to upload, with all of it. A server is asked how far a run is,
and gets what comes after.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from fedskip.files import digest
from fedskip.records.table import Row
from fedskip.report.results import Results
from fedskip.report.trackers.base import Start, TrackedRun, Tracker, needed, numbers


class WandB(Tracker):
    """Logs numbers by round; the config holds the hyper-parameters, the run's summary that of the study."""

    def __init__(self) -> None:
        self.mode: Any = os.environ.get("WANDB_MODE", "offline")
        if self.mode == "offline":  # it would report errors all the same
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        with needed("wandb"):
            import wandb  # noqa: F401
        self._runs: dict[str, Any] = {}

    def on_start(self, start: Start) -> None:
        for run in start.runs:
            self._runs[run.name] = self._open(start, run)
        self.on_rows(list(start.rows))

    def on_rows(self, rows: list[Row]) -> None:
        for row in rows:
            run = self._runs[row["run"]]
            if row["round"] >= run.starting_step:  # else the server has it
                run.log(numbers(row), step=row["round"], commit=True)

    def on_end(self, results: Results) -> None:
        for row in results.summary:
            self._runs[row["run"]].summary.update(numbers(row))
        self._finish(0)

    def close(self) -> None:
        self._finish(1)  # where the study was stopped

    def _finish(self, code: int) -> None:
        while self._runs:
            self._runs.popitem()[1].finish(exit_code=code)

    def _open(self, start: Start, run: TrackedRun) -> Any:
        import wandb

        own = digest(f"{start.id} {run.name}".encode())
        offline = self.mode == "offline"
        for old in (start.out / "wandb").glob(f"offline-run-*-{own}") if offline else ():
            shutil.rmtree(old)
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedskip"), group=start.out.resolve().name,
            job_type=run.setting, name=run.name, id=own, config=dict(run.keys), dir=start.out,
            mode=self.mode, resume=None if offline else "allow", reinit="create_new",
            # the machine's load says nothing of one run among many, and the terminal is not theirs
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )  # fmt: skip
