"""A study: its settings, and how it uses the machine. It is built from a tree, and written as YAML."""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import signature
from typing import Annotated, Any, Literal

from fedskip.config.fields import Stop, check_name
from fedskip.config.grid import Grid
from fedskip.config.record import RECORD, Record, Runs, Sweep
from fedskip.config.setting import KEYS, PYTHON, Draft, Setting
from fedskip.config.tree import Tree
from fedskip.data.partitions import KINDS
from fedskip.engine.local import Local
from fedskip.engine.upload_filters import Attack, Privacy
from fedskip.errors import InputError, require, unknown, unknown_key
from fedskip.methods.base import Method
from fedskip.methods.grammar import parse_many, text
from fedskip.parsing.dotted_keys import TAGS
from fedskip.parsing.ranges import AtLeast, AtMost, Count
from fedskip.parsing.values import fit_all
from fedskip.parsing.yaml_text import written

RUNS = 10_000  # of a study, unless `most_runs` says otherwise
_UNWRITTEN = ("settings", "cluster", "per_device")  # a study may go on elsewhere
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """Many runs side by side, and the machine they run on."""

    name: str = "study"
    settings: tuple[Draft, ...]
    engine: Literal["auto", "loop", "stacked"] = "auto"
    device: str = "auto"  # cuda where there is one
    compile: bool = True
    # threads of the loop engine, one visit each; None: one per core
    workers: Annotated[int, AtLeast(1), AtMost(1024)] | None = None
    # of the stacked engine on a CPU, each with some runs; None: one per core
    processes: Annotated[int, AtLeast(1), AtMost(512)] | None = None
    groups: Count | None = None  # of the runs of a setting; None: `processes`, or from the plan
    cluster: str | None = None  # a Ray cluster's address, or local; None: this machine
    per_device: Annotated[int, AtLeast(1), AtMost(64)] | None = None  # groups at a time; None: 1
    threads: Annotated[int, AtLeast(1), AtMost(1024)] | None = None  # of torch
    precision: Literal["fp32", "tf32", "bf16", "fp64"] | None = None  # None: tf32 on a GPU, or fp32
    deterministic: bool = True  # on a GPU: only kernels that repeat their bits
    rows: Count | None = None  # that the stacked engine computes at a time; None: what fits a GPU
    # on a GPU: rows side by side, 0: all together; None: what suits the model
    streams: Annotated[int, AtLeast(0), AtMost(1024)] | None = None
    checkpoint_every: Count | None = None  # rounds; None: what suits the study
    most_runs: Count | None = None  # that it may have; None: RUNS

    def __post_init__(self) -> None:
        fit_all(self)
        check_name(self.name)
        alone = (self.threads or 1) == 1 or (self.processes or 1) == 1
        fix = "set processes=1: threads do not survive a fork"
        require("threads", alone, "must be 1 with several processes", self.threads, fix)
        fix = "other devices are not supported"
        ok = bool(_DEVICE.fullmatch(self.device))
        require("device", ok, "must be auto, cpu, cuda or cuda:N", self.device, fix)
        require("settings", len(self.settings) > 0, "must hold at least one setting", [])
        for name, count in Counter(draft.name for draft in self.settings).items():
            fix = "give each its own `name`"
            require("settings", count == 1, "must have different names", name, fix)
        _refuse_many(sum(map(_runs, self.settings)), self.most_runs)


STUDY_KEYS = [field.name for field in dataclasses.fields(StudySpec) if field.name != "settings"]
TOP_LEVEL = [*STUDY_KEYS, *(key for key in KEYS if key != "name"), "settings"]
_INNER = [  # keys that people write without their place
    *(f"local.{field.name}" for field in dataclasses.fields(Local)),
    *(f"{key}.{tag}" for key, tag in TAGS.items()),
    *(f"partition.{name}" for kind in KINDS.values() for name in signature(kind).parameters),
    "partition.file",
    *(f"stop.{field.name}" for field in dataclasses.fields(Stop)),
    *(f"privacy.{field.name}" for field in dataclasses.fields(Privacy)),
    *(f"attack.{field.name}" for field in dataclasses.fields(Attack)),
]


def build(tree: Tree) -> StudySpec:
    """The study that a tree describes. Errors name the key and its place.

    The keys of a setting stand at the top level, shared by all settings; each entry of `settings` lays its
    own over them.
    """
    _check_keys(tree, [*TOP_LEVEL, RECORD])
    beside, entries = tree.entries()
    values = beside.values
    shared = {key: values[key] for key in values if key in KEYS and key != "name"}
    with tree.places.in_errors():
        _refuse_many(len(entries), values.get("most_runs"))  # before they are looked at
    grids = []
    for entry in entries or [Tree({})]:
        _check_keys(entry, [*KEYS, RECORD])
        grids.append(Grid.of(entry.over(Tree(shared, beside.places)), begun=RECORD in values))
    with tree.places.in_errors():
        _refuse_many(sum(map(len, grids)), values.get("most_runs"))
    name = str(values.get("name", "study"))
    drafts = [_draft(point) for grid in grids for point in grid.points(name)]
    study = {key: values[key] for key in STUDY_KEYS if values.get(key) is not None}
    with tree.places.in_errors():
        return StudySpec(settings=tuple(drafts), **study)


