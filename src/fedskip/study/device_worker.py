"""A Ray actor on a device of a cluster: plans a part of a setting, or trains one of its groups of runs.

It uses the data of its own node where they are the same, else those of the driver. It writes no files, but
gives messages:

    ("planned", facts, progress, engine)    what the part resolved to, and why its engine was chosen
    ("rows", rows, status)                  rows of the history, and how far the runs are
    ("checkpoint", round, content)
    ("model", name, content)                a file of weights; None: there is no such model
    ("finished", summary, clients)          rows of summary.csv and clients.csv
"""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import ray
import torch

from fedskip.cluster.actors import DeviceFacts, NotUsable
from fedskip.config import StudySpec
from fedskip.data.catalogue import LoadedDatasets
from fedskip.data.dataset import Arrays, Dataset
from fedskip.engine import Stacked
from fedskip.errors import InputError, picklable
from fedskip.files import digest
from fedskip.records.checkpoint import RECORDED, pack, unpack, unpack_history
from fedskip.records.folder import Facts
from fedskip.records.table import Row, Table
from fedskip.study.machine import SHORT, Machine, arithmetic_of, suited
from fedskip.study.prepare import Prepared
from fedskip.study.rehearsal import rehearse
from fedskip.study.setting_plan import SettingPlan, make_engine
from fedskip.user_code import contained

FETCH_TIMEOUT = 600.0  # seconds


@dataclass(frozen=True)
class SettingToTrain:
    """A part of a setting, with what is needed to train it on any node."""

    spec: StudySpec  # with the device that it is trained on
    prepared: Prepared  # without data
    data: Mapping[str, Any] | None  # how a node may load it; None: it is an object of the driver
    digests: Mapping[str, str]  # of the data
    sent: Any  # a reference to what `pack_dataset` gives; only nodes that lack the data fetch it
    weights: str | None  # the digest of the file `init`
    steps: int  # client-steps of the part
    devices: float  # its share of the devices
    anyway: bool = False


@dataclass
class Job:
    """What a worker does. The references are to objects in Ray's store, which reach a node once."""

    setting: Any  # a reference to a SettingToTrain
    noted: Facts  # what study.yaml notes of the machine
    group: int | None = None  # to train; None: plan the part
    study: str = ""  # a digest
    columns: tuple[str, ...] = ()  # of the history
    checkpoint: tuple[str, bytes] | None = None  # that the group starts from: its name and content


