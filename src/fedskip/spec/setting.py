"""A setting has two lives: a `Draft`, only what was written, and a `Setting`, where everything is there.

Data, partition and model are mappings of a `name` or `kind` and its options (a bare text is the name), or
Python objects. Every key is checked when it is written; what was left out comes from the data set.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np

from fedskip.data.base import Dataset
from fedskip.engine.handed import Attack, Privacy
from fedskip.engine.local import Local
from fedskip.files import fitting
from fedskip.input.errors import InputError, require, unknown, unknown_key
from fedskip.input.fit import MOST, fit
from fedskip.input.nest import TAGS, expand, overlay
from fedskip.methods.base import Method
from fedskip.methods.grammar import in_a_file, joined, parse_many, text, told_apart
from fedskip.spec import keys
from fedskip.spec.counted import counted

PYTHON = "python:"  # how a file shows an object that it cannot hold

_NAME = re.compile(r"\w[\w .,+=()@-]*")  # names become parts of file names
LONGEST = 100  # bytes of a name
# metrics from 0 to 1
SHARES = ("accuracy", "label_accuracy", "balanced_accuracy", "macro_f1", "auroc")
_OBJECTS: dict[str, tuple[Any, str]] = {  # what may stand in the place of a mapping
    "data": (Dataset, "a name, a mapping or a Dataset"),
    "partition": ((), "a kind or a mapping"),
    "model": (Callable, "a name, a mapping, an nn.Module or a function that makes one"),
}
_LEAST = dict.fromkeys(("clients", "cohort", "rounds", "eval_every", "eval_samples"), 1)
_LEAST |= {"of_rounds": 1, "of_seeds": 1, "partition_seed": 0}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Data set, partition, model and local training, and what is run on them."""

    name: str
    data: Mapping[str, Any] | Dataset
    partition: Mapping[str, Any]
    model: Mapping[str, Any] | Callable[..., Any]  # also an nn.Module, or what makes one
    clients: int | None = None  # N; None: the partition knows
    cohort: int  # K slots
    cohort_policy: Literal["uniform", "fixed", "cyclic"] = "uniform"
    local: Local
    methods: tuple[Method, ...]
    rounds: int
    seeds: tuple[int, ...] = (0,)  # a number n stands for 0..n-1
    partition_seed: int | None = None  # None: the run's seed
    validation: float = 0.0  # fraction of the training data held out to choose `best` by
    init: str | None = None  # a file of pretrained weights
    privacy: Privacy | None = None  # noise on what a client hands on
    attack: Attack | None = None  # clients that hand on harm
    loss: str | Callable[..., Any] = "cross_entropy"
    metric: str | Callable[..., Any] | tuple[Any, ...] = "accuracy"  # of several, the first is the headline
    eval_every: int = 1
    eval_samples: int | None = None  # a fixed subset of the test set, while training; None: all of it
    slot_accuracy: bool = False
    client_accuracy: bool = False
    target: float | str | None = None  # a score, or a method whose best it is: what it takes is reported
    of_rounds: int | None = None  # of the study that this is a smaller version of: outputs say so
    of_seeds: int | None = None  # how many that study has
    note: str | None = None  # what outputs say of it besides
    guard: Literal["nonfinite"] | None = None  # visits that end in NaN or infinity are set aside
    reference: bool = False  # shown as a line beside the others, not among them
    stop: Mapping[str, int | float] | None = None  # `patience` and `target`: when a run ends early
    added: tuple[keys.Added, ...] | None = None  # runs that came later, by `extend`
    swept: Mapping[str, Any] | None = None  # the grid that it is a point of

    def __post_init__(self) -> None:
        for name in KEYS:
            if name != "local":  # which was checked when it was made
                object.__setattr__(self, name, checked(name, getattr(self, name)))
        _check_cohort(self.cohort, self.clients)
        self._check_target()
        self._check_stop()
        self._check_added()

    def __repr__(self) -> str:
        return f"Setting({self.name!r}: {counted([vars(self)])})"

    def _check_target(self) -> None:
        target = self.target
        if isinstance(target, str):
            known = [text(method) for method in self.all_methods]
            ok = self.reference or parse_many(target)[0] in self.all_methods
            require(
                "target", ok, "must be one of the methods", target, f"write a score or {' or '.join(known)}"
            )
        elif target is not None and self.headline in SHARES:
            require("target", 0 <= target <= 1, "must be from 0 to 1", target, "write 0.68 for 68 %")

    @property
    def headline(self) -> str | Callable[..., Any]:
        """The metric that models are chosen and methods compared by."""
        return self.metric[0] if isinstance(self.metric, tuple) else self.metric

    def _check_stop(self) -> None:
        fix = "set validation=0.1: a run must not be ended by its test scores"
        require("stop", not self.stop or self.validation > 0, "needs a validation split", self.stop, fix)
        score = (self.stop or {}).get("target")
        if score is not None and self.headline in SHARES:
            require("stop.target", 0 <= score <= 1, "must be from 0 to 1", score, "write 0.68 for 68 %")

    def _check_added(self) -> None:
        runs: set[tuple[str, int]] = set()
        for one in [keys.Added(self.methods, self.seeds), *self.added] if self.added else ():
            more = {(text(method), seed) for method in one.methods for seed in one.seeds}
            for method, seed in sorted(runs & more)[:1]:
                raise InputError("added", f"holds {method} at seed {seed}, which is there already")
            runs |= more

    @property
    def all_methods(self) -> list[Method]:
        """Also those that were added."""
        return joined([self.methods, *(one.methods for one in self.added or ())])

    @property
    def all_seeds(self) -> list[int]:
        return list(dict.fromkeys([*self.seeds, *(seed for one in self.added or () for seed in one.seeds)]))

    @property
    def key(self) -> str:
        """How checkpoints and the record call it."""
        return self.name

    @property
    def run_names(self) -> list[str]:
        return [self.run_name(method, seed) for method in self.methods for seed in self.seeds]

    def label(self, method: Method) -> str:
        """How tables call one of its methods."""
        return method.label_with(self._told_apart[type(method)])

    @functools.cached_property
    def _told_apart(self) -> Mapping[type[Method], list[str]]:
        return told_apart(self.methods)

    def run_name(self, method: Method, seed: int) -> str:
        """How files call one of its runs."""
        return fitting(f"{self.name}.{in_a_file(self.label(method))}.s{seed}")

    def division_seed(self, seed: int) -> int:
        """The seed of a run's split and partition."""
        return seed if self.partition_seed is None else self.partition_seed


