"""Trains the settings of a study one after another, each from checkpoint to checkpoint."""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from fedskip.config import Setting, StudySpec, plain
from fedskip.federation import Saved
from fedskip.files import write_bytes, write_text
from fedskip.records.checkpoint import load_checkpoint, newest, save_checkpoint
from fedskip.records.folder import Facts, Folder, compare
from fedskip.records.history import SUMMARY, HistoryFile
from fedskip.records.table import Row, Table
from fedskip.report.progress import Progress, Status
from fedskip.report.trackers import TrackerList
from fedskip.study.prepare import Prepared, further_columns
from fedskip.study.processes import Process, Respond, Tell, answers
from fedskip.study.setting_plan import Group, SettingPlan
from fedskip.study.signals import Stop
from fedskip.version import versions

log = logging.getLogger(__name__)
Preparing = Callable[[int], None]  # hears of steps that are compiled, as `Engine.watch` says it


class GroupsFailed(RuntimeError):
    """Some groups of runs failed again and again; the results of the others are written."""


class Training:
    """A study while it is trained: what is written of it, and who hears of it."""

    def __init__(
        self,
        spec: StudySpec,
        settings: Sequence[Setting],
        todo: list[Prepared],
        folder: Folder,
        progress: Progress,
        trackers: TrackerList,
        stop: Stop,
        *,
        anyway: bool = False,
    ) -> None:
        """Read what the folder has of the study.

        Args:
            settings: all of them, with what `extend` added.
            todo: the parts of settings that are not done; each leaves the list as it is trained.
            anyway: go on although the machine or a library has changed.
        """
        self.spec, self.study, self.todo = spec, plain(spec, settings), todo
        self.folder, self.progress, self.trackers = folder, progress, trackers
        self.stop, self.anyway, self.record = stop, anyway, folder.record()
        self.identity = folder.identity
        self.facts: Facts = self.record.setdefault("settings", {})  # noted of each part, by key
        self.failed: GroupsFailed | None = None  # some runs were set aside
        self._empty = set[str]()  # columns that are said to have empty cells
        self.parts = [part for setting in settings for part in setting.parts()]
        runs = [run for part in self.parts for run in part.run_names]
        self._place = {run: place for place, run in enumerate(runs)}
        self.further = list(dict.fromkeys(c for one in settings for c in further_columns(one)))
        self.history = HistoryFile(folder.path / "history.csv", self.further)
        self.recovered = folder.recover(self.history, self.parts)
        # what summary.csv and clients.csv hold of runs that are done
        done = set(runs) - {run for one in todo for run in one.setting.run_names}
        file = folder.path / "clients.csv"
        clients = Table.read(file) if done and file.exists() else ()
        self.summary = [row for row in folder.summary() if row["run"] in done]
        self.clients = [row for row in clients if row["run"] in done]

    def note(self, prepared: Prepared, facts: Facts) -> None:
        """Note what a setting resolved to; `write_study` writes it.

        Refuses to go on if it would not repeat what was noted of it before.
        """
        before = prepared.noted
        facts = {name: before[name] for name in ("why",) if name in before} | facts  # as it began
        made = made_with(self.record, prepared.setting)
        if before and not self.anyway:
            then = {"versions": made["versions"], **before}
            compare(then, {"versions": versions(), **facts}, self.folder.shown)
        self.facts[prepared.setting.key], made["versions"] = facts, versions()

    def write_study(self, prepared: Iterable[Prepared]) -> None:
        """Write study.yaml with what was noted, and who has what in these settings."""
        self.folder.write(self.study, self.record)
        for one in prepared:
            one.save_partitions(self.folder.path)

    def recorded(self, rows: list[Row]) -> None:
        """There are new rows of the history, which is written now or at the next checkpoint."""
        for row in rows:
            empty = {name for name in ("test_accuracy", *self.further) if row.get(name, 0) is None}
            for name in sorted(empty - self._empty):
                text = (
                    "%s of %s is undefined (nan) at round %d: such cells of history.csv are empty"
                )
                log.warning(text, name, row["run"], row["round"])
            self._empty |= empty
        self.progress.recorded(rows)
        self.trackers.on_rows(rows)

    def rows_of(self, *parts: Setting) -> list[Row]:
        """What the history holds of these parts."""
        runs = {run for part in parts for run in part.run_names}
        return [row for row in self.history.table if row["run"] in runs]

    def saved_rows(self) -> list[Row]:
        """The rows up to the last checkpoints; those after them will be found again."""
        rounds: dict[str, int] = {}
        for part in self.parts:
            rounds |= self.folder.saved_rounds(part.key)
        return [
            dict(row) for row in self.history.table if row["round"] <= rounds.get(row["run"], 0)
        ]

    def drop_results(self) -> None:
        """Remove the results of runs that go on; with the last of them, the study is finished again."""
        (self.folder.path / "report.html").unlink(missing_ok=True)
        written = self.folder.summary()
        if not self.summary:
            (self.folder.path / "summary.csv").unlink(missing_ok=True)
        elif len(self.summary) < len(written):
            self._write("summary.csv", Table(written.columns, self.summary))

    def write_results(self, trained: Sequence[Setting]) -> None:
        """Order what these parts recorded as if they had been trained one after another; write the tables.

        Where a part has several groups, its rows are in the order of rounds, then of runs.
        """
        if self.recovered:  # all rows, first those without what `extend` added
            trained = sorted(self.parts, key=lambda part: len(part.earlier))
        several = {
            run: self.facts[part.key]["machine"]["processes"] > 1
            for part in trained
            for run in part.run_names
        }
        first = {run: place for place, part in enumerate(trained) for run in part.run_names}

        def order(row: Row) -> tuple[int, int, int]:
            run = row["run"]
            by_round = (row["round"], self._place[run]) if several.get(run) else (0, 0)
            return (first.get(run, -1), *by_round)

        self.history.sort(order)
        self.history.sync()
        if self.clients:
            self._write("clients.csv", Table(self.clients[0], self.clients))
        if self.summary:  # with all runs in it, the study is finished
            self._write("summary.csv", Table((*SUMMARY, *self.further), self.summary))

    def _write(self, name: str, table: Table) -> None:
        table.sort(key=lambda row: self._place[row["run"]])
        write_text(self.folder.path / name, table.csv())


