"""A study: its settings, and how it is to use the machine; built from a tree, written as YAML."""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any, Literal

import yaml

from fedskip.data.partitions import KINDS
from fedskip.engine.handed import Attack, Privacy
from fedskip.engine.local import Local
from fedskip.input.errors import InputError, require, unknown, unknown_key
from fedskip.input.fit import MOST, fit_all
from fedskip.input.nest import TAGS
from fedskip.input.plain import Dumper
from fedskip.methods.grammar import parse_many, text
from fedskip.spec.grid import Grid
from fedskip.spec.keys import STOP
from fedskip.spec.setting import KEYS, PYTHON, Draft, Setting, check_name
from fedskip.spec.tree import Tree

RECORD = "record"  # what a study notes about its machine; not part of what it is, so `build` skips it

RUNS = 10_000  # of a study, unless `most_runs` says otherwise
_RANGES = {
    "workers": (1, 1024), "processes": (1, 512), "threads": (1, 1024), "streams": (0, 1024),
    "groups": (1, MOST), "per_device": (1, 64), "rows": (1, MOST), "checkpoint_every": (1, MOST),
    "most_runs": (1, MOST),
}  # fmt: skip
_UNWRITTEN = ("settings", "cluster", "per_device")  # where a study is trained is no part of what it is
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """Many runs side by side, and the machine they run on."""

    name: str = "study"
    settings: tuple[Draft, ...]
    engine: Literal["auto", "loop", "stacked"] = "auto"
    device: str = "auto"  # cuda where there is one
    compile: bool = True
    workers: int | None = None  # threads of the loop engine, one visit each; None: one per core
    processes: int | None = None  # of the stacked engine on a CPU, each with some runs; None: one per core
    groups: int | None = None  # into which the runs of a setting are cut; None: `processes`, or from the plan
    cluster: str | None = None  # where they are trained: a Ray cluster's address, or local; None: here
    per_device: int | None = None  # groups that share a GPU of a cluster at a time; None: 1
    threads: int | None = None  # of torch; None: what suits the machine
    precision: Literal["fp32", "tf32", "bf16", "fp64"] | None = None  # None: tf32 on a GPU, fp32 on a CPU
    deterministic: bool = True  # on a GPU: only kernels that repeat their bits
    rows: int | None = None  # the most that the stacked engine computes at a time; None: what fits a GPU
    streams: int | None = None  # on a GPU: rows side by side, 0: all together; None: what suits the model
    checkpoint_every: int | None = None  # rounds; None: what suits the study
    most_runs: int | None = None  # that it may have; None: RUNS

    def __post_init__(self) -> None:
        fit_all(self)
        check_name(self.name)
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            require(name, value is None or value >= least, f"must be >= {least}", value)
            require(name, value is None or value <= most, f"must be at most {most:,}", value)
        apart = (self.threads or 1) == 1 or (self.processes or 1) == 1
        fix = "set processes=1: threads do not survive a fork"
        require("threads", apart, "must be 1 with several processes", self.threads, fix)
        fix = "other devices are not supported"
        ok = bool(_DEVICE.fullmatch(self.device))
        require("device", ok, "must be auto, cpu, cuda or cuda:N", self.device, fix)
        require("settings", len(self.settings) > 0, "must hold at least one setting", [])
        for name, count in Counter(draft.name for draft in self.settings).items():
            fix = "give each its own `name`"
            require("settings", count == 1, "must have different names", name, fix)
        _refuse_many(sum(map(_runs, self.settings)), self.most_runs)


_STUDY = [field.name for field in dataclasses.fields(StudySpec) if field.name != "settings"]
_OPTIONS = {name: None for deal in KINDS.values() for name in signature(deal).parameters}
_WRITTEN = ("added", "of_rounds", "of_seeds", "record", "swept")  # by commands, not by people
_INNER = [  # keys that people forget to say where they belong
    *(f"local.{field.name}" for field in dataclasses.fields(Local)), *(f"{key}.{TAGS[key]}" for key in TAGS),
    *(f"partition.{name}" for name in ["file", *_OPTIONS]), *(f"stop.{name}" for name in STOP),
    *(f"privacy.{field.name}" for field in dataclasses.fields(Privacy)),
    *(f"attack.{field.name}" for field in dataclasses.fields(Attack)),
]  # fmt: skip
_TOP = [*_STUDY, *(key for key in KEYS if key != "name"), "settings", RECORD]


def build(tree: Tree) -> StudySpec:
    """The study that a tree describes; errors name the key and its place.

    The keys of a setting stand at the top level, shared by all settings; each entry of `settings` lays its
    own over them.
    """
    _check_keys(tree, _TOP)
    beside, entries = tree.entries()
    values = beside.values
    shared = Tree({key: values[key] for key in values if key in KEYS and key != "name"}, beside.places)
    with tree.blamed():
        _refuse_many(len(entries), values.get("most_runs"))  # before they are looked at
    grids = []
    for entry in entries or [Tree({})]:
        _check_keys(entry, KEYS)
        grids.append(Grid.of(entry.over(shared), begun=RECORD in values))
    with tree.blamed():
        _refuse_many(sum(map(len, grids)), values.get("most_runs"))
    drafts = [_draft(point) for grid in grids for point in grid.points(str(values.get("name", "study")))]
    study = {key: values[key] for key in _STUDY if values.get(key) is not None}
    with tree.blamed():
        return StudySpec(settings=tuple(drafts), **study)