KEYS = [field.name for field in dataclasses.fields(Setting)]
_HINTS = get_type_hints(Setting)
_NEEDED = ("partition", "model", "cohort", "methods", "rounds")  # and the data set may have no default


@dataclass(frozen=True)
class Draft:
    """A setting as written. What is left out is left out; only the name is there at all times."""

    keys: Mapping[str, Any]

    def __post_init__(self) -> None:
        written = {key: checked(key, value) for key, value in self.keys.items() if value is not None}
        data: Any = written.get("data")
        named = isinstance(data, Dataset) or bool(data and data.get("name"))
        require("data.name", named, "is missing", ..., "write data: {name: synthetic}")
        if "name" not in written:  # the data set's, which may be a path
            stem = data.name if isinstance(data, Dataset) else Path(data["name"]).stem
            written = {"name": as_name(stem)} | written
        _check_cohort(written.get("cohort"), written.get("clients"))
        object.__setattr__(self, "keys", written)

    def __repr__(self) -> str:
        return f"Draft({self.name!r}: {counted([self.keys])})"

    @property
    def name(self) -> str:
        return str(self.keys["name"])

    def refuse_lost(self) -> None:
        """Refuse to train with Python objects that a file could only name."""
        for field in ("data", "model", "loss", "metric"):
            found = self.keys.get(field)
            found = found.get("name") if isinstance(found, Mapping) else found
            for value in found if isinstance(found, tuple) else (found,):
                if isinstance(value, str) and value.startswith(PYTHON):
                    fix = "make the same Study in Python, with the object and this folder; call its resume()"
                    raise InputError(field, "was a Python object, which a file cannot hold", value, fix)

    def resolved(self, defaults: Mapping[str, Any]) -> Setting:
        """The setting, with what was left out taken from `Dataset.defaults` (dotted keys), or from a file.

        A default option goes with its `name` or `kind`: a setting with another one does not get it.
        """
        nested = expand(defaults)
        for key in nested:
            if key not in KEYS:
                raise unknown("default of the data set", key, KEYS)
        values = overlay(nested, self.keys)
        partition = values.get("partition", {})
        if "clients" not in self.keys and ("file" in partition or partition.get("kind") == "pooled"):
            values.pop("clients", None)  # the partition knows, and it is not the data set's default
        values["local"] = Local(**_local(values.get("local", {})))
        missing = [field for field in map(_missing, _NEEDED, map(values.get, _NEEDED)) if field]
        if missing:
            is_, it = ("is", "it") if len(missing) == 1 else ("are", "them")
            fix = f"the data set has no default for {it}, so the study must say {it}"
            raise InputError(", ".join(missing), f"{is_} missing", fix=fix)
        return Setting(**values)


