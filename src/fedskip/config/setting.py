"""A setting: as written (`Draft`), and with everything that was left out filled in (`Setting`).

Data, partition and model are mappings of a `name` or `kind` and its options (plain text is the name), or
Python objects. What was left out comes from the data set, or has the default that `Setting` declares.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from fedskip.config.fields import READERS, as_name, from_mapping, read_seeds
from fedskip.config.tree import TAGS, Places, Tree, overlay
from fedskip.data.dataset import Dataset
from fedskip.engine.local import Local
from fedskip.engine.upload_filters import Attack, Privacy
from fedskip.errors import InputError, option, require, unknown, unknown_key
from fedskip.files import short_file_name
from fedskip.methods.base import Method
from fedskip.methods.grammar import in_a_file, labels_as_added, parse_many, text
from fedskip.parsing import PYTHON, AtLeast, Count, In, fit, fit_all, hints_of

RECORD = "record"  # the key of study.yaml that holds one
# metrics from 0 to 1
SHARES = ("accuracy", "label_accuracy", "balanced_accuracy", "macro_f1", "auroc")


# --- what commands note ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """Runs of a setting: each of these methods at each of these seeds."""

    methods: tuple[Method, ...]
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", tuple(parse_many(self.methods)))
        object.__setattr__(self, "seeds", read_seeds(self.seeds))


@dataclass(frozen=True)
class Sweep:
    """The grid that a setting is a point of."""

    of: str  # the setting's name without the values
    keys: tuple[str, ...]  # that were swept, dotted

    def __post_init__(self) -> None:
        ok = isinstance(self.keys, list | tuple) and all(isinstance(key, str) for key in self.keys)
        require("record.sweep.keys", ok, "must be a list of keys", self.keys)
        object.__setattr__(self, "keys", tuple(self.keys))
        fit_all(self, "record.sweep.")


@dataclass(frozen=True, kw_only=True)
class Record:
    """What commands note about a setting, beside its keys. Nobody has to write it."""

    sweep: Sweep | None = None
    full_rounds: Count | None = None  # of the study that this is a smaller version of
    full_seeds: Count | None = None  # how many that study has
    added: tuple[Runs, ...] = ()  # by `fedskip extend`, one after another

    def __post_init__(self) -> None:
        fit_all(self, "record.")
        object.__setattr__(self, "sweep", from_mapping("record.sweep", Sweep, self.sweep))
        rule = "must be a list of mappings such as {methods: [scaffold], seeds: [0, 1]}"
        ok = isinstance(self.added, list | tuple) and None not in self.added
        require("record.added", ok, rule, self.added)
        runs = tuple(from_mapping("record.added", Runs, each) for each in self.added)
        object.__setattr__(self, "added", runs)


# --- settings --------------------------------------------------------------------------------------------


class PlannedRun(NamedTuple):
    """One method at one seed."""

    name: str  # in files
    method: Method
    label: str  # of the method, in tables
    seed: int


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Data set, partition, model, local training, and the methods and seeds that are run on them.

    The fields with a text are the keys of a setting; the site's reference shows these texts. Then come
    what commands noted, and what follows from these. `Draft.resolved` makes settings and checks them.
    """

    name: str
    """How tables and files call the setting; the data set's name if left out."""
    data: Mapping[str, Any] | Dataset
    """Needed. A data set's `name` with its options, the path of a `.csv`, `.tsv`, `.parquet` or `.npz` file,
    or in Python a `Dataset`. `standardize: true` works for all."""
    partition: Mapping[str, Any]
    """Who gets what: `kind` with its options, or `file`, a saved partition; the data set's if left out."""
    model: Mapping[str, Any] | Callable[..., Any]
    """`name` (also your own, `my_nets:Net`) with its options; the data set's if left out. In Python also an
    `nn.Module`, from whose weights every run starts, or a function that makes one for each seed."""
    clients: Count | None = None
    """N. Not needed where the partition knows. With `natural`: this number of owners, at random."""
    cohort: Count
    """K: the slots, and the clients of a round; the data set's if left out."""
    cohort_policy: Literal["uniform", "fixed", "cyclic"] = "uniform"
    """`uniform`: drawn again every round; `fixed`: slot k stays with client k; `cyclic`: every slot moves on
    to the next client."""
    local: Local
    """Local training: the keys of the next table."""
    methods: tuple[Method, ...]
    """Needed. A list of methods as text, such as `fedprox(mu=0.1)`; in Python also objects."""
    rounds: Count
    """T; the data set's if left out."""
    seeds: tuple[int, ...] = (0,)
    """How many (3 is 0, 1, 2), or a list."""
    partition_seed: Annotated[int, AtLeast(0)] | None = None
    """One split and partition for all seeds; by default each seed has its own."""
    validation: Annotated[float, In("[0, 1)")] = 0.0
    """The share of the training samples that is held out, to choose the `best` model by."""
    init: str | None = None
    """A file of weights to start from: `.safetensors` or a `state_dict`, with the model's names and shapes."""
    privacy: Privacy | None = None
    """Noise on what a client sends: `{clip, sigma, delta}`, see below."""
    attack: Attack | None = None
    """Clients that send harmful models: `{clients, kind, scale}`, see below."""
    loss: str | Callable[..., Any] = "cross_entropy"
    """Also `squared_error`, `binary_cross_entropy`, or your own as `my_losses:focal`: a function (output,
    target) that gives one number per sample."""
    metric: str | Callable[..., Any] | tuple[Any, ...] = "accuracy"
    """A metric, or a list of them. The first is the headline: models are chosen and methods compared by it.
    Your own is `my_metrics:kappa`."""
    eval_every: Count = 1
    """Rounds from one evaluation to the next."""
    eval_samples: Count | None = None
    """A fixed number of test samples while training, and all at the end; by default always all."""
    slot_accuracy: bool = False
    """Also test the slot models before each merge."""
    client_accuracy: bool = False
    """Write `clients.csv`, and report the worst tenth of the clients."""
    target: float | str | None = None
    """A score such as `0.68`, or a method whose best score is meant: the report says how long each method
    takes to reach it. By default the baseline's best."""
    note: str | None = None
    """A remark that tables and figures show, such as "not the paper's model"."""
    guard: Literal["nonfinite"] | None = None
    """`nonfinite`: client updates that end in NaN or infinity are set aside."""
    reference: bool = False
    """Shown as a line below the table and not compared. `--methods` and the like do not change it; `--rounds`
    shortens it in proportion."""
    stop: Mapping[str, int | float] | None = None
    """When a run ends early by its validation scores: `patience` (rounds) and `target` (a score)."""
    # not keys: what commands noted, and the methods of the parts before this one (see `parts`)
    record: Record = field(default_factory=Record)
    earlier: tuple[tuple[Method, ...], ...] = ()
    # what follows from these
    keys: dict[str, Any] = field(init=False, compare=False)
    key: str = field(init=False, compare=False)  # in checkpoints and in the record of a study
    runs: tuple[PlannedRun, ...] = field(init=False, compare=False)  # without those that were added
    run_names: list[str] = field(init=False, compare=False)
    all_methods: list[Method] = field(init=False, compare=False)  # also those that were added
    all_seeds: list[int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        known = labels_as_added([*self.earlier, self.methods])
        labels = [next(label for other, label in known if other == one) for one in self.methods]
        runs = tuple(
            PlannedRun(
                short_file_name(f"{self.name}.{in_a_file(label)}.s{seed}"), method, label, seed
            )
            for method, label in zip(self.methods, labels, strict=True)
            for seed in self.seeds
        )
        methods, seeds = [*self.methods], dict.fromkeys(self.seeds)
        for added in self.record.added:
            methods += [method for method in added.methods if method not in methods]
            seeds |= dict.fromkeys(added.seeds)
        vars(self).update(
            keys={key: getattr(self, key) for key in KEYS}, key=part_key(self.name, len(self.earlier)),
            runs=runs, run_names=[run.name for run in runs], all_methods=methods, all_seeds=[*seeds],
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Setting({self.name!r})"

    @property
    def headline(self) -> str | Callable[..., Any]:
        """The metric by which models are chosen and methods compared."""
        return self.metric[0] if isinstance(self.metric, tuple) else self.metric

    def division_seed(self, seed: int) -> int:
        """The seed of a run's split and partition."""
        return seed if self.partition_seed is None else self.partition_seed

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


KEYS = [
    field.name
    for field in dataclasses.fields(Setting)
    if field.init and field.name not in ("record", "earlier")
]
_NEEDED = {  # what the data set may lack -> an example
    "partition": "iid", "model": "linear", "cohort": 5, "methods": "fedavg", "rounds": 100,
}  # fmt: skip


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
    name: str = field(init=False, compare=False)
    # as far as it says so: the methods may be the data set's
    number_of_runs: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        with self.places.in_errors():
            keys = {}
            for key, value in self.keys.items():
                if key not in KEYS:
                    raise unknown_key(key, KEYS)
                if value is not None:
                    read = READERS.get(key) or partial(fit, key, hint=hints_of(Setting)[key])
                    keys[key] = read(value)
            data: Any = keys.get("data")
            own = isinstance(data, Dataset)
            name: Any = data.get("name") if isinstance(data, Mapping) else data
            name = data.name if own else name
            require("data.name", bool(name), "is missing", ..., "write data: {name: synthetic}")
            if "name" not in keys:  # the data set's, which may be a path
                keys = {"name": as_name(name if own else Path(name).stem)} | keys
            if "cohort" in keys and "clients" in keys:
                rule = f"must be <= {keys['clients']}, the number of clients"
                fix = "every slot needs a client of its own"
                require("cohort", keys["cohort"] <= keys["clients"], rule, keys["cohort"], fix)
        number = len(keys.get("methods", "1")) * len(keys.get("seeds", "1"))
        number += sum(len(runs.methods) * len(runs.seeds) for runs in self.record.added)
        vars(self).update(keys=keys, name=str(keys["name"]), number_of_runs=number)

    def __repr__(self) -> str:
        return f"Draft({self.name!r})"

    def with_keys(self, **keys: Any) -> Draft:
        """The setting with these values. None leaves a key out."""
        return replace(self, keys={**self.keys, **keys})

    def refuse_named_objects(self) -> None:
        """Refuse to train with Python objects of which study.yaml only has the name."""
        for key in ("data", "model", "loss", "metric"):
            value = self.keys.get(key)
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
        nested = Tree(defaults).values
        for key in nested:
            if key not in KEYS:
                raise unknown("default of the data set", key, KEYS)
        values = overlay(nested, self.keys)
        partition = values.get("partition", {})
        if "file" in partition or partition.get("kind") == "pooled":  # it knows the clients
            values["clients"] = self.keys.get("clients")
        with self.places.in_errors():
            missing = {}
            for key, example in _NEEDED.items():
                value = values.get(key)
                if isinstance(value, Mapping):  # one without a name or kind
                    key, value = f"{key}.{TAGS[key]}", value.get(TAGS[key]) or value.get("file")
                if value is None:
                    missing[key] = example
            if missing:
                is_, it = ("is", "it") if len(missing) == 1 else ("are", "them")
                examples = ", ".join(f"{key}: {example}" for key, example in missing.items())
                fix = f"the data set has no default for {it}: write for example {examples}"
                raise InputError(", ".join(missing), f"{is_} missing", fix=fix)
            keys = replace(self, keys=values).keys
            local = Local(**keys.get("local", {}))
            setting = Setting(**{**keys, "local": local}, record=self.record)
            _check(setting)
        return setting


def describe_runs(settings: Sequence[Draft]) -> str:
    """Runs and rounds of settings, as far as they say so.

    >>> keys = {"data": "synthetic", "methods": "fedavg, fedskip(period=5)", "seeds": 3, "rounds": 100}
    >>> describe_runs([Draft(keys)])
    '6 runs of 100 rounds'
    >>> describe_runs([Draft(keys), Draft({**keys, "seeds": [0], "rounds": 50})])
    '2 settings, 8 runs of 50 to 100 rounds'
    """
    parts = [f"{len(settings)} settings"] if len(settings) > 1 else []
    if all("methods" in draft.keys for draft in settings):  # else the data set has them
        runs = sum(draft.number_of_runs for draft in settings)
        parts.append(f"{runs:,} run{'s' * (runs != 1)}")
        low, *_, high = sorted([draft.keys.get("rounds", 0) for draft in settings] * 2)
        if low:  # likewise
            least = f"{low:,} to " if low < high else ""
            parts[-1] += f" of {least}{high:,} round{'s' * (high != 1)}"
    return ", ".join(parts)


# --- checks ----------------------------------------------------------------------------------------------


def _check(setting: Setting) -> None:
    """Refuse values that do not fit together."""
    target, stop, methods = setting.target, setting.stop or {}, setting.all_methods
    if isinstance(target, str) and not setting.reference:
        fix, known = f"write a score or {' or '.join(map(text, methods))}", parse_many(target)[0]
        require("target", known in methods, "must be one of the methods", target, fix)
    if stop:
        fix = "set validation=0.1: a run must not be ended by its test scores"
        require("stop", setting.validation > 0, "needs a validation split", stop, fix)
    for key, score in {"target": target, "stop.target": stop.get("target")}.items():
        if isinstance(score, float) and setting.headline in SHARES:
            require(key, 0 <= score <= 1, "must be from 0 to 1", score, "write 0.68 for 68 %")
    there: set[tuple[str, int]] = set()
    for part in [Runs(setting.methods, setting.seeds), *setting.record.added]:
        for run in itertools.product(map(text, part.methods), part.seeds):
            rule = "holds {} at seed {}, which is there already".format(*run)
            require("record.added", run not in there, rule)
            there.add(run)
