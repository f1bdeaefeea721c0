"""MLflow: one run for each run of the study, in an experiment that has the study's name.

Stored in OUT/mlflow.db unless a tracking URI is set. MLflow cannot delete numbers: when a study resumes, its
runs are found by their tags and get the rounds that they lack.
"""

from __future__ import annotations

import logging
import os
import re
import time
from typing import Any
from urllib.parse import quote

from fedskip.files import refuse_link
from fedskip.records.table import Row
from fedskip.report.results import Results
from fedskip.report.trackers import Start, TrackedRun, Tracker, finite_numbers, importing

SENDING = 5.0  # seconds between two sendings: each costs a database some ms
BATCH = 50  # rows, or parameters, per sending: MLflow accepts 1000 numbers or 100 parameters
MOST_RUNS = 50_000  # that MLflow returns


class MLflow(Tracker):
    """Logs metrics by round, hyper-parameters and, at the end, the summary."""

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with importing("mlflow"):
            import mlflow  # noqa: F401
            import sqlalchemy  # noqa: F401
        store_log = logging.getLogger("mlflow.store.db.utils")
        store_log.setLevel(logging.WARNING)  # else a line for every table that is created
        self._client: Any = None
        self._ids: dict[str, str] = {}  # of the runs that have not ended, by name
        self._stored: dict[str, set[tuple[str, int]]] = {}  # by run: prefixes and steps
        self._waiting: dict[str, list[list[Any]]] = {}  # by run: the metrics of each unsent row
        self._sent = time.monotonic()

    def on_start(self, start: Start) -> None:
        import mlflow

        store, files = None, None  # where MLflow is set up to store
        if not mlflow.is_tracking_uri_set():
            folder = start.out.resolve()
            for name in ("mlflow.db", "mlartifacts"):
                refuse_link(folder / name)
            path = re.sub("[%?#]", lambda sign: quote(sign[0]), (folder / "mlflow.db").as_posix())
            store, files = f"sqlite:///{path}", (folder / "mlartifacts").as_uri()
        self._client = client = mlflow.MlflowClient(store)
        existing = client.get_experiment_by_name(start.name)
        experiment = (
            existing.experiment_id if existing else client.create_experiment(start.name, files)
        )
        runs = client.search_runs(
            [experiment], f"tags.`fedskip.study` = '{start.id}'", max_results=MOST_RUNS
        )
        before = {run.data.tags["fedskip.run"]: run for run in runs}
        for run in start.runs:
            tags = {
                "fedskip.study": start.id,
                "fedskip.run": run.name,
                "fedskip.out": str(start.out.resolve()),
            }
            stored = before.get(run.name)
            if stored is None:
                stored = client.create_run(experiment, tags=tags, run_name=run.name)
            self._start_run(run, stored)
        self.on_rows(list(start.rows))

    def on_rows(self, rows: list[Row]) -> None:
        for row in rows:
            self._note(row["run"], row["round"], finite_numbers(row))
        if time.monotonic() - self._sent >= SENDING:
            self._send()

    def on_end(self, results: Results) -> None:
        for row in results.summary.to_dict("records"):
            self._note(row["run"], row["rounds"], finite_numbers(row), "summary/")
        self._end("FINISHED")

    def close(self) -> None:
        self._end("KILLED")  # only runs that have not finished

    def _start_run(self, run: TrackedRun, stored: Any) -> None:
        """Mark a run as running, log its parameters, and look up which rounds are stored."""
        from mlflow.entities import Param

        self._ids[run.name] = own = stored.info.run_id
        self._client.update_run(own, status="RUNNING")
        lacking = [
            Param(key, str(value))
            for key, value in run.keys.items()
            if key not in stored.data.params
        ]
        for i in range(0, len(lacking), BATCH):
            self._client.log_batch(own, params=lacking[i : i + BATCH], synchronous=True)
        self._stored[run.name] = {
            (prefix, metric.step)
            for prefix in ("", "summary/")
            if f"{prefix}merges" in stored.data.metrics  # a column of every row
            for metric in self._client.get_metric_history(own, f"{prefix}merges")
        }

    def _note(self, run: str, step: int, values: dict[str, float], prefix: str = "") -> None:
        """Keep the numbers of a row until they are sent, unless they are stored."""
        from mlflow.entities import Metric

        if (prefix, step) not in self._stored[run]:
            self._stored[run].add((prefix, step))
            now = int(1000 * time.time())
            metrics = [Metric(f"{prefix}{name}", float(v), now, step) for name, v in values.items()]
            self._waiting.setdefault(run, []).append(metrics)

    def _send(self) -> None:
        while self._waiting:
            run, rows = self._waiting.popitem()
            for i in range(0, len(rows), BATCH):  # whole rows: all of a row is stored, or nothing
                together = [metric for row in rows[i : i + BATCH] for metric in row]
                self._client.log_batch(self._ids[run], metrics=together, synchronous=True)
        self._sent = time.monotonic()

    def _end(self, status: str) -> None:
        self._send()
        while self._ids:
            self._client.set_terminated(self._ids.popitem()[1], status)
