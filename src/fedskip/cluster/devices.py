"""The devices of a cluster, and what must be alike on all nodes so that they give the same numbers."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fedskip.errors import InputError, flag
from fedskip.version import device_name, same_device, versions

MIN_FREE = 1 << 30  # bytes of disk that a node must have, for objects that Ray spills

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
