"""A setting: as written (`Draft`), and with everything that was left out filled in (`Setting`).

Data, partition and model are mappings of a `name` or `kind` and its options (plain text is the name), or
Python objects. What was left out comes from the data set, or has the default that `Setting` declares.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from fedskip.config.fields import READERS, as_name, read_local
from fedskip.config.record import Record, Runs
from fedskip.config.tree import Places
from fedskip.data.dataset import Dataset
from fedskip.engine.local import Local
from fedskip.engine.upload_filters import Attack, Privacy
from fedskip.errors import InputError, option, require, unknown, unknown_key
from fedskip.files import short_file_name
from fedskip.methods.base import Method
from fedskip.methods.grammar import in_a_file, labels_as_added, parse_many, text
from fedskip.parsing.dotted_keys import TAGS, expand, overlay
from fedskip.parsing.ranges import AtLeast, Count, In
from fedskip.parsing.values import fit, hints_of

PYTHON = "python:"  # how a file shows an object that it cannot hold
# metrics from 0 to 1
SHARES = ("accuracy", "label_accuracy", "balanced_accuracy", "macro_f1", "auroc")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Data set, partition, model, local training, and the methods and seeds that are run on them.

    The fields are the keys of a setting, but for the last two. `Draft.resolved` makes settings and checks
    them.
    """

    name: str
    data: Mapping[str, Any] | Dataset
    partition: Mapping[str, Any]
    model: Mapping[str, Any] | Callable[..., Any]  # also an nn.Module, or a function that makes one
    clients: Count | None = None  # N; None: the partition knows
    cohort: Count  # K slots
    cohort_policy: Literal["uniform", "fixed", "cyclic"] = "uniform"
    local: Local
    methods: tuple[Method, ...]
    rounds: Count
    seeds: tuple[int, ...] = (0,)
    partition_seed: Annotated[int, AtLeast(0)] | None = None  # None: the run's seed
    # the share of the training samples that is held out, to choose the best model by
    validation: Annotated[float, In("[0, 1)")] = 0.0
    init: str | None = None  # a file of weights to start from
    privacy: Privacy | None = None
    attack: Attack | None = None
    loss: str | Callable[..., Any] = "cross_entropy"
    metric: str | Callable[..., Any] | tuple[Any, ...] = "accuracy"  # the first is the headline
    eval_every: Count = 1
    eval_samples: Count | None = None  # a fixed part of the test set, while training; None: all
    slot_accuracy: bool = False
    client_accuracy: bool = False
    target: float | str | None = None  # a score to reach, or a method whose best score it is
    note: str | None = None  # what tables and figures say of it besides
    guard: Literal["nonfinite"] | None = None  # visits that end in NaN or infinity are set aside
    reference: bool = False  # shown as a line beside the others, not compared with them
    stop: Mapping[str, int | float] | None = None  # `patience` and `target`: when a run ends early
    # not keys: what commands noted, and the methods of the parts before this one (see `parts`)
    record: Record = field(default_factory=Record)
    earlier: tuple[tuple[Method, ...], ...] = ()

    def __repr__(self) -> str:
        return f"Setting({self.name!r}: {describe_runs([self])})"

    @property
    def keys(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in KEYS}

    @property
    def headline(self) -> str | Callable[..., Any]:
        """The metric by which models are chosen and methods compared."""
        return self.metric[0] if isinstance(self.metric, tuple) else self.metric

    def division_seed(self, seed: int) -> int:
        """The seed of a run's split and partition."""
        return seed if self.partition_seed is None else self.partition_seed

    # --- names -------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """How checkpoints and the record of a study call it."""
        return part_key(self.name, self.number)

    @property
    def run_names(self) -> list[str]:
        return [self.run_name(method, seed) for method in self.methods for seed in self.seeds]

    def run_name(self, method: Method, seed: int) -> str:
        """How files call one of its runs."""
        return short_file_name(f"{self.name}.{in_a_file(self.label(method))}.s{seed}")

    def label(self, method: Method) -> str:
        """How tables call one of its methods."""
        return next(label for known, label in self._labels if known == method)

    @functools.cached_property
    def _labels(self) -> list[tuple[Method, str]]:
        return labels_as_added([*self.earlier, self.methods])

    # --- parts -------------------------------------------------------------------------------------

    def parts(self) -> list[Setting]:
        """The runs that the setting began with, and the runs of every addition, each as a setting.

        The last bits of a row depend on how many rows are computed with it. So what is added trains apart
        from what is there, whose numbers stay as they are. Each part has its own checkpoints.
        """
        parts = [Runs(self.methods, self.seeds), *self.record.added]
        alone = replace(self.record, added=())
        return [
            replace(
                self, methods=part.methods, seeds=part.seeds, record=alone,
                earlier=tuple(before.methods for before in parts[:number]),
            )
            for number, part in enumerate(parts)
        ]  # fmt: skip

    @property
    def number(self) -> int:
        """Which part it is: 0 has the runs that the setting began with."""
        return len(self.earlier)

    @property
    def all_methods(self) -> list[Method]:
        """Also those that were added."""
        methods = list(self.methods)
        for runs in self.record.added:
            methods += [method for method in runs.methods if method not in methods]
        return methods

    @property
    def all_seeds(self) -> list[int]:
        """Also those that were added."""
        added = (seed for runs in self.record.added for seed in runs.seeds)
        return list(dict.fromkeys([*self.seeds, *added]))

    def extended(self, methods: Sequence[Method], seeds: Sequence[int]) -> Setting:
        """The setting with more methods, more seeds or both. What it has already is left as it is.

        New methods are run at the seeds that are there, then new seeds with all methods.
        """
        added = list(self.record.added)
        new = [method for method in methods if method not in self.all_methods]
        if new:
            added.append(Runs(tuple(new), tuple(self.all_seeds)))
        later = [seed for seed in seeds if seed not in self.all_seeds]
        if later:
            added.append(Runs((*self.all_methods, *new), tuple(later)))
        existing = {method.label: method for method in self.all_methods}
        for method in new:
            if method.label in existing:
                rule = f"would be called {method.label}, as {text(existing[method.label])} is"
                fix = "give your class its own `title`"
                raise InputError(option("methods"), rule, text(method), fix)
        return replace(self, record=replace(self.record, added=tuple(added)))


