"""A cluster for a study: joined or started, its nodes greeted, its devices counted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from fedskip.cluster import joined
from fedskip.cluster.crew import Crew
from fedskip.cluster.errands import Device
from fedskip.cluster.nodes import greet, refuse_unlike
from fedskip.input.errors import InputError, option
from fedskip.records.provenance import Facts
from fedskip.spec import StudySpec
from fedskip.study.remote import Remote
from fedskip.study.spread import Spread
from fedskip.version import same_device


@contextlib.contextmanager
def on_cluster(spec: StudySpec, noted: Facts, anyway: bool) -> Iterator[Spread]:
    """Inside, a study has a cluster; `noted`: of the parts to train, by name, when they began."""
    assert spec.cluster is not None
    with joined.joined(spec.cluster):
        from fedskip.cluster.hall import RayHall  # where Ray is not installed, that has been said

        kind = _kind(spec, RayHall(Remote(), "GPU").devices())
        hall = RayHall(Remote(), kind, cores=spec.threads or 1, per_device=spec.per_device or 1)
        with contextlib.closing(hall):
            devices = hall.devices()
            if not devices:
                fix = "start nodes with more cores, or set threads=1"
                raise InputError("cluster", f"has no device of {spec.threads or 1} cores", spec.cluster, fix)
            # one core of a node is as good as another; its GPUs may differ
            first = {device.node: device for device in reversed(devices)}
            asked = devices if kind == "GPU" else [*first.values()]
            fits = refuse_unlike(greet(hall, asked), begun_on(noted), anyway)
            device = "cuda" if kind == "GPU" else "cpu"
            there = replace(spec, device=device, workers=spec.workers or (1 if kind == "CPU" else None))
            yield Spread(Crew(hall, fits), there, len(devices))


def begun_on(noted: Facts) -> str | None:
    """The model of device that parts began on: older versions noted less of its name."""
    models = [name for facts in noted.values() if (name := facts["machine"].get("device_name"))]
    return next((one for one in models if not any(o != one and same_device(one, o) for o in models)), None)


def here(spec: StudySpec) -> StudySpec:
    """The study as this process prepares it, which need not have the device that it is trained on."""
    return replace(spec, device="cpu", precision=None, streams=None)


def _kind(spec: StudySpec, gpus: list[Device]) -> str:
    """GPU or CPU: what the study asks for, or has."""
    if spec.device.startswith("cuda:"):
        fix = f"write {option('device', 'cuda')}: every group has a GPU of its own"
        raise InputError("device", "must be auto, cpu or cuda on a cluster", spec.device, fix)
    if spec.device == "cuda" and not gpus:
        fix = f"start nodes that have some, or use {option('device', 'cpu')}"
        raise InputError("device", "is not there: no node of the cluster has a GPU", spec.device, fix)
    return "GPU" if gpus and spec.device != "cpu" else "CPU"
