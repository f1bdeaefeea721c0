"""MLflow: one run for each run of the study, in an experiment that has the study's name.

In OUT/mlflow.db unless a tracking URI is set. MLflow takes no number back: when a study goes on, its runs are
found by their tags, and get the rounds that they lack.
"""

from __future__ import annotations

import logging
import os
import re
import time
from typing import Any
from urllib.parse import quote

from fedskip.records.table import Row
from fedskip.report.results import Results
from fedskip.report.trackers.base import Start, TrackedRun, Tracker, needed, numbers

PAUSE = 5.0  # seconds from one sending to the next: each costs a database some ms
TOGETHER = 50  # rows, or parameters, that are sent at once: MLflow takes up to 1000 numbers, 100 parameters
ALL = 50_000  # runs: the most that can be asked for


class MLflow(Tracker):
    """Logs metrics by round, hyper-parameters and, at the end, the summary."""

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with needed("mlflow"):
            import mlflow  # noqa: F401
            import sqlalchemy  # noqa: F401
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells of every table
        self._client: Any = None
        self._ids: dict[str, str] = {}  # by run, of those that are not ended
        self._known: dict[str, set[tuple[str, int]]] = {}  # by run: prefixes and steps that are there
        self._waiting: dict[str, list[list[Any]]] = {}  # by run: the metrics of each row
        self._sent = time.monotonic()

    def on_start(self, start: Start) -> None:
        import mlflow

        store, files = None, None  # what MLflow has been told
        if not mlflow.is_tracking_uri_set():
            folder = start.out.resolve()
            path = re.sub("[%?#]", lambda sign: quote(sign[0]), (folder / "mlflow.db").as_posix())
            store, files = f"sqlite:///{path}", (folder / "mlartifacts").as_uri()
        self._client = client = mlflow.MlflowClient(store)
        found = client.get_experiment_by_name(start.name)
        experiment = found.experiment_id if found else client.create_experiment(start.name, files)
        runs = client.search_runs([experiment], f"tags.`fedskip.study` = '{start.id}'", max_results=ALL)
        before = {run.data.tags["fedskip.run"]: run for run in runs}
        for run in start.runs:
            tags = {
                "fedskip.study": start.id,
                "fedskip.run": run.name,
                "fedskip.out": str(start.out.resolve()),
            }
            there = before.get(run.name) or client.create_run(experiment, tags=tags, run_name=run.name)
            self._begin(run, there)
        self.on_rows(list(start.rows))

    def on_rows(self, rows: list[Row]) -> None:
        for row in rows:
            self._note(row["run"], row["round"], numbers(row))
        if time.monotonic() - self._sent >= PAUSE:
            self._send()

    def on_end(self, results: Results) -> None:
        for row in results.summary:
            self._note(row["run"], row["rounds"], numbers(row), "summary/")
        self._end("FINISHED")

    def close(self) -> None:
        self._end("KILLED")  # where the study was stopped

    def _begin(self, run: TrackedRun, there: Any) -> None:
        """Say that a run is under way, its parameters, and find out what is there of it."""
        from mlflow.entities import Param

        self._ids[run.name] = own = there.info.run_id
        self._client.update_run(own, status="RUNNING")
        lacking = [Param(key, str(value)) for key, value in run.keys.items() if key not in there.data.params]
        for i in range(0, len(lacking), TOGETHER):
            self._client.log_batch(own, params=lacking[i : i + TOGETHER], synchronous=True)
        self._known[run.name] = {
            (prefix, metric.step)
            for prefix in ("", "summary/")
            if f"{prefix}merges" in there.data.metrics  # which all rows have
            for metric in self._client.get_metric_history(own, f"{prefix}merges")
        }

    def _note(self, run: str, step: int, values: dict[str, float], prefix: str = "") -> None:
        """Keep the numbers of a row until they are sent, unless they are there."""
        from mlflow.entities import Metric

        if (prefix, step) not in self._known[run]:
            self._known[run].add((prefix, step))
            now = int(1000 * time.time())
            metrics = [Metric(f"{prefix}{name}", float(v), now, step) for name, v in values.items()]
            self._waiting.setdefault(run, []).append(metrics)

    def _send(self) -> None:
        while self._waiting:
            run, rows = self._waiting.popitem()
            for i in range(0, len(rows), TOGETHER):  # whole rows: all of one is there, or nothing
                together = [metric for row in rows[i : i + TOGETHER] for metric in row]
                self._client.log_batch(self._ids[run], metrics=together, synchronous=True)
        self._sent = time.monotonic()

    def _end(self, status: str) -> None:
        self._send()
        while self._ids:
            self._client.set_terminated(self._ids.popitem()[1], status)