def narrowed(spec: StudySpec, names: Sequence[str]) -> StudySpec:
    """The study with only the named settings.

    `*` and `?` stand for any text. The name of a swept setting stands for all points of the sweep.
    """
    known = {
        draft.name: (draft.name, draft.record.sweep.of if draft.record.sweep else "")
        for draft in spec.settings
    }

    def matches(setting: str, name: str) -> bool:
        return any(fnmatchcase(known_name, name) for known_name in known[setting])

    for name in names:
        if not any(matches(setting, name) for setting in known):
            raise unknown("setting", name, known)
    kept = [draft for draft in spec.settings if any(matches(draft.name, name) for name in names)]
    return dataclasses.replace(spec, settings=tuple(kept))


def _runs(draft: Draft) -> int:
    """How many runs a setting has, as far as it says so."""
    keys = draft.keys
    added = sum(len(runs.methods) * len(runs.seeds) for runs in draft.record.added)
    return len(keys.get("methods", "1")) * len(keys.get("seeds", "1")) + added


def _refuse_many(runs: int, allowed: Any) -> None:
    # a value of `most_runs` that is not allowed is refused elsewhere
    most = allowed if isinstance(allowed, int) and allowed >= 1 else RUNS
    rule = f"has {runs:,} runs, methods times seeds in all settings; at most {most:,} are begun"
    require("the study", runs <= most, rule, fix=f"set most_runs={runs} if you mean it")


def _draft(tree: Tree) -> Draft:
    methods = tree.values.get("methods") or []
    for index, entry in enumerate(methods if isinstance(methods, list | tuple) else [methods]):
        try:  # one by one, as here an error knows its line
            parse_many([entry])
        except InputError as error:
            raise error.at(tree.places.of(f"methods.{index}")) from error.__cause__
    with tree.places.in_errors():
        record = Record.read(tree.values.get(RECORD))
    return Draft({k: v for k, v in tree.values.items() if k != RECORD}, record, tree.places)


def _check_keys(tree: Tree, known: list[str]) -> None:
    for key in tree.values:
        if key not in known:
            error = unknown_key(key, [name for name in known if name != RECORD])
            if inner := [name for name in _INNER if name.partition(".")[2] == key]:
                error = InputError(key, "is not a known key", fix=f"did you mean {inner[0]!r}?")
            if key in STUDY_KEYS:
                error = InputError(key, "holds for the whole study", fix="move it to the top level")
            raise error.at(tree.places.of(key))


def dump(spec: StudySpec, settings: Sequence[Draft | Setting] | None = None) -> str:
    """The study as YAML.

    Of a Python object (a module, a function, a data set) only the name is written, which cannot be read back.

    Args:
        settings: resolved ones, to be written in the place of the study's own.
    """
    return written(plain(spec, settings), compact=True)


def plain(spec: StudySpec, settings: Sequence[Draft | Setting] | None = None) -> dict[str, Any]:
    """The study as nested plain values. Keys that all settings share come first."""
    settings = settings or spec.settings
    study = {key: value for key, value in vars(spec).items() if key not in _UNWRITTEN}
    each = [_plain_keys(setting.keys) for setting in settings]
    first = each[0]
    shared = {k: first[k] for k in first if k != "name" and all(s.get(k) == first[k] for s in each)}
    own = []
    for keys, setting in zip(each, settings, strict=True):
        record = {key: value for key, value in _plain(setting.record).items() if value}
        keys = {key: value for key, value in keys.items() if key not in shared}
        own.append(keys | ({RECORD: record} if record else {}))
    return _plain_keys(study) | shared | {"settings": own}


def _plain_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as a file has them, without those that are None."""
    plain_values = {key: _plain(value) for key, value in values.items()}
    for key, tag in TAGS.items():
        value = plain_values.get(
            key
        )  # the name of an object that was read from a file stays a name
        name = value.get(tag) if isinstance(value, dict) else None
        if isinstance(name, str) and name.startswith(PYTHON):
            plain_values[key] = name
    return {key: value for key, value in plain_values.items() if value is not None}


def _plain(value: Any) -> Any:
    """Plain data; an object becomes its name."""
    if isinstance(value, Method):
        return text(value)
    if isinstance(value, Local | Privacy | Attack | Record | Runs | Sweep):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{PYTHON}{named.__module__}.{named.__qualname__}"
