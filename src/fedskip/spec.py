"""What a study is made of, checked when it is made: local training, settings, the study itself."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedskip.data.base import Dataset
from fedskip.errors import InputError, require, unknown
from fedskip.fields import TAGS, expand, fit, fit_all, overlay, unknown_key
from fedskip.methods.base import Method
from fedskip.methods.text import parse_many
from fedskip.schedule import Decay

PYTHON = "python:"  # how a file shows an object that it cannot hold
LEFT_OUT: Any = None  # filled in from the data set's defaults

_NAME = re.compile(r"\w[\w .,+=()@-]*")  # names become parts of file names
LONGEST = 100  # characters of a name
_OBJECTS: dict[str, tuple[Any, str]] = {  # what may stand in the place of a mapping
    "data": (Dataset, "a name, a mapping or a Dataset"),
    "partition": ((), "a kind or a mapping"),
    "model": (Callable, "a name, a mapping, an nn.Module or a function that makes one"),
}
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
MOST_SEEDS = 10_000


@dataclass(frozen=True, kw_only=True)
class Local:
    """How a client trains. The defaults are the paper's."""

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-5
    batch: int = 64
    epochs: int = 10
    decay: str = "constant"  # a rule of `schedule.Decay`
    last_batch: Literal["drop", "keep"] = "drop"  # what to do with the incomplete one of an epoch
    small_clients: Literal["error", "drop", "short"] = "error"  # those with fewer samples than a batch
    clip: float | None = None  # the largest norm of a gradient
    max_steps: int | None = None  # of a visit, for trying things out
    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        fit_all(self, "local.")
        _at_least(self, 1, "batch", "epochs", "max_steps", prefix="local.")
        _at_least(self, 0, "weight_decay", prefix="local.")
        for name in ("lr", "clip"):
            value = getattr(self, name)
            require(f"local.{name}", value is None or value > 0, "must be > 0", value)
        require("local.momentum", 0 <= self.momentum < 1, "must be in [0, 1)", self.momentum)
        why = "all methods are written for it; for its momentum set local.momentum"
        require("local.optimizer", self.optimizer == "sgd", "must be 'sgd'", self.optimizer, why)
        Decay.parse(self.decay)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Data set, partition, model and local training, and what is run on them.

    `data`, `partition` and `model` are mappings of a `name` or `kind` and its options (a bare text is the
    name), or Python objects. What is left out is None, and `local` only as much as was written, until
    `filled` has the data set's defaults.
    """

    name: str = LEFT_OUT  # by default the data set's
    data: Mapping[str, Any] | Dataset = LEFT_OUT
    partition: Mapping[str, Any] = LEFT_OUT
    model: Mapping[str, Any] | Callable[..., Any] = LEFT_OUT  # also an nn.Module, or what makes one
    clients: int | None = None  # N; None where the partition knows
    cohort: int = LEFT_OUT  # K slots
    cohort_policy: Literal["uniform", "fixed", "cyclic"] = "uniform"
    local: Local = LEFT_OUT
    methods: tuple[Method, ...] = LEFT_OUT
    rounds: int = LEFT_OUT
    seeds: tuple[int, ...] = (0,)  # a number n stands for 0..n-1
    partition_seed: int | None = None  # None: the run's seed
    validation: float = 0.0  # fraction of the training data held out to choose `best` by
    init: str | None = None  # a file of pretrained weights
    loss: str | Callable[..., Any] = "cross_entropy"
    metric: str | Callable[..., Any] = "accuracy"
    eval_every: int = 1
    eval_samples: int | None = None  # a fixed subset of the test set, while training; None: all of it
    slot_accuracy: bool = False
    client_accuracy: bool = False
    reference: bool = False  # shown as a line beside the others, not among them

    def __post_init__(self) -> None:
        _put(self, **{name: _options(name, getattr(self, name)) for name in TAGS})
        known = isinstance(self.data, Dataset) or bool(self.data and self.data.get("name"))
        require("data.name", known, "is missing", ..., "write data: {name: synthetic}")
        if self.name is None:
            data = self.data  # by name, which may be a path
            stem = data.name if isinstance(data, Dataset) else Path(data["name"]).stem
            _put(self, name=_as_name(stem))
        if isinstance(self.init, os.PathLike):
            _put(self, init=os.fspath(self.init))
        fit_all(self)
        _put(self, local=_partial(self.local), seeds=_seeds(self.seeds))
        if self.methods is not None:
            _put(self, methods=tuple(parse_many(self.methods)))
        _check_name(self.name)
        for name in ("loss", "metric"):
            value = getattr(self, name)
            _refuse_lost(name, value)
            require(name, callable(value) or isinstance(value, str), "must be a name or a function", value)
        _at_least(self, 1, "clients", "cohort", "rounds", "eval_every", "eval_samples")
        _at_least(self, 0, "partition_seed")
        require("validation", 0 <= self.validation < 1, "must be in [0, 1)", self.validation)
        if self.clients is not None and self.cohort is not None:
            rule = f"must be <= {self.clients}, the number of clients"
            fix = "every slot needs a client of its own"
            require("cohort", self.cohort <= self.clients, rule, self.cohort, fix)

    def filled(self, defaults: Mapping[str, Any]) -> Setting:
        """The setting with what was left out taken from `Dataset.defaults` (dotted keys).

        A default option goes with its `name` or `kind`: a setting with another one does not get it.
        """
        known = {field.name for field in dataclasses.fields(self) if field.default is None} - {"name", "data"}
        written = {name: getattr(self, name) for name in known if getattr(self, name) is not None}
        nested = expand(defaults)
        for key in nested:
            if key not in known:
                raise unknown("default of the data set", key, known)
        if "file" in written.get("partition", {}):
            nested.pop("clients", None)  # the file has them
        values = overlay(nested, written)
        local = _partial(values.get("local", {}))
        values["local"] = local if isinstance(local, Local) else Local(**local)
        missing = []
        for name in ("partition", "model", "cohort", "methods", "rounds"):
            field, value = name, values.get(name)
            if isinstance(value, Mapping):
                field, value = f"{name}.{TAGS[name]}", value.get(TAGS[name]) or value.get("file")
            if value is None:
                missing.append(field)
        if missing:
            is_, it = ("is", "it") if len(missing) == 1 else ("are", "them")
            fix = f"the data set has no default for {it}, so the study must say {it}"
            raise InputError(", ".join(missing), f"{is_} missing", fix=fix)
        return dataclasses.replace(self, **values)


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """Many runs side by side, and the machine they run on."""

    name: str = "study"
    settings: tuple[Setting, ...]
    engine: Literal["auto", "loop", "stacked"] = "auto"
    device: str = "auto"  # cuda where there is one
    compile: bool = True
    workers: int | None = None  # threads of the loop engine, one visit each; None: one per core
    processes: int | None = None  # of the stacked engine on a CPU, each with some runs; None: one per core
    threads: int | None = None  # of torch; None: what suits the machine
    precision: Literal["fp32", "tf32", "bf16", "fp64"] | None = None  # None: tf32 on a GPU, fp32 on a CPU
    deterministic: bool = True  # on a GPU: only kernels that repeat their bits
    rows: int | None = None  # the most in a batch of the stacked engine; None: what fits the memory of a GPU
    streams: int | None = None  # on a GPU: rows side by side, 0 for one batch; None: what suits the model
    checkpoint_every: int | None = None  # rounds; None: what suits the study

    def __post_init__(self) -> None:
        fit_all(self)
        _check_name(self.name)
        _at_least(self, 1, "workers", "processes", "threads", "checkpoint_every", "rows")
        _at_least(self, 0, "streams")
        apart = (self.threads or 1) == 1 or (self.processes or 1) == 1
        fix = "set processes=1: threads do not survive a fork"
        require("threads", apart, "must be 1 with several processes", self.threads, fix)
        fix = "other devices are not supported"
        ok = bool(_DEVICE.fullmatch(self.device))
        require("device", ok, "must be auto, cpu, cuda or cuda:N", self.device, fix)
        _put(self, settings=tuple(self.settings))
        require("settings", len(self.settings) > 0, "must hold at least one setting", [])
        names = [setting.name for setting in self.settings]
        for name in names:
            fix = "give each its own `name`"
            require("settings", names.count(name) == 1, "must have different names", name, fix)


def _put(self: Any, **values: Any) -> None:
    """Set fields of a frozen dataclass that is being made."""
    for name, value in values.items():
        object.__setattr__(self, name, value)


def _at_least(self: Any, least: int, *names: str, prefix: str = "") -> None:
    for name in names:
        value = getattr(self, name)
        require(prefix + name, value is None or value >= least, f"must be >= {least}", value)


def _check_name(name: str) -> None:
    rule = "must start with a letter or digit and hold no slashes, colons or quotes"
    require("name", bool(_NAME.fullmatch(name)), rule, name)
    require("name", len(name) <= LONGEST, f"must have at most {LONGEST} characters: it names files", name)


def _as_name(stem: str) -> str:
    """The name of a data set, with what a setting's name may not hold replaced."""
    kept = "".join(c if _NAME.fullmatch(f"a{c}") else "-" for c in stem[:LONGEST])
    return kept if _NAME.fullmatch(kept) else f"data{kept}"[:LONGEST]


