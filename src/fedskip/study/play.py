"""A study is played: one part of a setting after another, here. `spread.py` plays it on a cluster."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fedskip.records.history import HistoryFile
from fedskip.records.provenance import Facts, Folder, compare
from fedskip.records.table import Row
from fedskip.report.progress import Progress
from fedskip.report.trackers.audience import Audience, Heard
from fedskip.spec import Setting, StudySpec, dump
from fedskip.study.growth import Done, made_with
from fedskip.study.machine import Machine, suited
from fedskip.study.prepare import Prepared
from fedskip.study.session import Session
from fedskip.study.stops import Stop
from fedskip.version import versions

NO_LIMIT = 1 << 62  # rows


@dataclass(frozen=True)
class Stage:
    """A study while it is played: what it writes to, and who hears it."""

    spec: StudySpec
    folder: Folder
    settings: list[Setting]  # all of them, whole
    history: HistoryFile
    record: Facts
    done: Done
    progress: Progress
    audience: Audience
    stop: Stop
    anyway: bool = False

    def noted(self, part: Setting) -> Facts:
        """What was noted of a part when it began."""
        known: Facts = self.record.setdefault("settings", {}).get(part.key, {})
        return known

    def note(self, part: Prepared, found: Facts) -> None:
        """Note what a part resolved to; `write` writes it.

        Refuses to go on if it would not repeat what was noted of it before.
        """
        name, known = part.setting.key, self.noted(part.setting)
        facts = {key: known[key] for key in ("why",) if key in known} | found  # as it began
        made = made_with(self.record, part.setting)
        if known and not self.anyway:
            noted = {"versions": made["versions"], **known}
            compare(noted, {"versions": versions(), **facts}, self.folder.path)
        self.record["settings"][name], made["versions"] = facts, versions()

    def settle(self, parts: Sequence[Setting]) -> None:
        """Put what these parts recorded in the order that it has when they are trained one after another.

        Where a part has several groups, its rows are in the order of rounds, then of runs.
        """
        places = {
            run: (place, self.noted(part)["machine"]["processes"] > 1, index)
            for place, part in enumerate(parts)
            for index, run in enumerate(part.run_names)
        }

        def order(row: Row) -> tuple[int, int, int]:
            place, several, index = places.get(row["run"], (-1, False, 0))
            return (place, row["round"], index) if several else (place, 0, 0)

        self.history.sort(order)

    def write(self, parts: Sequence[Prepared]) -> None:
        """Write study.yaml with what was noted, and who has what."""
        self.folder.write(dump(self.spec, self.settings), self.record)
        for part in parts:
            part.save_partitions(self.folder.path)


@dataclass
class Outcome:
    """What a study came to."""

    summary: list[Row] = field(default_factory=list)
    clients: list[Row] = field(default_factory=list)
    aside: Exception | None = None  # some runs were set aside, and are not in it


def limit(spec: StudySpec, before: Facts) -> int | None:
    """The most rows that the stacked engine computes at a time; None: it is yet to be found out."""
    return spec.rows or before.get("rows") or (NO_LIMIT if before else None)


def in_turn(stage: Stage, prepared: list[Prepared]) -> Outcome:
    """Train one part of a setting after another; the list is empty afterwards."""
    outcome, engine = Outcome(), ""  # as it was said last
    folder, history, progress = stage.folder.path, stage.history, stage.progress
    while prepared:
        stage.stop.at_checkpoint()
        one = prepared.pop(0)
        if one.setting.key in stage.done:
            outcome.summary += stage.done.summary(one.setting)
            outcome.clients += stage.done.clients(one.setting)
            continue
        session = begun(stage, one)
        with contextlib.closing(session):
            session.restore(folder / "checkpoints", stage.anyway)
            stage.done.only_those_are_written()
            session.cut(history)
            chosen = one.choice.line() if one.choice and one.choice.why else ""
            course = session.course([chosen] if chosen not in ("", engine) else ())
            engine, runs = chosen, set(one.setting.run_names)
            progress.setting(course, [row for row in history.table if row["run"] in runs])
            for round in session.train(folder / "checkpoints", history, Heard(progress, stage.audience)):
                stage.folder.refuse_gone()
                progress.checkpoint(round)
                if prepared or round < one.setting.rounds:
                    stage.stop.at_checkpoint()
        progress.finished()
        outcome.summary += session.finish(history.table)
        session.write_models(folder / "models")
        outcome.clients += session.client_rows()
        del session, one
        gc.collect()  # engines and their graphs hold each other
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the next setting looks how much memory there is
    return outcome


def begun(stage: Stage, prepared: Prepared) -> Session:
    """Make the runs of a part, and note what they resolved to in study.yaml."""
    before = stage.noted(prepared.setting).get("machine", {})
    machine = Machine.of(suited(stage.spec, before), prepared)
    rows, every = limit(stage.spec, before), stage.spec.checkpoint_every
    session = Session(prepared, machine, rows, every, stage.folder.identity, before)
    stage.note(prepared, session.facts())
    stage.write([prepared])
    return session
