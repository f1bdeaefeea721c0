"""The actors of a Ray cluster: one on each device that is used, which does one task after another.

An actor has three methods. `describe()` gives its `DeviceFacts`, `load(job)` takes a job, and `run()` does it
and yields messages.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedskip.cluster.devices import Device, DeviceFacts, Failed, NotUsable, WorkerDied
from fedskip.errors import InputError

FETCH_TIMEOUT = 600.0  # seconds that a message may take: it may hold a model
HEAD_TIMEOUT = 20.0  # seconds without an answer after which the head node is lost
AHEAD = 4  # messages that an actor may yield before they are read


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