KEYS = [f.name for f in dataclasses.fields(Setting) if f.name not in ("record", "earlier")]
_NEEDED = ("partition", "model", "cohort", "methods", "rounds")  # the data set may lack them


def part_key(setting: str, number: int) -> str:
    """How checkpoints and the record call a part. No setting can have a name with a tilde."""
    return f"{setting}~{number}" if number else setting


@dataclass(frozen=True)
class Draft:
    """A setting as written: every value is checked, and what was left out is left out.

    Only the name is always there. A draft knows where its keys were written, for errors that are found when
    the data set is known.
    """

    keys: Mapping[str, Any]
    record: Record = field(default_factory=Record)
    places: Places = field(default_factory=Places, compare=False)

    def __post_init__(self) -> None:
        with self.places.in_errors():
            keys = {key: _read(key, value) for key, value in self.keys.items() if value is not None}
            data: Any = keys.get("data")
            named = isinstance(data, Dataset) or bool(data and data.get("name"))
            require("data.name", named, "is missing", ..., "write data: {name: synthetic}")
            if "name" not in keys:  # the data set's, which may be a path
                stem = data.name if isinstance(data, Dataset) else Path(data["name"]).stem
                keys = {"name": as_name(stem)} | keys
            _check_cohort(keys.get("cohort"), keys.get("clients"))
        object.__setattr__(self, "keys", keys)

    def __repr__(self) -> str:
        return f"Draft({self.name!r}: {describe_runs([self])})"

    @property
    def name(self) -> str:
        return str(self.keys["name"])

    def with_keys(self, **keys: Any) -> Draft:
        """The setting with these values. None leaves a key out."""
        return replace(self, keys={**self.keys, **keys})

    def refuse_named_objects(self) -> None:
        """Refuse to train with Python objects of which study.yaml only has the name."""
        for key in ("data", "model", "loss", "metric"):
            value = self.keys.get(key)
            value = value.get("name") if isinstance(value, Mapping) else value
            for name in value if isinstance(value, tuple) else (value,):
                if isinstance(name, str) and name.startswith(PYTHON):
                    rule = "was a Python object, which a file cannot hold"
                    fix = "make the same Study in Python, with the object and this folder; call its resume()"
                    raise InputError(key, rule, name, fix)

    def resolved(self, defaults: Mapping[str, Any]) -> Setting:
        """The setting with everything that was left out.

        Args:
            defaults: `Dataset.defaults` (dotted keys). A default option goes with its `name` or `kind`: a
                setting with another one does not get it.
        """
        nested = expand(defaults)
        for key in nested:
            if key not in KEYS:
                raise unknown("default of the data set", key, KEYS)
        with self.places.in_errors():
            values = overlay(nested, self.keys)
            partition = values.get("partition", {})
            if "clients" not in self.keys and (
                "file" in partition or partition.get("kind") == "pooled"
            ):
                values.pop("clients", None)  # the partition knows: the default is of another one
            values["local"] = Local(**read_local(values.get("local", {})))
            missing = [key for key in map(_missing, _NEEDED, map(values.get, _NEEDED)) if key]
            if missing:
                is_, it = ("is", "it") if len(missing) == 1 else ("are", "them")
                fix = f"the data set has no default for {it}, so the study must say {it}"
                raise InputError(", ".join(missing), f"{is_} missing", fix=fix)
            read = {k: v if k == "local" else _read(k, v) for k, v in values.items()}
            setting = Setting(**read, record=self.record)
            _check(setting)
        return setting