def made_with(record: Facts, part: Setting) -> Facts:
    """Where the record has the versions that a part was made with: those of additions are their own."""
    added = bool(part.earlier)
    made: Facts = record.setdefault("added", {}).setdefault(part.key, {}) if added else record
    return made


# --- one setting after another ---------------------------------------------------------------------------


def train_settings(training: Training) -> None:
    """Train one setting after another."""
    folder, engine = training.folder.path, ""  # the engine as it was shown last
    while training.todo:
        training.stop.at_checkpoint()
        prepared = training.todo.pop(0)
        plan = make_setting_plan(training, prepared)
        training.drop_results()
        rounds = {record.name: group.round for group in plan.groups for record in group.records}
        training.history.cut(rounds, plan.new)
        choice = plan.machine.line()
        progress = plan.progress([choice] if choice not in ("", engine) else ())
        engine = choice
        training.progress.started(progress, training.rows_of(plan.setting))
        forks = len(plan.groups) > 1 and plan.machine.forks
        with contextlib.closing(Forked() if forks else InProcess()) as workers:
            train_setting(plan, training, workers)
        training.progress.finished()
        summary, clients = plan.summarise(training.history.table)
        write_models(folder / "models", plan)
        training.summary += summary
        training.clients += clients
        del plan, prepared
        gc.collect()  # engines and their graphs hold each other
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the next setting looks how much memory there is


def make_setting_plan(training: Training, prepared: Prepared) -> SettingPlan:
    """Plan a setting from its last checkpoint, and note what it resolved to in study.yaml."""
    plan = SettingPlan(prepared, training.spec, training.identity)
    training.note(prepared, plan.facts())
    training.write_study([prepared])
    for held in newest(training.folder.checkpoints, plan.setting.key):
        if held.path is not None:
            groups = [group for group in plan.groups if held.group in (None, group.number)]
            saved = load_checkpoint(held.path)
            plan.restore_groups(groups, held.path, *saved, anyway=training.anyway)
    return plan


