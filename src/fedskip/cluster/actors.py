"""The devices of a Ray cluster, and the actor on each that is used: it does one task after another.

An actor has three methods. `describe()` gives its `DeviceFacts`, `load(job)` takes a job, and `run()` does it
and yields messages. Nodes must be alike in what decides numbers.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedskip.errors import InputError, flag
from fedskip.version import device_name, same_device, versions

MIN_FREE = 1 << 30  # bytes of disk that a node must have, for objects that Ray spills
FETCH_TIMEOUT = 600.0  # seconds that a message may take: it may hold a model
HEAD_TIMEOUT = 20.0  # seconds without an answer after which the head node is lost
AHEAD = 4  # messages that an actor may yield before they are read

log = logging.getLogger(__name__)


class Device(NamedTuple):
    """A GPU, a share of a GPU, or a CPU core of a node."""

    node: str  # Ray's id of it
    host: str
    kind: str  # GPU or CPU
    number: int  # among those of its node

    def __str__(self) -> str:
        return f"{self.host} {self.kind} {self.number}"


class DeviceFacts(NamedTuple):
    """What a worker says of its node and its device."""

    versions: Mapping[str, str]
    model: str  # of the device
    free: int  # bytes of disk

    @classmethod
    def here(cls, kind: str, folder: str) -> DeviceFacts:
        """Those of this process; `folder`: where Ray spills objects."""
        # The model of its CPU also where a node has GPUs: Ray does not hide them from a core's worker.
        model = device_name("cuda" if kind == "GPU" else "cpu")
        return cls(versions(), model, shutil.disk_usage(folder).free)


@dataclass(frozen=True)
class NotUsable:
    """A device cannot be used, whatever the task."""

    why: str


class WorkerDied(RuntimeError):
    """A worker died, hangs, or does not answer."""


@dataclass(frozen=True)
class Failed:
    """A worker died, or its task raised an error."""

    error: Exception


Answer = DeviceFacts | NotUsable | Failed  # what is known of a device


def why_unlike(facts: DeviceFacts, model: str | None) -> str:
    """Why a device is not used, or ""; `model`: that devices must have, None: any."""
    others = [
        f"{name} {facts.versions.get(name)} instead of {version}"
        for name, version in versions().items()
        if facts.versions.get(name) != version
    ]
    if others:
        return f"it has {', '.join(others)}"
    if facts.free < MIN_FREE:
        return f"it has {facts.free / 2**20:,.0f} MiB of disk left for Ray (`ray start --temp-dir`)"
    if model is not None and facts.model != model:
        return f"its device is {facts.model}, and not {model}"
    return ""


def refuse_unlike(answers: Mapping[Device, Answer], model: str | None, anyway: bool) -> str | None:
    """Refuse a cluster whose nodes would not give the same numbers; gives the model that devices must have.

    Args:
        answers: what the workers of its devices said.
        model: of the devices that the study began on, if it has begun.
        anyway: devices may be of several models.
    """
    hosts, silent = dict[str, str](), list[str]()  # hosts by model
    for device, answer in answers.items():
        if isinstance(answer, Failed):
            log.warning("%s does not answer: %s", device, answer.error)
            silent.append(f"{device.host}: {answer.error}")
            continue
        if isinstance(answer, NotUsable):
            why = answer.why
        else:
            why = why_unlike(answer, None)
            hosts[answer.model] = device.host
        if why:
            fix = "correct that, or remove the node from the cluster"
            raise InputError(f"cluster node {device.host}", f"cannot be used: {why}", fix=fix)
    if not hosts:
        raise InputError(
            "cluster", f"has no node that answers; {silent[0]}", fix="see `ray status`"
        )
    if anyway or model in hosts:
        return None if anyway else model
    alike = [name for name in hosts if model is None or same_device(model, name)]
    listed = ", ".join(f"{name} ({host})" for name, host in hosts.items())
    if not alike:
        fix = f"bring back a node that has one; {flag('anyway')} continues with others, and bits will differ"
        raise InputError("cluster", f"has no {model}, which the study began on", listed, fix)
    if len(alike) > 1:
        fix = f"use nodes of one model; {flag('anyway')} uses all, and bits depend on which trains what"
        raise InputError("cluster", "must have devices of one model", listed, fix)
    return alike[0]


def model_begun_on(names: list[str]) -> str | None:
    """The model of device that settings began on; older versions noted less of its name."""
    alone = [name for name in names if not any(o != name and same_device(name, o) for o in names)]
    return alone[0] if alone else None


# --- actors ----------------------------------------------------------------------------------------------


class Ended:
    """A task has yielded all its messages."""


@dataclass(eq=False)
class Worker:
    """The actor of a device, as this process knows it."""

    device: Device
    actor: Any
    reply: Any  # what it was asked for: its facts, or the stream of its messages; None: nothing
    started: float = field(default_factory=time.monotonic)
    facts: DeviceFacts | None = None  # None: its process has not started yet
    task: Any = None  # what it works on
    silent: float = 0.0  # seconds since its last message


class RayActors:
    """Starts actors on the devices of the cluster that this process is connected to."""

    def __init__(self, actor: type, kind: str, *, cores: int = 1, per_device: int = 1) -> None:
        """`kind`: GPU or CPU. `cores`: of an actor on a CPU. `per_device`: actors that share a GPU."""
        self.kind, self.cores, self.per_device = kind, cores, per_device
        self._class = ray.remote(actor)
        self._folders: dict[str, str] = {}  # where Ray spills objects, by node
        self._head = ray.get_runtime_context().gcs_address
        self._head_missing: float | None = None  # since when

    def devices(self) -> list[Device]:
        """The devices that there are now; none while the head does not answer, as `start` would wait for it."""
        devices: list[Device] = []
        if not self._head_answers():
            if time.monotonic() - (self._head_missing or 0) > HEAD_TIMEOUT:
                fix = "start it again, then resume the study"
                raise InputError("cluster", "has lost its head node", self._head, fix)
            return devices
        for node in filter(lambda node: node["Alive"], ray.nodes()):
            self._folders[node["NodeID"]] = str(Path(node["RayletSocketName"]).parent.parent)
            amount = int(node["Resources"].get(self.kind, 0))
            number = amount * self.per_device if self.kind == "GPU" else amount // self.cores
            name = node["NodeID"], node["NodeName"], self.kind
            devices += [Device(*name, index) for index in range(number)]
        return devices

    def _head_answers(self) -> bool:
        """Without its head a cluster is lost; Ray waits for it, then ends this process and says little."""
        host, _, port = self._head.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=3.0).close()
        except OSError:
            self._head_missing = self._head_missing or time.monotonic()
            return False
        self._head_missing = None
        return True

    def start(self, device: Device) -> Worker:
        """Start an actor; its first message are its `DeviceFacts`."""
        on_gpu = device.kind == "GPU"
        paths = [os.getcwd(), *filter(None, sys.path)]
        # No restarts or retries by Ray: it would repeat a task from its start, not its last checkpoint.
        actor = self._class.options(
            num_cpus=0 if on_gpu else self.cores, num_gpus=1 / self.per_device if on_gpu else 0,
            max_restarts=0, max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(device.node, soft=False),
        ).remote(paths, device.kind, self._folders[device.node])  # fmt: skip
        return Worker(device, actor, actor.describe.remote())

    def run(self, worker: Worker, job: Any) -> None:
        """Have an actor do a job; `receive` gives its messages."""
        # Two calls: Ray keeps the arguments of a call, such as a checkpoint, until it ends.
        worker.actor.load.remote(job)
        worker.reply = worker.actor.run.options(
            num_returns="streaming", _generator_backpressure_num_objects=AHEAD
        ).remote()

    def receive(self, workers: Iterable[Worker], seconds: float) -> Iterator[tuple[Worker, Any]]:
        """The next message of each actor that has one; waits for the first for so many seconds."""
        by_reply = {worker.reply: worker for worker in workers if worker.reply is not None}
        if not by_reply:
            time.sleep(seconds)
            return
        ray.wait([*by_reply], timeout=seconds)
        for reply in ray.wait([*by_reply], num_returns=len(by_reply), timeout=0)[0]:
            yield by_reply[reply], self._message(by_reply[reply])

    def _message(self, worker: Worker) -> Any:
        try:
            if worker.facts is not None:
                return ray.get(next(worker.reply), timeout=FETCH_TIMEOUT)
            worker.facts, worker.reply = ray.get(worker.reply, timeout=FETCH_TIMEOUT), None
            return worker.facts
        except StopIteration:
            worker.reply = None
            return Ended()
        except RayTaskError as error:
            return Failed(error.cause if isinstance(error.cause, Exception) else error)
        except GetTimeoutError:
            return Failed(WorkerDied("its message did not arrive"))
        except ActorUnschedulableError:
            return Failed(WorkerDied("its node is gone"))
        except RayError as error:
            if getattr(error, "actor_init_failed", False):
                return NotUsable(str(error).strip().splitlines()[-1])
            name = type(error).__name__
            return Failed(WorkerDied(f"it died, was killed, or ran out of memory ({name})"))

    def kill(self, worker: Worker) -> None:
        if self._head_missing is None and self._head_answers():  # else Ray would wait for it
            ray.kill(worker.actor)