def _missing(key: str, value: Any) -> str | None:
    """What to call a key that has no value."""
    if isinstance(value, Mapping):
        key, value = f"{key}.{TAGS[key]}", value.get(TAGS[key]) or value.get("file")
    return key if value is None else None


def checked(key: str, value: Any) -> Any:
    """The value of one key as a setting holds it, or an error that names it."""
    if key in _SPECIAL:
        return _SPECIAL[key](value)
    if key in TAGS:
        return _options(key, value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    value = fit(key, value, _HINTS[key])
    if key in _LEAST:
        require(key, value is None or value >= _LEAST[key], f"must be >= {_LEAST[key]}", value)
        small = value is None or value <= MOST or key == "partition_seed"
        require(key, small, f"must be at most {MOST:,}", value)
    if key == "loss":
        require(key, callable(value) or isinstance(value, str), "must be a name or a function", value)
    if key == "init":
        require(key, value != "", "must name a file of weights", value, "leave it out to start at random")
    if key == "validation":
        require(key, 0 <= value < 1, "must be in [0, 1)", value)
    return check_name(value) if key == "name" else value


def _check_cohort(cohort: int | None, clients: int | None) -> None:
    if cohort is not None and clients is not None:
        rule = f"must be <= {clients}, the number of clients"
        require("cohort", cohort <= clients, rule, cohort, "every slot needs a client of its own")


def check_name(name: str) -> str:
    rule = "must start with a letter or digit and hold no slashes, colons or quotes"
    require("name", bool(_NAME.fullmatch(name)), rule, name)
    rule = f"must have at most {LONGEST} characters (bytes of UTF-8): it names files"
    require("name", len(name.encode()) <= LONGEST, rule, name)
    return name


def as_name(stem: str) -> str:
    """The name of a data set, with what a setting's name may not hold replaced."""
    kept = "".join(c if _NAME.fullmatch(f"a{c}") else "-" for c in stem)
    kept = kept if _NAME.fullmatch(kept) else f"data{kept}"
    return kept.encode()[:LONGEST].decode(errors="ignore")


def _options(field: str, value: Any) -> Any:
    """A mapping of the tag and its options; a bare text is the tag; Python objects stay as they are."""
    tag, (accepted, words) = TAGS[field], _OBJECTS[field]
    if isinstance(value, str):
        value = {tag: value}
    if isinstance(value, Mapping) and not (field == "data" and _made_by(value)):
        name = value.get(tag)
        require(f"{field}.{tag}", name is None or isinstance(name, str), "must be text", name)
        if field == "partition" and name is not None and value.get("file") is not None:
            rule = f"must not stand beside kind: {name}"
            raise InputError("partition.file", rule, value["file"], "keep one of the two")
        return {key: _plain(inner) for key, inner in value.items() if inner is not None}
    fix = _made_by(value) if field == "data" else ""
    shown = type(value).__name__ if fix else value
    require(field, isinstance(value, accepted), f"must be {words}", shown, fix)
    return value


def _made_by(value: Any) -> str:
    """How data of another library become a data set."""
    for module, made in {
        "pandas": "from_frame(df, label='COLUMN')", "torch": "from_torch(dataset)",
        "datasets": "from_huggingface(dataset, label='COLUMN')",
    }.items():  # fmt: skip
        if any(cls.__module__.partition(".")[0] == module for cls in type(value).__mro__):
            return f"write data=fedskip.{made}"
    return ""


def _plain(value: Any) -> Any:
    """Options as YAML would give them, so that a study equals what is read back from its file."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def _local(local: Any) -> dict[str, Any]:
    """What was written of `local`, checked; null is left out, unless all of it is there."""
    local = dataclasses.asdict(local) if isinstance(local, Local) else local
    require("local", isinstance(local, Mapping), "must be a mapping such as {lr: 0.01, epochs: 10}", local)
    known = [f"local.{field.name}" for field in dataclasses.fields(Local)]
    for key in local:
        if f"local.{key}" not in known:
            raise unknown_key(f"local.{key}", known)
    complete = len(local) == len(known)
    written = {key: value for key, value in local.items() if complete or value is not None}
    fitted = Local(**written)
    return {key: getattr(fitted, key) for key in written}


_SPECIAL: dict[str, Callable[[Any], Any]] = {
    "attack": keys.part("attack", Attack),
    "privacy": keys.part("privacy", Privacy),
    "local": _local,
    "metric": keys.metrics,
    "methods": lambda methods: tuple(parse_many(methods)),
    "seeds": keys.seeds,
    "target": keys.target,
    "stop": keys.stop,
    "added": keys.added,
    "swept": keys.swept,
}
