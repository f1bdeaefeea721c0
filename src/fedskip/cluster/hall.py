"""Ray's workers: one on each device that is used, for as long as it lives."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedskip.cluster.errands import Device, Ended, Lost, Serve
from fedskip.cluster.worker import Worker
from fedskip.input.errors import said

START = 180.0  # seconds that a worker may take to say its first word
FETCH = 600.0  # seconds that a message may take: it may hold a model


@dataclass(eq=False)
class RayTalk:
    """An errand under way."""

    device: Device
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
        self._actor = ray.remote(Worker)

    def devices(self) -> list[Device]:
        found = []
        for node in ray.nodes():
            there = node["Resources"].get(self.kind, 0) if node["Alive"] else 0
            many = int(there) * self.per_device if self.kind == "GPU" else int(there) // self.cores
            found += [Device(node["NodeID"], node["NodeName"], self.kind, i) for i in range(many)]
        self._forget(found)
        return found

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
            ).remote([os.getcwd(), *filter(None, sys.path)], self._serve)  # fmt: skip
        stream = self._workers[device].do.options(num_returns="streaming").remote(argument)
        return RayTalk(device, stream, time.monotonic())

    def heard(self, talks: list[RayTalk], seconds: float) -> list[tuple[RayTalk, Any]]:
        by_stream = {talk.stream: talk for talk in talks}
        if not by_stream:
            time.sleep(seconds)
            return []
        ray.wait([*by_stream], timeout=seconds)
        ready, _ = ray.wait([*by_stream], num_returns=len(by_stream), timeout=0)
        said_ = [(by_stream[stream], self._next(by_stream[stream])) for stream in ready]
        late = [talk for talk in talks if not talk.heard and time.monotonic() - talk.began > START]
        slow = Lost(f"its worker did not start within {START:.0f} s: the device may be taken by others")
        return [*said_, *((talk, slow) for talk in late if talk.stream not in ready)]

    def _next(self, talk: RayTalk) -> Any:
        talk.heard = True
        try:
            return ray.get(next(talk.stream), timeout=FETCH)
        except StopIteration:
            return Ended()
        except GetTimeoutError:
            return Lost(f"its message did not come within {FETCH:.0f} s")
        except RayError as error:
            return Lost(_in_words(error))

    def end(self, device: Device) -> None:
        worker = self._workers.pop(device, None)
        if worker is not None:
            ray.kill(worker)

    def close(self) -> None:
        for device in list(self._workers):
            self.end(device)

    def put(self, thing: Any) -> RayParcel:
        return RayParcel(ray.put(thing))


def _in_words(error: RayError) -> str:
    """What Ray says of a lost worker, in a line."""
    text = str(error)
    if "No module named" in text:
        return f"{text[text.index('No module named') :].splitlines()[0]}: install the same on all nodes"
    if "node died" in text.lower() or "its node" in text.lower():
        return "its node died"
    if isinstance(error, RayActorError):
        return "its worker died: it was killed, or the memory ran out"
    return f"its worker was lost ({type(error).__name__}: {said(error)})"