def train_setting(plan: SettingPlan, training: Training, workers: InProcess) -> None:
    """Train a setting from where it is to its end.

    Progress and trackers get rows as they come. Those of several groups are written at the next checkpoint,
    in an order that does not depend on which group was first.
    """
    order = {record.name: place for place, record in enumerate(plan.records)}
    while plan.round < plan.setting.rounds:
        until = plan.next_checkpoint()
        behind = [group for group in plan.groups if group.round < until]
        later: list[Row] = []
        for rows in workers.advance(behind, until, training.progress.preparing):
            training.recorded(rows)
            if len(plan.groups) == 1:
                training.history.append(rows)
            else:
                later += rows
        training.history.append(sorted(later, key=lambda row: (row["round"], order[row["run"]])))
        training.history.sync()
        save_groups(plan, training, behind, until)
        training.folder.refuse_gone()
        training.progress.checkpoint(until)
        if training.todo or until < plan.setting.rounds:
            training.stop.at_checkpoint()


def save_groups(plan: SettingPlan, training: Training, behind: list[Group], round: int) -> None:
    """Write a checkpoint of all groups, or where not all are at this round, of those that came to it."""
    files = {plan.setting.key: plan.groups}
    if any(group.round != round for group in plan.groups):
        files = {group.key: [group] for group in behind}
    for key, groups in files.items():
        tensors, notes = plan.checkpoint(groups, round)
        history = training.history.of(notes["runs"], round)
        save_checkpoint(training.folder.checkpoints, key, round, tensors, notes, history)


def write_models(folder: Path, plan: SettingPlan) -> None:
    """Write the last, the best and, where there is one, the merged model of every run."""
    for name, content in plan.models():
        write_model(folder / name, content)


def write_model(path: Path, content: bytes | None) -> None:
    """Write a model; None: a study that was made longer may have left one that is no more."""
    if content is None:
        path.unlink(missing_ok=True)
    else:
        write_bytes(path, content)


# --- where groups of runs are trained --------------------------------------------------------------------


class InProcess:
    """Trains groups of runs in this process. They give the same bits wherever they are trained."""

    def advance(
        self, groups: Sequence[Group], until: int, preparing: Preparing
    ) -> Iterator[list[Row]]:
        """Train groups up to round `until`; gives the rows of the history as they are found.

        Afterwards the runs here are as they were where they were trained.
        """
        for group in groups:
            yield from group.advance(until, preparing)

    def close(self) -> None:
        """Leave nothing running."""


class Forked(InProcess):
    """Trains each group in a process of its own, forked when its group first advances."""

    def __init__(self) -> None:
        self._processes: dict[int, Process] = {}  # by the number of the group

    def advance(
        self, groups: Sequence[Group], until: int, preparing: Preparing
    ) -> Iterator[list[Row]]:
        for group in groups:
            if group.number not in self._processes:
                self._processes[group.number] = Process(partial(_serve, group))
        processes = [self._processes[group.number] for group in groups]
        for process in processes:
            process.ask(until)
        for index, is_answer, message in answers(processes):
            group = groups[index]
            if is_answer:
                group.restore(until, *message)
                continue
            kind, content, status = message
            group.elsewhere = partial(since, status, time.monotonic())
            if kind == "rows":
                yield content
            else:
                preparing(content)

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes = {}


def since(status: Status, when: float) -> Status:
    """What a process said of its runs at some time, with the time that it has been compiling since."""
    seconds = time.monotonic() - when if status.doing else 0.0
    return replace(status, preparing=status.preparing + seconds)


def _serve(group: Group, tell: Tell) -> Respond:
    """In a process of its own: advances its group, and answers with the state of the runs."""

    def advance(until: int) -> Saved:
        for rows in group.advance(until, lambda rows: tell(("step", rows, group.status()))):
            tell(("rows", rows, group.status()))
        return group.save()

    return advance
