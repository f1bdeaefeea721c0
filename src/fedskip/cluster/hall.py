"""Ray's workers: one on each device that is used, for as long as it lives."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedskip.cluster.errands import Device, Ended, Lost, NotStarted, Serve, Unfit
from fedskip.cluster.worker import Worker
from fedskip.input.errors import InputError, said

START = 180.0  # seconds that a worker may take to say its first word
FETCH = 600.0  # seconds that a message may take: it may hold a model
GONE = 20.0  # seconds without an answer after which a head is gone
AHEAD = 4  # messages that a worker may have said before they are heard


@dataclass(eq=False)
class RayTalk:
    """An errand under way."""

    device: Device
    here: Any  # a reference that is ready when its worker is there
    stream: Any  # Ray's generator
    began: float
    heard: bool = False


@dataclass(frozen=True)
class RayParcel:
    """Something in the object store: it reaches a node once, and all workers there read the same memory."""

    key: Any

    def open(self) -> Any:
        return ray.get(self.key, timeout=FETCH)


class RayHall:
    """The devices of a Ray cluster that this process has joined."""

    def __init__(self, serve: Serve, kind: str, *, cores: int = 1, per_device: int = 1) -> None:
        """`kind`: GPU or CPU. `cores`: of a worker on a CPU. `per_device`: workers that share a GPU."""
        self.kind, self.cores, self.per_device = kind, cores, per_device
        self._serve = cloudpickle.dumps(serve)
        self._workers: dict[Device, Any] = {}
        self._found: list[Device] = []
        self._missed: float | None = None  # since when its head has not answered
        self._folders: dict[str, str] = {}  # of Ray's files, by node
        self._actor = ray.remote(Worker)

    def devices(self) -> list[Device]:
        if self._found and not self._head_answers():
            return self._found
        found = []
        for node in ray.nodes():
            self._folders[node["NodeID"]] = str(Path(node["RayletSocketName"]).parent.parent)
            there = node["Resources"].get(self.kind, 0) if node["Alive"] else 0
            many = int(there) * self.per_device if self.kind == "GPU" else int(there) // self.cores
            found += [Device(node["NodeID"], node["NodeName"], self.kind, i) for i in range(many)]
        self._forget(found)
        self._found = found
        return found

    def _head_answers(self) -> bool:
        """Without its head a cluster is lost; Ray would end this process after a minute, and say little."""
        address, now = ray.get_runtime_context().gcs_address, time.monotonic()
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=3.0).close()
        except OSError:
            self._missed = self._missed or now
            if now - self._missed > GONE:
                fix = "start it again, then resume the study"
                raise InputError("cluster", "has lost its head node", address, fix) from None
            return False
        self._missed = None
        return True

    def _forget(self, there: list[Device]) -> None:
        """Workers of nodes that are gone are gone."""
        for device in self._workers.keys() - set(there):
            del self._workers[device]

    def begin(self, device: Device, argument: Any) -> RayTalk:
        if device not in self._workers:
            on_gpu = device.kind == "GPU"
            self._workers[device] = self._actor.options(
                num_cpus=0 if on_gpu else self.cores, num_gpus=1 / self.per_device if on_gpu else 0,
                max_restarts=0, scheduling_strategy=NodeAffinitySchedulingStrategy(device.node, soft=False),
            ).remote(
                [os.getcwd(), *filter(None, sys.path)], self._serve, device.kind, self._folders[device.node]
            )  # fmt: skip
        worker = self._workers[device]
        here = worker.here.remote()
        worker.take.remote(argument)  # a call of its own: Ray keeps what a call is given until that call ends
        stream = worker.do.options(
            num_returns="streaming", _generator_backpressure_num_objects=AHEAD
        ).remote()  # fmt: skip
        return RayTalk(device, here, stream, time.monotonic())

    def heard(self, talks: list[RayTalk], seconds: float) -> Iterator[tuple[RayTalk, Any]]:
        by_stream = {talk.stream: talk for talk in talks}
        if not by_stream:
            time.sleep(seconds)
            return
        ray.wait([*by_stream], timeout=seconds)
        ready, _ = ray.wait([*by_stream], num_returns=len(by_stream), timeout=0)
        for stream in ready:  # one after another: each may hold a model
            yield by_stream[stream], self._next(by_stream[stream])
        for talk in talks:
            if not talk.heard and (what := self._late(talk)):
                yield talk, what

    def _late(self, talk: RayTalk) -> NotStarted | Lost | None:
        """Why it has not said a word yet, if it should have."""
        waited = time.monotonic() - talk.began
        if waited > START and not ray.wait([talk.here], timeout=0)[0]:
            return NotStarted(
                f"its worker did not start within {START:.0f} s: the device may be taken by others"
            )
        if waited > START + FETCH and not ray.wait([talk.stream], timeout=0)[0]:
            return Lost(f"what it was sent did not arrive within {START + FETCH:.0f} s")
        return None

    def _next(self, talk: RayTalk) -> Any:
        talk.heard = True
        try:
            return ray.get(next(talk.stream), timeout=FETCH)
        except StopIteration:
            return Ended()
        except GetTimeoutError:
            return Lost(f"its message did not come within {FETCH:.0f} s")
        except RayError as error:
            return _in_words(error)

    def end(self, device: Device) -> None:
        worker = self._workers.pop(device, None)
        if worker is not None:
            ray.kill(worker)

    def close(self) -> None:
        for device in list(self._workers):
            self.end(device)

    def put(self, thing: Any) -> RayParcel:
        return RayParcel(ray.put(thing))


def _in_words(error: RayError) -> Lost | Unfit:
    """What Ray says of a worker that is not there, in a line."""
    text = str(error)
    if "creation task" in text:  # it could not even be made
        why = text.strip().splitlines()[-1]
        return Unfit(f"{why}: install the same on all nodes" if "No module named" in why else why)
    if "node died" in text.lower() or "its node" in text.lower():
        return Lost("its node died")
    if isinstance(error, RayActorError):
        return Lost("its worker died: it was killed, or the memory ran out")
    return Lost(f"its worker was lost ({type(error).__name__}: {said(error)})")
