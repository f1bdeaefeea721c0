"""Gives tasks to the devices of a cluster: large ones first, again after a failure, set aside after three."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedskip.cluster.actors import (
    Answer,
    Device,
    DeviceFacts,
    Ended,
    Failed,
    NotUsable,
    RayActors,
    Worker,
    WorkerDied,
)
from fedskip.errors import InputError, first_line

TRIES = 3  # of a task between two checkpoints
POLL = 0.5  # seconds between two looks for messages
REFRESH = 2.0  # and for devices
REST = 5.0  # seconds after a worker died in which none starts: its node may be gone, or the head
START_TIMEOUT = 180.0  # seconds after which a worker that has not started is not waited for
DESCRIBE_TIMEOUT = 240.0  # seconds in which all nodes must answer before the study begins
IDLE_TIMEOUT = 600.0  # seconds without any worker after which the study gives up
# A worker hangs after so many seconds without a message, or so many of the longest pauses, if that is longer.
HOUR, DAY = 3600.0, 86400.0  # after its task's first checkpoint, and before it
PAUSES = 20
READY, STARTING, NO_WORKER, LATE = range(4)  # how soon a device may do a task; late: others use it

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Task:
    """Work for one device."""

    name: str
    job: Callable[[], Any]  # what its worker gets; made whenever it begins
    size: float = 0.0
    failures: int = field(default=0, init=False)  # since its last checkpoint
    failed_on: set[Device] = field(default_factory=set, init=False)
    has_checkpoint: bool = field(default=False, init=False)
    error: str = field(default="", init=False)  # why it is set aside

    def checkpoint(self) -> None:
        """Its work so far is kept: from here on it may fail as often again."""
        self.failures, self.failed_on, self.has_checkpoint = 0, set(), True


class Scheduler:
    """Runs tasks on the devices of a cluster. Nodes may die and join."""

    def __init__(self, actors: RayActors) -> None:
        self.actors = actors
        self.set_aside: list[Task] = []
        self._check: Callable[[DeviceFacts], str] = lambda facts: ""
        self.refused: dict[Device, str] = {}  # and why
        self._waiting: list[Task] = []  # the largest first
        self._stopping = False
        self._devices: list[Device] = []  # that are there and not refused
        self._workers: dict[Device, Worker] = {}
        self._failed_starts = Counter[Device]()  # of workers, one after another
        self._longest_pause = 0.0  # between two messages of a worker
        self._refreshed, self._rest_until = -REFRESH, 0.0
        self._last_used = self._polled = 0.0  # when there was a worker; a look for messages

    @property
    def running(self) -> dict[Device, Task]:
        return {d: worker.task for d, worker in [*self._workers.items()] if worker.task is not None}

    def add(self, tasks: Iterable[Task]) -> None:
        self._waiting = sorted([*self._waiting, *tasks], key=lambda task: -task.size)

    def start_no_more(self) -> None:
        """Running tasks go on; no other is started."""
        self._stopping = True

    def stop(self, task: Task) -> None:
        """End a running task."""
        for device in [device for device, other in self.running.items() if other is task]:
            self._end_worker(device)

    def close(self) -> None:
        """End all workers."""
        for device in list(self._workers):
            self._end_worker(device)

    def describe(self, devices: Iterable[Device]) -> dict[Device, Answer]:
        """Start workers on these devices; gives what they say of them, or why they do not."""
        self._workers |= {device: self.actors.start(device) for device in devices}
        waiting, answers = dict(self._workers), dict[Device, Answer]()
        deadline = time.monotonic() + DESCRIBE_TIMEOUT
        while waiting and time.monotonic() < deadline:
            for worker, answer in self.actors.receive([*waiting.values()], POLL):
                del waiting[worker.device]
                answers[worker.device] = answer
        answers |= {device: Failed(WorkerDied("no answer in time")) for device in waiting}
        for device, answer in answers.items():
            if not isinstance(answer, DeviceFacts):
                self._end_worker(device)
        return answers

    def use_only(self, check: Callable[[DeviceFacts], str]) -> None:
        """Use only devices that pass a check, which gives "" or why one does not."""
        self._check = check
        for device, worker in list(self._workers.items()):
            if worker.facts is not None and (why := check(worker.facts)):
                self._refuse(device, why)

    def messages(self) -> Iterator[tuple[Task, Device, Any] | None]:
        """What tasks say until all are done or set aside; None: a moment has passed."""
        self._last_used = self._polled = time.monotonic()
        while self.running or (self._waiting and not self._stopping):
            self._refresh()
            if not self._stopping:
                self._start_tasks()
            for worker, message in self.actors.receive(list(self._workers.values()), POLL):
                if self._workers.get(worker.device) is worker:  # else it has been ended
                    yield from self._handle(worker, message)
            for worker, error in self._hanging():
                if self._workers.get(worker.device) is worker:
                    yield from self._handle(worker, Failed(error))
            yield None

    # --- devices --------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """See which devices there are; refuse to wait for ever where none can be used."""
        now = time.monotonic()
        if now - self._refreshed >= REFRESH:
            self._refreshed = now
            devices = sorted(self.actors.devices())
            self._devices = [device for device in devices if device not in self.refused]
            gone = self._workers.keys() - set(devices) - self.running.keys()
            for device in gone if devices else ():
                self._end_worker(device)
            if devices and not self._devices and not self.running:
                rule = f"has no device that can be used; {devices[0]}: {self.refused[devices[0]]}"
                raise InputError("cluster", rule, fix="correct that, or use other nodes")
        if any(worker.facts is not None for worker in self._workers.values()):
            self._last_used = now
        elif now - self._last_used > IDLE_TIMEOUT:
            rule = f"has had no device to train on for {IDLE_TIMEOUT:.0f} s"
            fix = "start nodes like those before, or free their devices; then resume the study"
            raise InputError("cluster", rule, fix=fix)

    def _start_tasks(self) -> None:
        """Give each waiting task a device: it begins there if a worker is ready, else one starts."""
        free = [device for device in self._devices if device not in self.running]
        free.sort(key=self._rank)
        for task in list(self._waiting):
            devices = [device for device in free if device in self._suitable(task)]
            if not devices:
                continue
            device = devices[0]
            free.remove(device)
            worker = self._workers.get(device)
            if worker is None and time.monotonic() >= self._rest_until:
                self._workers[device] = self.actors.start(device)
            elif worker is not None and worker.facts is not None:
                self._waiting.remove(task)
                worker.task, worker.silent = task, 0.0
                self.actors.run(worker, task.job())

    def _rank(self, device: Device) -> int:
        """How soon a device may do a task."""
        worker = self._workers.get(device)
        if worker is None:
            return NO_WORKER
        if worker.facts is not None:
            return READY
        return STARTING if time.monotonic() - worker.started < START_TIMEOUT else LATE

    def _suitable(self, task: Task) -> Sequence[Device]:
        """The devices where a task may begin: its last try is on another node, or another device."""
        if task.failures < TRIES - 1:
            return self._devices
        others = [device for device in self._devices if device not in task.failed_on]
        nodes = {device.node for device in task.failed_on}
        elsewhere = [device for device in others if device.node not in nodes]
        for choice in (elsewhere, others):
            if any(self._rank(device) < LATE for device in choice):
                return choice
        return self._devices

    def _refuse(self, device: Device, why: str) -> None:
        """Use a device no more."""
        log.warning("%s is not used: %s", device, why)
        self.refused[device] = why
        self._devices = [other for other in self._devices if other != device]
        self._end_worker(device)

    def _end_worker(self, device: Device) -> None:
        """End the worker of a device, whatever it does."""
        if device in self._workers:
            self.actors.kill(self._workers.pop(device))

    # --- messages -------------------------------------------------------------------------------------

    def _hanging(self) -> Iterator[tuple[Worker, WorkerDied]]:
        """Workers that are alive but silent. Time in which this process stood still does not count."""
        now = time.monotonic()
        passed, self._polled = min(now - self._polled, 2 * POLL), now
        for worker in [worker for worker in self._workers.values() if worker.task is not None]:
            worker.silent += passed
            pauses = max(HOUR, PAUSES * self._longest_pause)
            longest = pauses if worker.task.has_checkpoint else DAY
            if worker.silent > longest:
                yield worker, WorkerDied(f"it said nothing for {longest / HOUR:.1f} h")

    def _handle(self, worker: Worker, message: Any) -> Iterator[tuple[Task, Device, Any]]:
        task, device = worker.task, worker.device
        if isinstance(message, DeviceFacts):
            self._failed_starts.pop(device, None)
            if why := self._check(message):
                self._refuse(device, why)
        elif isinstance(message, NotUsable):
            self._refuse(device, message.why)
            self.add([task] if task else [])
        elif isinstance(message, Failed):
            self._end_worker(device)  # its next worker is a new process
            if isinstance(message.error, WorkerDied):
                self._rest_until = time.monotonic() + REST
            if task is not None:
                yield task, device, message
                self._retry(task, device, message.error)
            else:
                self._failed_starts[device] += 1
                if self._failed_starts[device] == TRIES:
                    self._refuse(device, "its workers die as they start")
        elif task is not None:
            self._longest_pause = max(self._longest_pause, worker.silent)
            worker.silent = 0.0
            if isinstance(message, Ended):
                worker.task = None
            yield task, device, message

    def _retry(self, task: Task, device: Device, error: Exception) -> None:
        """Let a task that failed begin again, unless it has done so too often."""
        task.failures += 1
        task.failed_on.add(device)
        task.error = f"{type(error).__name__}: {first_line(error)}"
        if isinstance(error, InputError):
            # A file may be missing on this node alone. If another node refuses it too, it is wrong.
            failed = {device.node for device in task.failed_on}
            elsewhere = any(other.node not in failed for other in self._devices)
            task.failures = max(task.failures, TRIES - 1 if elsewhere else TRIES)
        if task.failures < TRIES:
            log.warning("%s failed on %s (%s); it begins again", task.name, device, task.error)
            self.add([task])
        else:
            self.set_aside.append(task)