def narrowed(spec: StudySpec, names: Sequence[str]) -> StudySpec:
    """The study with those of its settings that are named; `*` and `?` stand for any text.

    The name of a swept setting stands for all its points.
    """
    known = {
        draft.name: (draft.name, (draft.keys.get("swept") or {}).get("of", "")) for draft in spec.settings
    }
    for name in names:
        if not any(fnmatchcase(one, name) for both in known.values() for one in both):
            raise unknown("setting", name, known)
    kept = [
        draft
        for draft in spec.settings
        if any(fnmatchcase(one, n) for one in known[draft.name] for n in names)
    ]
    return dataclasses.replace(spec, settings=tuple(kept))


def _runs(draft: Draft) -> int:
    """How many a setting has, as far as it says so."""
    keys = draft.keys
    later = sum(len(one.methods) * len(one.seeds) for one in keys.get("added") or ())
    return len(keys.get("methods", "1")) * len(keys.get("seeds", "1")) + later


def _refuse_many(runs: int, allowed: Any) -> None:
    most = allowed if isinstance(allowed, int) and allowed >= 1 else RUNS  # others are refused as such
    rule = f"has {runs:,} runs, methods times seeds in all settings; at most {most:,} are begun"
    require("the study", runs <= most, rule, fix=f"set most_runs={runs} if you mean it")


def _draft(tree: Tree) -> Draft:
    methods = tree.values.get("methods") or []
    for index, entry in enumerate(methods if isinstance(methods, list | tuple) else [methods]):
        try:  # one by one, as here an error knows its line
            parse_many([entry])
        except InputError as error:
            raise error.at(tree.where(f"methods.{index}")) from error.__cause__
    with tree.blamed():
        return Draft(tree.values)


def _check_keys(tree: Tree, known: list[str]) -> None:
    for key in tree.values:
        if key not in known:
            error = unknown_key(key, [name for name in known if name not in _WRITTEN])
            if inner := [name for name in _INNER if name.partition(".")[2] == key]:
                error = InputError(key, "is not a known key", fix=f"did you mean {inner[0]!r}?")
            if key in _STUDY:
                error = InputError(key, "holds for the whole study", fix="move it to the top level")
            raise error.at(tree.where(key))


def dump(spec: StudySpec, settings: Sequence[Draft | Setting] | None = None) -> str:
    """The study as YAML, with other `settings` than its own where given: resolved ones.

    Of a Python object (a module, a function, a data set) there is only a trace, which is not read back.
    """
    return as_yaml(_plain(spec, settings or spec.settings))


def as_yaml(values: Mapping[str, Any]) -> str:
    """Values as a study's file has them."""
    style: dict[str, Any] = {
        "sort_keys": False,
        "allow_unicode": True,
        "width": 110,
        "default_flow_style": None,
    }
    return str(yaml.dump(values, Dumper=_Dumper, **style))


def plain(spec: StudySpec, settings: Sequence[Draft | Setting] | None = None) -> dict[str, Any]:
    """What is read back from the study's YAML, as plain values."""
    return dict(yaml.safe_load(dump(spec, settings)))


def _plain(spec: StudySpec, settings: Sequence[Draft | Setting]) -> dict[str, Any]:
    """The study as nested plain values; what all settings share comes first."""
    study = _written({key: value for key, value in vars(spec).items() if key not in _UNWRITTEN})
    each = [
        _written(s.keys if isinstance(s, Draft) else {key: getattr(s, key) for key in KEYS}) for s in settings
    ]
    first = each[0]
    shared = [k for k in first if k != "name" and all(k in s and s[k] == first[k] for s in each)]
    own = [{key: value for key, value in s.items() if key not in shared} for s in each]
    return study | {key: first[key] for key in shared} | {"settings": own}


def _written(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as a file has them; None is left out."""
    found = {}
    for key, value in values.items():
        if isinstance(value, Local | Privacy | Attack):
            value = dataclasses.asdict(value)
        elif key == "methods":
            value = [text(method) for method in value]
        elif key == "added":
            value = [_written(vars(one)) for one in value or ()] or None
        elif isinstance(value, tuple):
            value = list(value)
        elif key in TAGS and isinstance(value, Mapping):
            name = value.get(TAGS[key])  # of an object that was read from a file: it stays as it was
            value = name if isinstance(name, str) and name.startswith(PYTHON) else value
        if value is not None:
            found[key] = value
    return found


class _Dumper(Dumper):
    """Plain data, and a trace of everything else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_object(dumper: _Dumper, value: Any) -> yaml.Node:
    named = value if hasattr(value, "__qualname__") else type(value)
    return dumper.represent_str(f"{PYTHON}{named.__module__}.{named.__qualname__}")


_Dumper.add_multi_representer(object, _represent_object)
