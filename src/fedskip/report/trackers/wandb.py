"""Weights & Biases: one run for each run of the study, grouped by the study.

Offline unless WANDB_MODE says otherwise. W&B cannot reopen an offline run: when a study resumes, its runs are
written again, so that each has one complete folder to upload. Online, the server is asked how far a run is,
and gets the later rounds.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from fedskip.files import digest, refuse_link
from fedskip.records.table import Row
from fedskip.report.results import Results
from fedskip.report.trackers import Start, TrackedRun, Tracker, finite_numbers, importing


class WandB(Tracker):
    """Logs numbers by round, hyper-parameters as config and, at the end, the summary."""

    def __init__(self) -> None:
        self.mode: Any = os.environ.get("WANDB_MODE", "offline")
        if self.mode == "offline":  # W&B would report errors to its server all the same
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        with importing("wandb"):
            import wandb  # noqa: F401
        self._runs: dict[str, Any] = {}

    def on_start(self, start: Start) -> None:
        refuse_link(start.out / "wandb")
        for run in start.runs:
            self._runs[run.name] = self._open(start, run)
        self.on_rows(list(start.rows))

    def on_rows(self, rows: list[Row]) -> None:
        for row in rows:
            run = self._runs[row["run"]]
            if row["round"] >= run.starting_step:  # the server has the others
                run.log(finite_numbers(row), step=row["round"], commit=True)

    def on_end(self, results: Results) -> None:
        for row in results.summary.to_dict("records"):
            self._runs[row["run"]].summary.update(finite_numbers(row))
        self._finish(0)

    def close(self) -> None:
        self._finish(1)  # only runs that have not finished

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
            # no load of the machine, which trains many runs, and no capture of the terminal
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )  # fmt: skip