def _refuse_lost(field: str, value: Any) -> None:
    if isinstance(value, str) and value.startswith(PYTHON):
        fix = "run or resume the study from Python, where the object is"
        raise InputError(field, "was a Python object, which a file cannot hold", value, fix)


def _options(field: str, value: Any) -> Any:
    """A mapping of the tag and its options; a bare text is the tag; Python objects stay as they are."""
    tag, (accepted, words) = TAGS[field], _OBJECTS[field]
    if isinstance(value, str):
        value = {tag: value}
    if isinstance(value, Mapping):
        name = value.get(tag)
        _refuse_lost(field, name)
        require(f"{field}.{tag}", name is None or isinstance(name, str), "must be text", name)
        return _plain(value)
    require(field, value is None or isinstance(value, accepted), f"must be {words}", value)
    return value


def _plain(value: Any) -> Any:
    """Options as YAML would give them, so that a study equals what is read back from its file."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def _partial(local: Any) -> Any:
    """What was written of `local`, checked; a `Local` if that is all of it."""
    if local is None or isinstance(local, Local):
        return local
    require("local", isinstance(local, Mapping), "must be a mapping such as {lr: 0.01, epochs: 10}", local)
    known = [f"local.{field.name}" for field in dataclasses.fields(Local)]
    for key in local:
        if f"local.{key}" not in known:
            raise unknown_key(f"local.{key}", known)
    written = {key: value for key, value in local.items() if value is not None}
    checked = Local(**written)
    return checked if len(local) == len(known) else {key: getattr(checked, key) for key in written}


def _seeds(seeds: Any) -> tuple[int, ...]:
    rule = "must be how many seeds or a list of different ones, whole numbers >= 0"
    try:
        if isinstance(seeds, Iterable) and not isinstance(seeds, str):
            found = tuple(fit("seeds", seed, int) for seed in seeds)
        else:
            found = tuple(range(min(fit("seeds", seeds, int), MOST_SEEDS + 1)))
    except InputError:
        raise InputError("seeds", rule, seeds) from None
    require("seeds", len(set(found)) == len(found) > 0 and min(found) >= 0, rule, seeds)
    require("seeds", len(found) <= MOST_SEEDS, f"must be {MOST_SEEDS:,} or fewer", seeds)
    return found
