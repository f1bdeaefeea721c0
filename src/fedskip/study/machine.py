"""What shapes the arithmetic: resolved once, stored with the study, compared when it resumes."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from fedskip.config import Tree
from fedskip.config.study import StudySpec, build
from fedskip.data.loaded import LoadedDatasets
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.stacked import own_objective, refusal
from fedskip.engine.stepper import has_compiler
from fedskip.errors import InputError
from fedskip.models.forms import KERNELS, own_kernels
from fedskip.study.choose_engine import EngineChoice, choose, compiles, streams_of
from fedskip.study.prepare import Prepared, prepare
from fedskip.study.processes import AVAILABLE
from fedskip.version import device_name

log = logging.getLogger(__name__)

PROCESSES = 8  # unless a study asks for more: each has a compiler of its own in memory


@dataclass(frozen=True)
class Machine:
    """The machine as one setting uses it."""

    engine: str  # loop or stacked
    device: str
    device_name: (
        str  # of a GPU also the multiprocessors that this process sees; a CPU's level and model
    )
    compile: bool
    threads: int  # torch threads of the stacked engine; the loop always has one for each visit
    workers: int  # visits that the loop trains side by side; does not touch the results
    processes: int  # groups of runs, each in a process of its own where that can be
    precision: str
    deterministic: bool
    streams: int  # on which the stacked engine's rows run side by side; 0: all together
    kernels: bool  # small convolutions and recurrent layers by kernels of our own

    @classmethod
    def of(cls, spec: StudySpec, prepared: Prepared) -> Machine:
        """The machine as a setting uses it, by what the study says and what suits the model."""
        device, model = resolve_device(spec.device), prepared.task.module
        precision = prepared.arithmetic.precision
        choice = prepared.choice or engine_of(spec, prepared)
        stacked, streams = choice.engine == "stacked", choice.streams
        own = stacked and device != "cpu" and not streams
        kernels = own and own_kernels(model, precision, prepared.device)
        compile = stacked and spec.compile and has_compiler()
        if stacked and spec.compile and not compile:
            uncompiled = "the stacked engine runs uncompiled, several times slower"
            log.warning("no C++ compiler found: %s", uncompiled)
        threads = spec.threads or 1  # more of them lose more at barriers than they gain
        forks = stacked and _forks(device, threads)
        processes = (spec.processes or min(_cores(), PROCESSES)) if forks else 1
        return cls(
            choice.engine, device, device_name(device),
            compile=compile and compiles(model, prepared.device.type, precision, kernels),
            threads=threads,
            workers=1 if stacked or device != "cpu" else spec.workers or _cores(),
            processes=spec.groups or processes,
            precision=precision, deterministic=spec.deterministic, streams=streams, kernels=kernels,
        )  # fmt: skip

    @property
    def apart(self) -> bool:
        """Whether each group may have a process of its own."""
        return self.engine == "stacked" and _forks(self.device, self.threads)

    def facts(self) -> dict[str, Any]:
        """What must be the same for the same bits."""
        facts = asdict(self) | {"kernels": self.kernels and KERNELS}
        return {name: value for name, value in facts.items() if name != "workers"}


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _forks(device: str, threads: int) -> bool:
    """Whether training goes on in a process that is forked from this one."""
    return device == "cpu" and AVAILABLE and threads == 1


def engine_of(spec: StudySpec, prepared: Prepared) -> EngineChoice:
    """The engine of a setting, as asked for or chosen; refuses one that cannot train it.

    The rehearsal shows what only a step can show.
    """
    if spec.engine == "loop":
        return EngineChoice("loop")
    module, device = prepared.task.module, prepared.device.type
    streams = streams_of(module, device) if spec.streams is None else spec.streams
    refused = refusal(prepared.task, streams)
    if refused is None and prepared.has_own_objective:
        refused = own_objective()
    if spec.engine == "auto":
        chosen = (
            choose(module, device, prepared.steps)
            if refused is None
            else EngineChoice.instead(refused)
        )
        return replace(chosen, streams=streams) if chosen.engine == "stacked" else chosen
    if refused is not None:
        raise refused
    return EngineChoice("stacked", streams=streams)


def arithmetic_of(spec: StudySpec) -> Arithmetic:
    """Precision and repeatability as a study has them on this machine."""
    device = torch.device(resolve_device(spec.device))
    arithmetic = Arithmetic.on(device, spec.precision, spec.deterministic)
    if device.type == "cpu" and arithmetic.precision not in ("fp32", "fp64"):
        fix = "set precision=fp32, or device=cuda on a machine with a GPU"
        raise InputError("precision", "must be fp32 or fp64 on a CPU", arithmetic.precision, fix)
    if device.type == "cpu" and spec.streams:
        raise InputError("streams", "must be 0 on a CPU", spec.streams)
    return arithmetic


def resolve_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device != "cpu" and not torch.cuda.is_available():
        raise InputError("device", "is not there: torch sees no GPU", device, "use device=cpu")
    if device != "cpu" and (torch.device(device).index or 0) >= torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise InputError(
            "device", f"is not there: torch sees {there} GPU(s), from cuda:0 on", device
        )
    return device


def suited(spec: StudySpec, before: Mapping[str, Any]) -> StudySpec:
    """The study with the engine and groups that its runs began with, which stay."""
    spec = replace(spec, groups=spec.groups or before.get("processes"))
    here = before.get("device") == resolve_device(spec.device)
    if here and spec.engine == "auto" and before.get("engine") in ("loop", "stacked"):
        spec = replace(spec, engine=before["engine"])
    return spec


def prepared_setting(keys: dict[str, Any]) -> tuple[Prepared, Machine]:
    """The first setting of a study, ready to train without a folder, and the machine as it uses it."""
    study = build(Tree(keys))
    device = torch.device(resolve_device(study.device))
    prepared = prepare(study.settings[0], LoadedDatasets(), device, arithmetic_of(study))
    machine = Machine.of(study, prepared)
    return prepared, replace(machine, processes=min(machine.processes, len(prepared.setting.seeds)))