class DeviceWorker:
    """Does one job after another on one device. Data that it has loaded stay for the next job."""

    def __init__(self, paths: Sequence[str], kind: str, folder: str) -> None:
        """`paths`: where the driver finds modules. `kind`: GPU or CPU. `folder`: where Ray spills objects."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver ends its workers
        sys.path += [path for path in paths if path not in sys.path]
        self.kind, self.folder = kind, folder
        self._datasets = LoadedDatasets()  # of this node
        self._received: dict[Any, Dataset] = {}  # the driver's, by reference
        self._job: Job | None = None

    def describe(self) -> DeviceFacts:
        return DeviceFacts.here(self.kind, self.folder)

    def load(self, job: Job) -> None:
        self._job = job

    def run(self) -> Iterator[Any]:
        """Do the job that was loaded; gives messages."""
        job, self._job = self._job, None
        try:
            if job is None:
                raise RuntimeError("a job cannot be read there: is a module missing?")
            yield from self._do(job)
        except Exception as error:
            raise picklable(error, f"On {socket.gethostname()}") from None

    def _do(self, job: Job) -> Iterator[Any]:
        setting = ray.get(job.setting, timeout=FETCH_TIMEOUT)
        dataset = self._dataset(setting)
        init = setting.prepared.setting.init
        if init and setting.weights and file_digest(init) not in (setting.weights, None):
            yield NotUsable(f"its file of weights differs (init): {init}")
            return
        if setting.spec.device == "cpu":
            torch.set_num_threads(1)
        device, arithmetic = torch.device(setting.spec.device), arithmetic_of(setting.spec)
        prepared = replace(
            setting.prepared, dataset=dataset, device=device, arithmetic=arithmetic,
            noted={"machine": job.noted},
        )  # fmt: skip
        spec = suited(setting.spec, job.noted)
        do = plan_part if job.group is None else train_group
        with contained():
            yield from do(replace(setting, spec=spec), job, prepared)
        gc.collect()  # engines and their graphs hold each other
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _dataset(self, setting: SettingToTrain) -> Dataset:
        """The data: this node's if they are the same, else the driver's."""
        with contextlib.suppress(InputError):
            dataset = self._datasets.get(setting.data) if setting.data is not None else None
            if dataset is not None and dataset.digests == setting.digests:
                return dataset
        sent = setting.sent
        if sent not in self._received:
            self._received[sent] = unpack_dataset(ray.get(sent, timeout=FETCH_TIMEOUT))
        return self._received[sent]


def plan_part(setting: SettingToTrain, job: Job, prepared: Prepared) -> Iterator[Any]:
    """Try out a part, and plan its groups."""
    machine = rehearse(prepared, setting.spec)
    if setting.spec.groups is None:
        runs, filled = len(prepared.setting.runs), devices_filled(prepared, machine, setting)
        number = number_of_groups(runs, setting.steps, setting.devices, filled)
        machine = replace(machine, processes=setting.spec.processes or number)
    plan = SettingPlan(replace(prepared, machine=machine), setting.spec, job.study)
    progress = replace(plan.progress(), status=None, seconds=None)  # type: ignore[arg-type]
    yield "planned", plan.facts(), progress, machine.line()


def train_group(setting: SettingToTrain, job: Job, prepared: Prepared) -> Iterator[Any]:
    """Train a group to its end, from checkpoint to checkpoint."""
    machine = Machine.of(setting.spec, prepared)
    differing = [
        f"{key} is {value!r}, and {job.noted[key]!r} elsewhere"
        for key, value in machine.facts().items()
        if job.noted.get(key) != value
    ]
    if differing and not setting.anyway:
        yield NotUsable(f"it would not give the same numbers: {'; '.join(differing)}")
        return
    plan = SettingPlan(replace(prepared, machine=machine), setting.spec, job.study, job.group)
    rows = restore(plan, job, setting.anyway)
    yield "rows", [], plan.status()
    [group] = plan.groups
    while plan.round < plan.setting.rounds:
        until = plan.next_checkpoint()
        for new in group.advance(until, lambda rows: None):
            rows += new
            yield "rows", new, plan.status()
        tensors, notes = plan.checkpoint(plan.groups, until)
        yield "checkpoint", until, pack(tensors, notes, Table(job.columns, rows).csv())
    summary, clients = plan.summarise(rows)
    for name, content in plan.models():
        yield "model", name, content
    yield "finished", summary, clients


def restore(plan: SettingPlan, job: Job, anyway: bool) -> list[Row]:
    """Go on from the checkpoint; gives what its runs had recorded. Nothing else of it stays in memory."""
    if job.checkpoint is None:
        return []
    file, content = Path(job.checkpoint[0]), job.checkpoint[1]
    job.checkpoint = None
    tensors, notes = unpack(file, content)
    recorded = Table.parse(unpack_history(tensors.pop(RECORDED)), file)
    plan.restore_groups(plan.groups, file, tensors, notes, anyway=anyway)
    names = {record.name for record in plan.records} - {*plan.new}
    return [row for row in recorded if row["run"] in names]


def number_of_groups(runs: int, steps: int, devices: float, filled: int = 1) -> int:
    """Into how many groups the runs of a part are cut: one for each device of its share.

    More where a device cannot compute all rows of a group at a time (`filled`: devices that all rows of the
    part fill), as those wait for each other anyway. Fewer where a group would end before its first step is
    compiled.

    >>> number_of_groups(30, 10**9, 8), number_of_groups(30, 10**9, 8, filled=12), number_of_groups(3, 10**9, 8)
    (8, 12, 3)
    >>> number_of_groups(30, 25_000, 8), number_of_groups(30, 100, 8), number_of_groups(30, 10**9, 0.4)
    (2, 1, 1)
    """
    return max(1, min(max(round(devices), filled), runs, steps // SHORT))


def devices_filled(prepared: Prepared, machine: Machine, setting: SettingToTrain) -> int:
    """How many devices all rows of a part fill, if they are computed at the same time."""
    if machine.engine == "loop":
        return 1
    runs = list(prepared.runs())
    engine = make_engine(prepared, machine, runs, setting.spec.rows)
    assert isinstance(engine, Stacked)
    slots, rows = prepared.setting.cohort * len(runs), engine.plan.rows
    return 1 if rows is None else -(-slots // rows)


def file_digest(file: str) -> str | None:
    """The digest of a file of weights; None: it cannot be read, which is reported where it is used."""
    with contextlib.suppress(OSError):
        return digest(Path(file).read_bytes())
    return None


def pack_dataset(dataset: Dataset) -> dict[str, Any]:
    """A data set for Ray's object store, whose arrays nodes map and do not copy."""
    packed = {field.name: getattr(dataset, field.name) for field in fields(Dataset)}
    samples = dataset.samples
    if type(samples) is Arrays:
        packed["samples"] = tuple(array.cpu().numpy() for array in (samples.x, samples.y))
    return packed


def unpack_dataset(fields: Mapping[str, Any]) -> Dataset:
    """The data set that `pack_dataset` packed."""
    samples = fields["samples"]
    if isinstance(samples, tuple):
        with warnings.catch_warnings(action="ignore"):  # read-only arrays: nothing writes to them
            samples = Arrays(*map(torch.from_numpy, samples))
    return Dataset(**{**fields, "samples": samples})
