"""The run of a federation on the server: its folder, its rounds, and what is written when they are done."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedskip.files import locked, write_text
from fedskip.flower import agreement, audit
from fedskip.flower.conductor import Conductor
from fedskip.flower.line import Line
from fedskip.flower.plan import Plan
from fedskip.flower.strategy import SkippingStrategy, Told
from fedskip.models.weights import write_weights
from fedskip.records.history import SUMMARY, summarise
from fedskip.records.provenance import Folder
from fedskip.records.table import Row, Table
from fedskip.report.page import write_report
from fedskip.report.results import Results
from fedskip.spec import build, dump, load_yaml
from fedskip.study.lost import history_of, results_lost
from fedskip.version import versions

log = logging.getLogger(__name__)

RUN, STATUS, ROUNDS = "run", "status.json", "rounds.jsonl"
SITES = ("round", "client", "samples", "test_accuracy", "test_loss")


def plan_in(folder: Path) -> Plan:
    """The plan of a federation's folder: as it was begun, or as it is written."""
    begun = folder / RUN / "study.yaml"
    spec = build(load_yaml(begun if begun.exists() else folder / "study.yaml"))
    return Plan.of(spec, agreement.Agreement.read(folder / agreement.FILE))


def serve(folder: Path, grid: Grid) -> None:
    """Play a federation from where it is to its end."""
    out = folder / RUN
    with locked(out):
        plan = plan_in(folder)
        if plan.guessable:
            log.warning("the seed %d can be found by trying: leave `seeds` out for a secret one", plan.seed)
        Serving(plan, out).play(Line(grid, plan.agreement.clients, audit.Audit(folder / audit.FILE)))


class Serving:
    """A run, and its folder: the same that a study leaves behind."""

    def __init__(self, plan: Plan, out: Path) -> None:
        self.plan, self.out = plan, out
        self.conductor = Conductor(plan, out / "checkpoints")
        self.last = time.monotonic()

    def play(self, line: Line) -> None:
        folder = Folder(self.out)
        if self.conductor.restore():
            log.info("going on after round %d", self.conductor.round)
        else:
            self._refuse_lost(folder)
        if not folder.file.exists():
            folder.write(dump(self.plan.spec, [self.plan.setting]), self._record())
        folder.clear()
        (self.out / "summary.csv").unlink(missing_ok=True)
        self._cut()
        SkippingStrategy(self.conductor, line, self.told).play()
        self._finish()

    def _refuse_lost(self, folder: Folder) -> None:
        """Refuse to start anew where there are results: every round has a checkpoint before its rows."""
        rows, summary = history_of(self.out), (self.out / "summary.csv").exists()
        found = ["history.csv"] * bool(len(rows)) + ["summary.csv"] * summary
        if found:
            begin = "begin another federation with `fedskip federation init`"
            raise results_lost(folder, self.plan.setting.name, found, begin)

    def told(self, told: Told) -> None:
        """A round is done: the tables have what is new."""
        conductor, names = told.conductor, self.plan.agreement.clients
        if told.row is not None:
            write_text(self.out / "history.csv", conductor.history())
            rows = [
                {
                    "round": conductor.round, "client": names[client], "samples": int(one["samples"]),
                    "test_accuracy": one["metric"] / one["samples"],
                    "test_loss": one["loss"] / one["samples"],
                }
                for client, one in sorted(told.scores.items())
            ]  # fmt: skip
            write_text(self.out / "sites.csv", Table(SITES, [*self._sites(), *rows]).csv())
        now = time.monotonic()
        line = {
            "round": conductor.round, "rounds": self.plan.setting.rounds,
            "seconds": round(now - self.last, 2), "clients": told.clients, "left_out": told.left_out,
            "slots": conductor.run.server.slots,
            **({} if told.row is None else _scores(told.row)),
        }  # fmt: skip
        self.last = now
        with (self.out / ROUNDS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _sites(self) -> list[Row]:
        path = self.out / "sites.csv"
        return list(Table.read(path)) if path.exists() else []

    def _cut(self) -> None:
        """Forget what came after the last checkpoint."""
        write_text(self.out / "history.csv", self.conductor.history())
        kept = [row for row in self._sites() if row["round"] <= self.conductor.round]
        write_text(self.out / "sites.csv", Table(SITES, kept).csv())
        path = self.out / ROUNDS
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        write_text(path, "".join(line for line in lines if json.loads(line)["round"] <= self.conductor.round))

    def _record(self, tests: int | None = None) -> dict[str, Any]:
        """What study.yaml notes; `tests`: how many samples the sites test on, once that is known."""
        division = {"clients": len(self.plan.agreement.clients)}
        division |= {} if tests is None else {"test": tests, "evaluated": tests}
        facts = {
            "machine": {"engine": "loop", "place": "federation"}, "data": {},
            "parameters": self.plan.layout.size,
            "divisions": {self.plan.setting.division_seed(self.plan.seed): division}, "short": {},
        }  # fmt: skip
        return {"versions": versions(), "settings": {self.plan.setting.name: facts}}

    def _finish(self) -> None:
        """Write the models, the summary, each client's score and the report."""
        conductor, standing = self.conductor, self.conductor.standing
        self._write_models()
        last = conductor.rows[-1]["round"] if conductor.rows else 0
        sites = [row for row in self._sites() if row["round"] == last]
        each = [standing.about() | {name: row[name] for name in ("client", "test_accuracy")} for row in sites]
        if each:
            write_text(self.out / "clients.csv", Table(each[0], each).csv())
            tests = sum(row["samples"] for row in sites)
            Folder(self.out).write(dump(self.plan.spec, [self.plan.setting]), self._record(tests))
        server = standing.run.server
        row = summarise(conductor.rows, rounds=self.plan.setting.rounds) | standing.about()
        row |= {"final": standing.final, "full_test": row["last"], "diverged": False}
        row |= {"rounds": conductor.round, "bytes_total": server.bytes_down + server.bytes_up}
        write_text(self.out / "summary.csv", Table(SUMMARY, [row]).csv())
        write_report(Results.read(self.out))

    def _write_models(self) -> None:
        standing, setting, sizes = self.conductor.standing, self.plan.setting, self.plan.sizes
        kinds = {"last": standing.last_model, "best": standing.best_model, "final": standing.final_model}
        for kind, vector in kinds.items():
            if vector is not None:
                about = {"kind": kind, "model": setting.model, "classes": sizes.get("classes")}
                file = self.out / "models" / f"{standing.name}.{kind}.safetensors"
                write_weights(file, self.plan.layout.views(vector), about | standing.about())


def _scores(row: Row) -> dict[str, float]:
    return {name: row[name] for name in ("test_accuracy", "test_loss", "x_worst_client")}


def say(folder: Path, state: str, why: str = "") -> None:
    """Leave word of how the run stands, for those who watch."""
    word = {"state": state, "pid": os.getpid(), "why": why[:500]}
    write_text(folder / RUN / STATUS, json.dumps(word))