def describe_runs(settings: Sequence[Draft | Setting]) -> str:
    """Methods, seeds, runs and rounds of settings, as far as they are known.

    >>> keys = {"data": "synthetic", "methods": "fedavg, fedskip(period=5)", "seeds": 3, "rounds": 100}
    >>> describe_runs([Draft(keys)])
    '2 methods × 3 seeds = 6 runs of 100 rounds'
    >>> describe_runs([Draft(keys), Draft({**keys, "seeds": [0], "rounds": 50})])
    '2 settings, 8 runs of 50 to 100 rounds'
    >>> describe_runs([Draft(keys, Record(added=(Runs("fedavg, fedskip(period=5)", 1),)))])
    '8 runs of 100 rounds'
    """
    each = [(len(s.keys.get("methods", ())), len(s.keys.get("seeds", (0,)))) for s in settings]
    added = [len(runs.methods) * len(runs.seeds) for s in settings for runs in s.record.added]
    parts = [_many(len(settings), "setting")] * (len(settings) > 1)
    alike = len(set(each)) == 1 and not added
    if alike:
        parts += map(_many, each[0], ("method", "seed"))
    words = " × ".join(parts)
    if all(methods for methods, _ in each):
        words += " = " if alike else ", " if words else ""
        words += _many(sum(methods * seeds for methods, seeds in each) + sum(added), "run")
        rounds = sorted({s.keys.get("rounds") or 0 for s in settings})
        if rounds[0]:  # else the data set has them
            least = "" if len(rounds) == 1 else f"{rounds[0]:,} to "
            words += f" of {least}{_many(rounds[-1], 'round')}"
    return words


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'s' * (count != 1)}"


# --- checks ----------------------------------------------------------------------------------------------


def _read(key: str, value: Any) -> Any:
    """The value of a key as a setting holds it, or an error that names the key."""
    if key not in KEYS:
        raise unknown_key(key, KEYS)
    return READERS[key](value) if key in READERS else fit(key, value, hints_of(Setting)[key])


def _missing(key: str, value: Any) -> str | None:
    """What to call a key that has no value."""
    if isinstance(value, Mapping):
        key, value = f"{key}.{TAGS[key]}", value.get(TAGS[key]) or value.get("file")
    return key if value is None else None


def _check_cohort(cohort: int | None, clients: int | None) -> None:
    if cohort is not None and clients is not None:
        rule = f"must be <= {clients}, the number of clients"
        require("cohort", cohort <= clients, rule, cohort, "every slot needs a client of its own")


def _check(setting: Setting) -> None:
    """Refuse values that do not fit together."""
    _check_cohort(setting.cohort, setting.clients)
    _check_target(setting)
    _check_stop(setting)
    runs: set[tuple[str, int]] = set()
    for part in [Runs(setting.methods, setting.seeds), *setting.record.added]:
        names = [text(method) for method in part.methods]
        more = {(name, seed) for name in names for seed in part.seeds}
        for name, seed in sorted(runs & more)[:1]:
            raise InputError("record.added", f"holds {name} at seed {seed}, which is there already")
        runs |= more


def _check_target(setting: Setting) -> None:
    target = setting.target
    if isinstance(target, str):
        ok = setting.reference or parse_many(target)[0] in setting.all_methods
        names = " or ".join(text(method) for method in setting.all_methods)
        require("target", ok, "must be one of the methods", target, f"write a score or {names}")
    else:
        _check_share("target", target, setting)


def _check_stop(setting: Setting) -> None:
    if setting.stop:
        fix = "set validation=0.1: a run must not be ended by its test scores"
        require("stop", setting.validation > 0, "needs a validation split", setting.stop, fix)
        _check_share("stop.target", setting.stop.get("target"), setting)


def _check_share(key: str, score: float | None, setting: Setting) -> None:
    if score is not None and setting.headline in SHARES:
        require(key, 0 <= score <= 1, "must be from 0 to 1", score, "write 0.68 for 68 %")
