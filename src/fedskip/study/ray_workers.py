"""Trains a study on a Ray cluster: groups of all settings at the same time, one on each device.

Only this process writes to the study's folder. Of each group it holds how far it is, and its rows since the
last checkpoint.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any

import ray

from fedskip.cluster.actors import (
    Device,
    Failed,
    RayActors,
    model_begun_on,
    refuse_unlike,
    why_unlike,
)
from fedskip.cluster.scheduler import Scheduler, Task
from fedskip.config import Setting, StudySpec
from fedskip.data.dataset import Dataset
from fedskip.errors import InputError, option
from fedskip.files import expand_home
from fedskip.records.checkpoint import group_key, newest, write_checkpoint
from fedskip.records.folder import Facts
from fedskip.records.table import Row
from fedskip.report.progress import ClusterProgress, DeviceStatus, SettingProgress, Status
from fedskip.study.device_worker import (
    DeviceWorker,
    Job,
    SettingToTrain,
    file_digest,
    pack_dataset,
)
from fedskip.study.prepare import Prepared
from fedskip.study.train import GroupsFailed, Training, write_model

LISTED = 3  # groups that an error names


@contextlib.contextmanager
def ray_workers(
    spec: StudySpec, prepared: Sequence[Prepared], anyway: bool
) -> Iterator[RayWorkers]:
    """Inside, a study has the devices of the cluster that this process is connected to.

    `prepared`: the parts of settings that are to be trained. They are tried out there, and planned.
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
        machines = [one.noted.get("machine", {}) for one in prepared]
        began = [name for machine in machines if (name := machine.get("device_name"))]
        model = refuse_unlike(scheduler.describe(asked), model_begun_on(began), anyway)
        scheduler.use_only(partial(why_unlike, model=model))
        # Workers do not read the settings, whose data may be large objects; a spec must have one.
        light = spec.settings[0].with_keys(data={"name": "sent apart"})
        device, workers = ("cuda", None) if kind == "GPU" else ("cpu", 1)
        spec = replace(spec, device=device, workers=spec.workers or workers, settings=(light,))
        cluster = RayWorkers(scheduler, spec, len(devices))
        cluster.plan(prepared, anyway)
        yield cluster


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

    def before(self) -> Status:
        """How far it is before a device says more."""
        return Status(dict.fromkeys(self.runs, float(self.round)), frozenset(), 0, 0.0)

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
        self._sent: dict[Dataset, Any] = {}  # references to data sets in Ray's object store

    def plan(self, prepared: Sequence[Prepared], anyway: bool) -> None:
        """Try out parts on the cluster and plan their groups; refuses what cannot be trained."""
        steps = [one.steps for one in prepared]
        for one, devices in zip(prepared, shares(steps, self.devices), strict=True):
            self._send(one, devices, anyway)
        for one in prepared:
            key, noted = one.setting.key, one.noted.get("machine", {})
            self.scheduler.add([Task(key, partial(Job, self._settings[key], noted))])
        for task, device, message in filter(None, self.scheduler.messages()):
            match message:
                case "planned", *planned:
                    self._planned[task.name] = tuple(planned)
                case Failed(InputError() as error):
                    raise error.at(f"setting {task.name} on {device.host}")
        for task in self.scheduler.set_aside:
            rule = f"cannot try setting {task.name} ({task.error})"
            raise InputError("cluster", rule, fix="correct that, and try again")

    def _send(self, prepared: Prepared, devices: float, anyway: bool) -> None:
        """Send a part without data, and without paths that only this process can resolve."""
        setting, dataset = prepared.setting, prepared.dataset
        data = setting.data if isinstance(setting.data, dict) else None
        init = setting.init and str(expand_home(setting.init, "init").absolute())
        sent = replace(setting, data=data or {"name": dataset.name}, init=init)
        light = replace(prepared, setting=sent, dataset=None)  # type: ignore[arg-type]
        if dataset not in self._sent:
            self._sent[dataset] = ray.put(pack_dataset(dataset))
        self._settings[setting.key] = ray.put(
            SettingToTrain(
                self.spec, light, data, dataset.digests, self._sent[dataset], init and file_digest(init),
                prepared.steps, devices, anyway,
            )
        )  # fmt: skip

    # --- training -------------------------------------------------------------------------------------

    def train(self, training: Training) -> None:
        """Train all settings at the same time."""
        parts = [one.setting for one in training.todo]
        for one in training.todo:
            training.note(one, self._planned[one.setting.key][0])
        training.write_study(training.todo)
        training.todo.clear()
        groups = [group for part in parts for group in self._groups(training, part)]
        training.drop_results()
        training.history.cut({run: group.round for group in groups for run in group.runs})
        by_task = {self._task(training, group): group for group in groups}
        shown = ClusterProgress(
            [self._progress(part, groups) for part in parts],
            lambda: [by_task[t].device_status(d) for d, t in [*self.scheduler.running.items()]],
            lambda: (sum(g.results is not None for g in groups), len(groups)),
        )
        training.progress.started_on_cluster(shown, training.rows_of(*parts))
        self.scheduler.add(by_task)
        for update in self.scheduler.messages():
            if training.stop.number is not None:
                self.scheduler.start_no_more()
            if update is not None:
                task, _, message = update
                self._handle(training, by_task[task], task, message)
        if any(group.results is None for group in groups):
            training.stop.at_checkpoint()
        training.progress.finished()
        for part in parts:  # of those whose groups are all done
            results = [group.results for group in groups if group.setting is part]
            for rows in results if None not in results else ():
                assert rows is not None
                training.summary += rows[0]
                training.clients += rows[1]
        training.failed = self._failed(groups)

    def _groups(self, training: Training, part: Setting) -> list[RemoteGroup]:
        """The groups of a part, each with its newest checkpoint."""
        planned = self._planned[part.key][0]["machine"]["processes"]
        number = min(planned, len(part.run_names))
        held = newest(training.folder.checkpoints, part.key)
        held = held * number if len(held) == 1 else held
        if len(held) != number:
            rule = f"must be {len(held)}, as they were cut when the study began"
            raise InputError("groups", rule, number)
        return [RemoteGroup(part, i, number, h.round, h.path) for i, h in enumerate(held)]

    def _task(self, training: Training, group: RemoteGroup) -> Task:
        setting = group.setting

        def job() -> Job:
            file = group.file
            return Job(
                self._settings[setting.key], training.facts[setting.key]["machine"], group=group.number,
                study=training.identity, columns=training.history.columns,
                checkpoint=None if file is None else (file.name, file.read_bytes()),
            )  # fmt: skip

        visits = (setting.rounds - group.round) * len(group.runs) * setting.cohort
        return Task(group.key, job, size=visits * setting.local.epochs)

    def _handle(self, training: Training, group: RemoteGroup, task: Task, message: Any) -> None:
        folder = training.folder
        match message:
            case "rows", rows, status:
                if group.status is None:
                    group.first_steps, group.began = status.steps, time.monotonic()
                group.status, group.rows = status, [*group.rows, *rows]
                if rows:
                    training.recorded(rows)
            case "checkpoint", round, content:
                folder.refuse_gone()
                training.history.append(group.rows)  # before the checkpoint, which holds them, too
                group.file = write_checkpoint(folder.checkpoints, group.key, round, content)
                group.round, group.rows = round, ()
                training.progress.checkpoint(round)
                task.checkpoint()
                if training.stop.number is not None:
                    self.scheduler.stop(task)
            case "model", name, content:
                write_model(folder.path / "models" / name, content)
            case "finished", summary, clients:
                group.results = summary, clients
            case Failed():  # it begins again from its checkpoint
                group.rows, group.status = (), None

    def _failed(self, groups: Sequence[RemoteGroup]) -> GroupsFailed | None:
        """The error that names the groups of runs which were set aside, if any were."""
        failed = self.scheduler.set_aside
        runs = {group.key: ", ".join(group.runs) for group in groups}
        listed = "; ".join(f"{runs[task.name]} ({task.error})" for task in failed[:LISTED])
        more = f"; and {len(failed) - LISTED} more" if len(failed) > LISTED else ""
        were = "1 group of runs was" if len(failed) == 1 else f"{len(failed)} groups of runs were"
        return GroupsFailed(f"{were} set aside: {listed}{more}") if failed else None

    def _progress(self, setting: Setting, groups: Sequence[RemoteGroup]) -> SettingProgress:
        mine, began = [group for group in groups if group.setting is setting], time.monotonic()
        _, progress, engine = self._planned[setting.key]
        return replace(
            progress,
            notes=[*filter(None, [engine]), *progress.notes],
            start=min(group.round for group in mine),
            status=lambda: reduce(or_, [group.status or group.before() for group in mine]),
            seconds=lambda: time.monotonic() - began,
        )


def shares(steps: Sequence[int], devices: int) -> list[float]:
    """The devices that each part of a study gets, by its share of all client-steps.

    >>> shares([3000, 1000], 8), shares([0, 0], 4)
    ([6.0, 2.0], [2.0, 2.0])
    """
    total = sum(steps)
    return [devices * (part / total if total else 1 / len(steps)) for part in steps]
