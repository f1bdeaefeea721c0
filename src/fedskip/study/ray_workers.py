"""Trains a study on a Ray cluster: groups of all settings at the same time, one on each device.

Only this process writes to the study's folder. Of each group it holds how far it is, and its rows since the
last checkpoint.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any

import ray

from fedskip.cluster.devices import Device, Failed, model_begun_on, refuse_unlike, why_unlike
from fedskip.cluster.ray_actors import RayActors
from fedskip.cluster.scheduler import NeedsData, Scheduler, Task
from fedskip.config import Setting, StudySpec
from fedskip.data.dataset import Dataset
from fedskip.errors import InputError, option
from fedskip.files import expand_home
from fedskip.records.checkpoint import group_key, newest, write_checkpoint
from fedskip.records.folder import Facts
from fedskip.records.table import Row
from fedskip.report.progress import ClusterProgress, DeviceStatus, SettingProgress, Status
from fedskip.study.context import StudyContext
from fedskip.study.device_worker import (
    DeviceWorker,
    Job,
    SettingToTrain,
    file_digest,
    pack_dataset,
)
from fedskip.study.prepare import Prepared
from fedskip.study.train import GroupsFailed, Trained, write_model

LISTED = 3  # groups that an error names


@contextlib.contextmanager
def ray_workers(spec: StudySpec, noted: Facts, anyway: bool) -> Iterator[RayWorkers]:
    """Inside, a study has the devices of the cluster that this process is connected to.

    `noted`: what study.yaml notes of the settings that are to be trained, if they have begun.
    """
    gpus = RayActors(DeviceWorker, "GPU").devices()
    if spec.device.startswith("cuda:"):
        fix = f"write {option('device', 'cuda')}: every group has a GPU of its own"
        raise InputError("device", "must be auto, cpu or cuda on a cluster", spec.device, fix)
    if spec.device == "cuda" and not gpus:
        rule = "is not there: no node of the cluster has a GPU"
        fix = f"start nodes that have some, or use {option('device', 'cpu')}"
        raise InputError("device", rule, spec.device, fix)
    kind = "GPU" if gpus and spec.device != "cpu" else "CPU"
    cores, per_device = spec.threads or 1, spec.per_device or 1
    scheduler = Scheduler(RayActors(DeviceWorker, kind, cores=cores, per_device=per_device))
    with contextlib.closing(scheduler):
        devices = scheduler.actors.devices()
        if not devices:
            fix = "start nodes with more cores, or set threads=1"
            raise InputError("cluster", f"has no device of {cores} cores", spec.cluster, fix)
        # The cores of a node are alike; its GPUs may differ.
        asked = [device for device in devices if kind == "GPU" or device.number == 0]
        began = [name for facts in noted.values() if (name := facts["machine"].get("device_name"))]
        model = refuse_unlike(scheduler.describe(asked), model_begun_on(began), anyway)
        scheduler.use_only(partial(why_unlike, model=model))
        # Workers do not read the settings, whose data may be large objects; a spec must have one.
        light = spec.settings[0].with_keys(data={"name": "sent apart"})
        device, workers = ("cuda", None) if kind == "GPU" else ("cpu", 1)
        spec = replace(spec, device=device, workers=spec.workers or workers, settings=(light,))
        yield RayWorkers(scheduler, spec, len(devices))


@dataclass(eq=False)
class RemoteGroup:
    """A group of runs, as far as this process knows it."""

    setting: Setting
    number: int
    of: int
    round: int  # of its newest checkpoint
    file: Path | None  # that checkpoint
    status: Status | None = None  # since it began on the device where it is
    first_steps: int = 0  # client-steps when it began there
    began: float = 0.0
    rows: Sequence[Row] = ()  # since its newest checkpoint
    results: tuple[list[Row], list[Row]] | None = None  # of its runs, and of their clients

    @property
    def runs(self) -> list[str]:
        return self.setting.run_names[self.number :: self.of]

    @property
    def key(self) -> str:
        """The key of its checkpoints."""
        key = self.setting.key
        return group_key(key, self.number, self.of) if self.of > 1 else key

    def progress(self) -> Status:
        rounds = dict.fromkeys(self.runs, float(self.round))
        return self.status or Status(rounds, frozenset(), 0, 0.0)

    def device_status(self, device: Device) -> DeviceStatus:
        label, speed = f"{self.setting.key} {self.number + 1}/{self.of}", 0.0
        if self.status is not None:
            seconds = time.monotonic() - self.began - self.status.preparing
            speed = (self.status.steps - self.first_steps) / max(seconds, 1e-9)
        return DeviceStatus(str(device), label, speed)


class RayWorkers:
    """Plans the parts of a study on a cluster, then trains their groups there."""

    def __init__(self, scheduler: Scheduler, spec: StudySpec, devices: int) -> None:
        """`spec`: with the device of the workers. `devices`: how many there are as the study begins."""
        self.scheduler, self.spec, self.devices = scheduler, spec, devices
        self._planned: dict[str, tuple[Facts, SettingProgress, str]] = {}  # by the key of a part
        self._settings: dict[str, Any] = {}  # references to what is sent of a part, by its key
        self._datasets: dict[str, Dataset] = {}  # the data of a part, by its key
        self._sent: dict[Dataset, Any] = {}  # references to those that were sent

    def plan(self, prepared: Sequence[Prepared], noted: Facts, anyway: bool) -> None:
        """Try out parts on the cluster and plan their groups; refuses what cannot be trained."""
        steps = [one.steps for one in prepared]
        for one, devices in zip(prepared, shares(steps, self.devices), strict=True):
            self._send(one, devices, anyway)
        for key in self._settings:
            machine = noted.get(key, {}).get("machine", {})
            self.scheduler.add([Task(key, partial(self._job, key, machine))])
        for task, device, message in filter(None, self.scheduler.messages()):
            if isinstance(message, NeedsData):
                self._send_data(task.name)
            elif isinstance(message, tuple):
                self._planned[task.name] = message[1:]
            elif isinstance(message, Failed) and isinstance(message.error, InputError):
                raise message.error.at(f"setting {task.name} on {device.host}")
        for task in self.scheduler.set_aside:
            rule = f"cannot try setting {task.name} ({task.error})"
            raise InputError("cluster", rule, fix="correct that, and try again")

    def _send(self, prepared: Prepared, devices: float, anyway: bool) -> None:
        """Send a part without data, and without paths that only this process can resolve."""
        setting, dataset = prepared.setting, prepared.dataset
        data = setting.data if isinstance(setting.data, dict) else None
        init = setting.init and str(expand_home(setting.init, "init").absolute())
        sent = replace(setting, data=data or {"name": dataset.name}, init=init)
        self._datasets[setting.key] = dataset
        light = replace(prepared, setting=sent, dataset=None)  # type: ignore[arg-type]
        weights = init and file_digest(init)
        self._settings[setting.key] = ray.put(
            SettingToTrain(
                self.spec, light, data, dataset.digests, weights, prepared.steps, devices, anyway
            )
        )
        if data is None:  # an object, which nodes cannot load
            self._send_data(setting.key)

    def _send_data(self, key: str) -> None:
        data = self._datasets[key]
        if data not in self._sent:
            self._sent[data] = ray.put(pack_dataset(data))

    def _job(self, key: str, noted: Facts, **more: Any) -> Job:
        return Job(self._settings[key], noted, self._sent.get(self._datasets[key]), **more)

    # --- training -------------------------------------------------------------------------------------

    def train(self, context: StudyContext, prepared: list[Prepared]) -> Trained:
        """Train all settings; the list is empty afterwards."""
        settings = [one.setting for one in prepared]
        todo = [one for one in prepared if one.setting.key not in context.finished]
        for one in todo:
            context.note(one, self._planned[one.setting.key][0])
        context.write(todo)
        groups = [group for one in todo for group in self._groups(context, one.setting)]
        context.finished.drop_others()
        context.history.cut({run: group.round for group in groups for run in group.runs})
        by_task = {self._task(context, group): group for group in groups}
        shown = ClusterProgress(
            [self._progress(one.setting, groups) for one in todo],
            lambda: [by_task[t].device_status(d) for d, t in [*self.scheduler.running.items()]],
            lambda: (sum(g.results is not None for g in groups), len(groups)),
        )
        context.progress.started_on_cluster(shown, context.rows_of([one.setting for one in todo]))
        prepared.clear()
        self.scheduler.add(by_task)
        for update in self.scheduler.messages():
            if context.stop.number is not None:
                self.scheduler.start_no_more()
            if update is not None:
                task, _, message = update
                self._handle(context, by_task[task], task, message)
        if any(group.results is None for group in groups):
            context.stop.at_checkpoint()
        context.progress.finished()
        return self._results(context, settings, groups)

    def _groups(self, context: StudyContext, setting: Setting) -> list[RemoteGroup]:
        """The groups of a part, each with its newest checkpoint."""
        planned = self._planned[setting.key][0]["machine"]["processes"]
        number = min(planned, len(setting.run_names))
        held = newest(context.folder.path / "checkpoints", setting.key)
        held = held * number if len(held) == 1 else held
        if len(held) != number:
            rule = f"must be {len(held)}, as they were cut when the study began"
            raise InputError("groups", rule, number)
        return [RemoteGroup(setting, i, number, h.round, h.path) for i, h in enumerate(held)]

    def _task(self, context: StudyContext, group: RemoteGroup) -> Task:
        setting = group.setting

        def job() -> Job:
            file = group.file
            return self._job(
                setting.key, context.noted(setting)["machine"], group=group.number,
                study=context.folder.identity, columns=context.history.columns,
                checkpoint=None if file is None else (file.name, file.read_bytes()),
            )  # fmt: skip

        visits = (setting.rounds - group.round) * len(group.runs) * setting.cohort
        return Task(group.key, job, size=visits * setting.local.epochs)

    def _handle(self, context: StudyContext, group: RemoteGroup, task: Task, message: Any) -> None:
        folder = context.folder.path
        match message:
            case "rows", rows, status:
                if group.status is None:
                    group.first_steps, group.began = status.steps, time.monotonic()
                group.status, group.rows = status, [*group.rows, *rows]
                if rows:
                    context.rows_found(rows)
            case "checkpoint", round, content:
                context.folder.refuse_gone()
                context.history.append(group.rows)  # before the checkpoint, which holds them, too
                group.file = write_checkpoint(folder / "checkpoints", group.key, round, content)
                group.round, group.rows = round, ()
                context.progress.checkpoint(round)
                task.checkpoint()
                if context.stop.number is not None:
                    self.scheduler.stop(task)
            case "model", name, content:
                write_model(folder / "models" / name, content)
            case "finished", summary, clients:
                group.results = summary, clients
            case NeedsData():
                self._send_data(group.setting.key)
            case Failed():  # it begins again from its checkpoint
                group.rows, group.status = (), None

    def _results(
        self, context: StudyContext, settings: Sequence[Setting], groups: Sequence[RemoteGroup]
    ) -> Trained:
        """The results of the parts whose groups are all done."""
        trained = Trained()
        for setting in settings:
            if setting.key in context.finished:
                trained.summary += context.finished.summary(setting)
                trained.clients += context.finished.clients(setting)
                continue
            mine = [group for group in groups if group.setting is setting]
            results = [group.results for group in mine if group.results is not None]
            if len(results) == len(mine):
                summary = (row for rows, _ in results for row in rows)
                clients = (row for _, rows in results for row in rows)
                trained.summary += in_order_of_runs(summary, setting)
                trained.clients += in_order_of_runs(clients, setting)
        if failed := self.scheduler.set_aside:
            runs = {group.key: ", ".join(group.runs) for group in groups}
            listed = "; ".join(f"{runs[task.name]} ({task.error})" for task in failed[:LISTED])
            more = f"; and {len(failed) - LISTED} more" if len(failed) > LISTED else ""
            number = (
                "1 group of runs was" if len(failed) == 1 else f"{len(failed)} groups of runs were"
            )
            trained.failed = GroupsFailed(f"{number} set aside: {listed}{more}")
        return trained

    def _progress(self, setting: Setting, groups: Sequence[RemoteGroup]) -> SettingProgress:
        mine, began = [group for group in groups if group.setting is setting], time.monotonic()
        _, progress, engine = self._planned[setting.key]
        return replace(
            progress,
            notes=[*filter(None, [engine]), *progress.notes],
            start=min(group.round for group in mine),
            status=lambda: reduce(or_, [group.progress() for group in mine]),
            seconds=lambda: time.monotonic() - began,
        )


def shares(steps: Sequence[int], devices: int) -> list[float]:
    """The devices that each part of a study gets, by its share of all client-steps.

    >>> shares([3000, 1000], 8), shares([0, 0], 4)
    ([6.0, 2.0], [2.0, 2.0])
    """
    total = sum(steps)
    return [devices * (part / total if total else 1 / len(steps)) for part in steps]


def in_order_of_runs(rows: Iterable[Row], setting: Setting) -> list[Row]:
    place = {name: index for index, name in enumerate(setting.run_names)}
    return sorted(rows, key=lambda row: place[row["run"]])
