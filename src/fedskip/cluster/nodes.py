"""Nodes are greeted before anything is written: what differs between them, or is missing, is said by name."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from fedskip.cluster.errands import Began, Device, Ended, Facts, Failed, Hall, Lost, NotStarted, Unfit
from fedskip.input.errors import InputError, flag, said
from fedskip.version import same_device, versions

SPACE = 1 << 30  # bytes that a node must have free, for what Ray puts aside
GREET = 240.0  # seconds in which all nodes have answered

log = logging.getLogger(__name__)
Answer = Facts | Unfit | NotStarted | Lost


@dataclass(frozen=True)
class Fits:
    """Says why a device is not used."""

    versions: Mapping[str, str]  # of this process
    model: str | None  # of the devices; None: any will do

    def __call__(self, device: Device, facts: Facts) -> str:
        return self.versions_of(facts) or self.space_of(facts) or self.model_of(facts)

    def versions_of(self, facts: Facts) -> str:
        apart = [
            f"{name} {facts['versions'].get(name)} instead of {mine}"
            for name, mine in self.versions.items()
            if facts["versions"].get(name) != mine
        ]
        return f"it has {', '.join(apart)}" if apart else ""

    def space_of(self, facts: Facts) -> str:
        return f"it has {facts['free'] / 2**20:,.0f} MiB of space left" if facts["free"] < SPACE else ""

    def model_of(self, facts: Facts) -> str:
        other = self.model is not None and facts["device"] != self.model
        return f"its device is {facts['device']}, and not {self.model}" if other else ""


def greet(hall: Hall, devices: list[Device], seconds: float = GREET) -> dict[Device, Answer]:
    """What there is at devices, or why nobody answers there."""
    talks = [hall.begin(device, None) for device in devices]
    found: dict[Device, Answer] = {}
    until = time.monotonic() + seconds
    while talks and time.monotonic() < until:
        for talk, what in hall.heard(list(talks), 1.0):
            if isinstance(what, Began):
                found[talk.device] = what.facts
                continue
            talks.remove(talk)
            if not isinstance(what, Ended):
                hall.end(talk.device)
                found[talk.device] = Lost(said(what.error)) if isinstance(what, Failed) else what
    for talk in talks:
        hall.end(talk.device)
    late = NotStarted(f"no answer within {seconds:.0f} s")
    return {device: found.get(device, late) for device in devices}


def refuse_unlike(found: Mapping[Device, Answer], model: str | None, anyway: bool) -> Fits:
    """Refuse nodes that would not give the same numbers; gives what fits.

    `model`: of the devices that the study began on, if it did. `anyway`: devices may be of several models.
    """
    there, silent = dict[Device, Facts](), list[str]()
    for device, answer in found.items():
        if isinstance(answer, Unfit):
            fix = "see to that, or take it out of the cluster"
            raise InputError(f"cluster node {device.host}", f"cannot be used: {answer.why}", fix=fix)
        if isinstance(answer, NotStarted | Lost):
            log.warning("%s does not answer: %s", device, answer.why)
            silent.append(f"{device.host}: {answer.why}")
        else:
            there[device] = answer
    if not there:
        raise InputError("cluster", f"has no node that answers; {silent[0]}", fix="see to that")
    fits = Fits(versions(), None if anyway else model)
    for device, facts in there.items():
        if why := fits.versions_of(facts):
            fix = "install the same versions on all nodes"
            raise InputError(f"cluster node {device.host}", f"is unlike this one: {why}", fix=fix)
        if why := fits.space_of(facts):
            fix = "free some, or give Ray a folder for its files that has more: `ray start --temp-dir DIR`"
            raise InputError(f"cluster node {device.host}", f"is full: {why}", fix=fix)
    models = {facts["device"]: device.host for device, facts in there.items()}
    if anyway or (model is not None and model in models):
        return fits
    alike = [name for name in models if model is None or same_device(model, name)]
    told = ", ".join(f"{name} ({host})" for name, host in models.items())
    if not alike:
        fix = f"bring back a node that has one; {flag('anyway')} goes on with others, and bits will differ"
        raise InputError("cluster", f"has no {model}, which the study began on", told, fix)
    if len(alike) > 1:
        fix = f"use nodes of one model; {flag('anyway')} takes all, and bits depend on which trains what"
        raise InputError("cluster", "must have devices of one model", told, fix)
    return Fits(fits.versions, alike[0])
