"""The ServerApp: what a SuperLink runs for a federation, and the results that it writes.

Flower hands the configuration of a run to every node. So the study, which has the seed and the period, is not
in there: it stays in the federation's folder on the server, which an environment variable names.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedskip.config import plain
from fedskip.errors import InputError
from fedskip.files import locked, write_text
from fedskip.flower.config import FOLDER, ROUNDS, RUN, STATUS, TRUST
from fedskip.flower.coordinator import Connection, Coordinator, Round
from fedskip.flower.messages import AUDIT, AuditLog
from fedskip.flower.plan import FederationPlan
from fedskip.records.folder import Folder, existing_history, lost_checkpoints
from fedskip.records.history import SUMMARY, summarise
from fedskip.records.table import Row, Table
from fedskip.report.page import write_report
from fedskip.report.results import Results
from fedskip.study.train import write_model
from fedskip.version import versions

SITES = ("round", "client", "samples", "test_accuracy", "test_loss")
log = logging.getLogger(__name__)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the federation to its end."""
    folder = Path(os.environ[FOLDER])
    write_status(folder, "running")
    try:
        serve(folder, grid)
    except Exception as error:  # of any kind: the command that watches must learn of it
        text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        write_status(folder, "failed", text)
        raise
    write_status(folder, "finished")


def write_status(folder: Path, state: str, why: str = "") -> None:
    status = {"state": state, "pid": os.getpid(), "why": why[:500]}
    write_text(folder / RUN / STATUS, json.dumps(status))


def serve(folder: Path, grid: Grid) -> None:
    """Train a federation from where it is to its end."""
    with locked(folder / RUN):
        plan = FederationPlan.read(folder, trust=TRUST in os.environ)
        if plan.guessable:
            fix = "leave `seeds` out for a secret one"
            log.warning("the seed %d can be found by trying: %s", plan.seed, fix)
        connection = Connection(grid, plan.config.clients, AuditLog(folder / AUDIT))
        coordinator = Coordinator(plan, connection, folder / RUN / "checkpoints")
        resumed = coordinator.restore()
        results = RunFolder(coordinator, folder / RUN)
        results.begin(resumed)
        for done in coordinator.rounds():
            results.record(done)
        results.finish()


class RunFolder:
    """The results of a federation: the folder of a study, with a few files more."""

    def __init__(self, coordinator: Coordinator, path: Path) -> None:
        self.coordinator, self.plan, self.path = coordinator, coordinator.plan, path
        self.folder = Folder(path)
        self.sites: list[Row] = []  # of sites.csv
        self.last = time.monotonic()  # when the last round was done

    def begin(self, resumed: bool) -> None:
        """Write the study, and drop what came after the last checkpoint."""
        if resumed:
            log.info("going on after round %d", self.coordinator.run.round)
        else:
            self._refuse_lost()
        if not self.folder.file.exists():
            self._write_study()
        self.folder.clear()
        (self.path / "summary.csv").unlink(missing_ok=True)
        done = self.coordinator.run.round
        write_text(self.path / "history.csv", self.coordinator.history())
        sites, rounds = self.path / "sites.csv", self.path / ROUNDS
        rows = Table.read(sites) if sites.exists() else ()
        self._add_sites([row for row in rows if row["round"] <= done])
        lines = rounds.read_text(encoding="utf-8").splitlines() if rounds.exists() else []
        kept = [line + "\n" for line in lines if json.loads(line)["round"] <= done]
        write_text(rounds, "".join(kept))

    def _refuse_lost(self) -> None:
        """Refuse to start over where there are results: every round has a checkpoint before its rows."""
        lost = ["history.csv"] * bool(len(existing_history(self.path)))
        lost += ["summary.csv"] * (self.path / "summary.csv").exists()
        if lost:
            fix = "begin another federation with `fedskip federation init`"
            raise lost_checkpoints(self.folder, self.plan.setting.name, lost, fix)

    def record(self, done: Round) -> None:
        """Add a round to the tables."""
        run, now = self.coordinator.run, time.monotonic()
        line = {
            "round": run.round, "rounds": self.plan.setting.rounds,
            "seconds": round(now - self.last, 2), "clients": done.accepted,
            "left_out": done.left_out, "slots": run.server.slots,
        }  # fmt: skip
        self.last = now
        if done.row is not None:
            write_text(self.path / "history.csv", self.coordinator.history())
            self._add_sites(done.sites)
            line |= {key: done.row[key] for key in ("test_accuracy", "test_loss", "x_worst_client")}
        with (self.path / ROUNDS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _add_sites(self, rows: Sequence[Row]) -> None:
        self.sites += rows
        write_text(self.path / "sites.csv", Table(SITES, self.sites).csv())

    def _write_study(self, tests: int | None = None) -> None:
        """Write study.yaml. `tests`: how many samples all clients test on, once that is known."""
        plan, division = self.plan, {"clients": len(self.plan.config.clients)}
        division |= {} if tests is None else {"test": tests, "evaluated": tests}
        facts: dict[str, Any] = {
            "machine": {"engine": "loop", "place": "federation"}, "data": {},
            "parameters": plan.layout.size,
            "divisions": {plan.setting.division_seed(plan.seed): division}, "short": {},
        }  # fmt: skip
        record = {"versions": versions(), "settings": {plan.setting.name: facts}}
        self.folder.write(plain(plan.spec, [plan.setting]), record)

    def finish(self) -> None:
        """Write the models, the summary, the last score of each client, and the report."""
        plan, record, rows = self.plan, self.coordinator.record, self.coordinator.rows
        about = {"model": plan.setting.model, "classes": plan.sizes.get("classes")}
        for name, content in record.model_files(plan.layout, about):
            write_model(self.path / "models" / name, content)
        last = [row for row in self.sites if rows and row["round"] == rows[-1]["round"]]
        if last:
            clients = [
                record.about | {key: row[key] for key in ("client", "test_accuracy")}
                for row in last
            ]
            write_text(self.path / "clients.csv", Table(clients[0], clients).csv())
            self._write_study(tests=sum(row["samples"] for row in last))
        row = summarise(rows, rounds=plan.setting.rounds)
        row |= {"full_test": row["last"], **record.summary()}
        write_text(self.path / "summary.csv", Table(SUMMARY, [row]).csv())
        write_report(Results.read(self.path))
