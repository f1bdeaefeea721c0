"""How this machine trains a setting: resolved once, stored with the study, compared when it resumes.

`engine: auto` is a rule on what a module is made of, never a timing. Behind every limit are the lines of
`benchmarks/engines.py` in `benchmarks/results/engines-*.csv` and the tables of docs/performance.md. A module
goes by its layers, so one of ours and the same one written by a user are trained alike. Where two engines are
within 20 %, it is the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from fedskip.cluster.connection import cores
from fedskip.config import Tree
from fedskip.config.study import StudySpec, build
from fedskip.data.catalogue import LoadedDatasets
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.stacked import own_objective, refusal
from fedskip.engine.stepper import has_compiler
from fedskip.errors import InputError, shorten
from fedskip.models.forms import KERNELS, in_single_steps, own_kernels, parameter_counts
from fedskip.study.prepare import Prepared, prepare
from fedskip.study.processes import AVAILABLE
from fedskip.version import device_name

log = logging.getLogger(__name__)

PROCESSES = 8  # unless a study asks for more: each has a compiler of its own in memory

# On a CPU
SMALL = {"dense", "embedding", "normalisation"}  # layers whose steps, one by one, leave a core idle
# their numbers: stacked is 3.6 times as fast with 17,000, twice at most from 50,000 on
MOST_STACKED = 40_000
# client-steps, which the loop has done before the stacked engine's first is compiled
SHORT = 10_000

# On a GPU stacking wins with every kind of layer, by 26 to 183 times with ten rows of small modules
# numbers in convolutions from which single steps nearly fill it, as ResNet-50's do
WIDE = 2_000_000
STREAMS = 4  # on which the rows of such a module then run side by side

LAYERS = {
    "attention": "attention", "convolution": "convolutions", "embedding": "embeddings",
    "dense": "dense layers", "normalisation": "normalisations", "recurrent": "recurrent layers",
}  # fmt: skip


class EngineChoice(NamedTuple):
    """An engine, and how it is to train."""

    engine: str  # loop or stacked
    why: str = ""  # if it was chosen and not asked for
    streams: int = 0  # on which the stacked engine's rows run side by side; 0: all together

    @classmethod
    def instead(cls, refused: InputError) -> EngineChoice:
        """The loop, for what the stacked engine refuses."""
        reasons = [part for part in refused.fix.split("; ") if part and "engine=loop" not in part]
        return cls("loop", ": ".join([refused.rule, *(shorten(part, 150) for part in reasons[:1])]))


@dataclass(frozen=True)
class Machine:
    """The machine as one setting uses it."""

    engine: str  # loop or stacked
    device: str
    device_name: str  # of a GPU also the multiprocessors that are seen; a CPU's level and model
    compile: bool
    threads: int  # torch threads of the stacked engine; the loop always has one for each visit
    workers: int  # visits that the loop trains side by side; does not touch the results
    processes: int  # groups of runs, each in a process of its own where that can be
    precision: str
    deterministic: bool
    streams: int  # on which the stacked engine's rows run side by side; 0: all together
    kernels: bool  # small convolutions and recurrent layers by kernels of our own
    forks: bool = False  # whether each group may have a process of its own
    why: str = ""  # the engine, where it was not asked for

    @classmethod
    def of(cls, spec: StudySpec, prepared: Prepared, choice: EngineChoice | None = None) -> Machine:
        """The machine as a setting uses it, by what the study says and what suits the model."""
        device, model = resolve_device(spec.device), prepared.task.module
        precision = prepared.arithmetic.precision
        engine, why, streams = choice or choose_engine(spec, prepared)
        stacked = engine == "stacked"
        own = stacked and device != "cpu" and not streams
        kernels = own and own_kernels(model, precision, prepared.device)
        compile = stacked and spec.compile and has_compiler()
        if stacked and spec.compile and not compile:
            uncompiled = "the stacked engine runs uncompiled, several times slower"
            log.warning("no C++ compiler found: %s", uncompiled)
        threads = spec.threads or 1  # more of them lose more at barriers than they gain
        forks = stacked and AVAILABLE and device == "cpu" and threads == 1
        return cls(
            engine, device, device_name(device),
            compile=compile and compiles(model, prepared.device.type, precision, kernels),
            threads=threads,
            workers=1 if stacked or device != "cpu" else spec.workers or cores(),
            processes=spec.groups or ((spec.processes or min(cores(), PROCESSES)) if forks else 1),
            precision=precision, deterministic=spec.deterministic, streams=streams, kernels=kernels,
            forks=forks, why=why,
        )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """What must be the same for the same bits."""
        facts = asdict(self) | {"kernels": self.kernels and KERNELS}
        beside = ("workers", "forks", "why")
        return {name: value for name, value in facts.items() if name not in beside}

    def line(self) -> str:
        """The engine as a line for people; nothing where it was asked for."""
        return f"engine: {self.engine} (auto: {self.why})" if self.why else ""


# --- the engine ------------------------------------------------------------------------------------------


def choose_engine(spec: StudySpec, prepared: Prepared) -> EngineChoice:
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
        if refused is not None:
            return EngineChoice.instead(refused)
        choice = choose(module, device, prepared.steps)
        return choice._replace(streams=streams if choice.engine == "stacked" else 0)
    if refused is not None:
        raise refused
    return EngineChoice("stacked", streams=streams)


def choose(module: nn.Module, device: str, steps: int) -> EngineChoice:
    """The engine that suits a module on a kind of device, in a setting of so many client-steps."""
    if device != "cpu":
        return EngineChoice("stacked", "on a GPU")
    kinds = parameter_counts(module)
    size, most = kinds.total(), max(kinds, key=kinds.__getitem__, default="dense")
    if others := [kind for kind in kinds if kind not in SMALL]:
        return EngineChoice("loop", f"{_layers(others[0])} on a CPU")
    if size > MOST_STACKED:
        return EngineChoice("loop", f"{size:,} numbers, more than {MOST_STACKED:,}, on a CPU")
    if steps < SHORT:
        return EngineChoice("loop", f"{steps:,} client-steps, fewer than {SHORT:,}, on a CPU")
    return EngineChoice("stacked", f"{_layers(most)} of {size:,} numbers on a CPU")


def streams_of(module: nn.Module, device: str) -> int:
    """On how many streams the rows of a module run side by side; 0: all together."""
    return STREAMS if device == "cuda" and parameter_counts(module)["convolution"] >= WIDE else 0


def compiles(module: nn.Module, device: str, precision: str, kernels: bool) -> bool:
    """Whether the steps of the stacked engine are worth compiling.

    On a GPU not those of recurrent layers in single time steps: 160 cells take minutes, and are fused as they
    are. Where kernels of our own take all time steps at once, they are.
    """
    return device == "cpu" or not in_single_steps(module, precision, kernels)


def _layers(kind: str) -> str:
    return LAYERS.get(kind, f"layers of the kind {kind}")


# --- what a study asks for -------------------------------------------------------------------------------


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
    """The device, which is there; `auto` is the GPU where there is one."""
    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda" if number else "cpu"
    if device != "cpu" and not number:
        raise InputError("device", "is not there: torch sees no GPU", device, "use device=cpu")
    if device != "cpu" and (torch.device(device).index or 0) >= number:
        rule = f"is not there: torch sees {number} GPU(s), from cuda:0 on"
        raise InputError("device", rule, device)
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
