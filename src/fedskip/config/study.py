"""A study: its settings, and how it uses the machine. It is built from a tree, and written as YAML.

A list in the place of a value stands for several settings, one for each value: a grid. A key that takes a
list itself, such as `model.hidden`, is swept by a list of lists.
"""

import dataclasses
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import numpy as np

from fedskip.config.fields import Stop, as_name, check_name, from_mapping
from fedskip.config.setting import KEYS, RECORD, Draft, Record, Runs, Setting, Sweep
from fedskip.config.tree import TAGS, Places, Tree, flatten
from fedskip.config.yaml_text import written
from fedskip.data.catalogue import CATALOGUE
from fedskip.data.partitions import KINDS
from fedskip.engine.local import Local
from fedskip.engine.upload_filters import Attack, Privacy
from fedskip.errors import InputError, require, unknown, unknown_key
from fedskip.methods.base import Method
from fedskip.methods.grammar import parse_many, text
from fedskip.models.construction import hints_for, maker_of
from fedskip.parsing import PYTHON, AtLeast, AtMost, Count, fit_all, is_own, parts_of

RUNS = 10_000  # of a study, unless `most_runs` says otherwise
_UNWRITTEN = ("settings", "cluster", "per_device")  # a study may go on elsewhere
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """Many runs side by side, and the machine they run on."""

    name: str = "study"
    """The folder is `runs/NAME-N`. By default the name of the file."""
    settings: tuple[Draft, ...]
    """A list of settings, each the study with some keys changed; by default one, as the top level says."""
    engine: Literal["auto", "loop", "stacked"] = "auto"
    """`loop`, `stacked`, or the better one for the model and the device."""
    device: str = "auto"
    """`cpu`, `cuda` or `cuda:N`; auto: cuda where there is one."""
    compile: bool = True
    """Compile the stacked engine's step, where there is a C++ compiler."""
    workers: Annotated[int, AtLeast(1), AtMost(1024)] | None = None
    """Threads of the loop engine, at most 1,024; by default one per core. Results do not
    depend on it."""
    processes: Annotated[int, AtLeast(1), AtMost(512)] | None = None
    """Processes over which the stacked engine spreads its runs on a CPU (Linux only), at most 512;
    by default one per core, but no more than 8. Kept on resume."""
    groups: Count | None = None
    """Groups of the runs of a setting, each trained by itself; by default `processes`, or on a cluster from
    the plan. Kept on resume."""
    cluster: str | None = None
    """Train on all devices of a Ray cluster: `HOST:PORT`, `auto`, or `local` to start one. Not kept."""
    per_device: Annotated[int, AtLeast(1), AtMost(64)] | None = None
    """Groups that share a GPU of a cluster at a time, at most 64; by default 1. Not kept."""
    threads: Annotated[int, AtLeast(1), AtMost(1024)] | None = None
    """torch's threads in the stacked engine, at most 1,024; by default 1."""
    precision: Literal["fp32", "tf32", "bf16", "fp64"] | None = None
    """Of the model's products: `fp32`, `tf32`, `bf16` (autocast) or `fp64` (everything); by default tf32 on a
    GPU and fp32 on a CPU. Weights, momentum and merges stay in float32."""
    deterministic: bool = True
    """On a GPU: only kernels that repeat their bits."""
    rows: Count | None = None
    """Rows that the stacked engine computes at a time, while others wait; by default what fits the GPU. Kept
    on resume."""
    streams: Annotated[int, AtLeast(0), AtMost(1024)] | None = None
    """On a GPU: streams over which rows are spread, at most 1,024; 0: all rows together. By default
    what suits the model."""
    checkpoint_every: Count | None = None
    """Rounds from one checkpoint to the next; by default there are twenty in a run."""
    most_runs: Count | None = None
    """The most runs that the study may have (methods times seeds, in all settings), by default 10,000. A
    larger grid is refused, as it may be a mistake."""

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
        _refuse_many(sum(draft.number_of_runs for draft in self.settings), self.most_runs)


STUDY_KEYS = [field.name for field in dataclasses.fields(StudySpec) if field.name != "settings"]
TOP_LEVEL = [*STUDY_KEYS, *(key for key in KEYS if key != "name"), "settings"]
# options of partitions, and what names data, partitions and models
_OPTIONS = {("partition", name) for kind in KINDS.values() for name in signature(kind).parameters}
_OPTIONS |= {*TAGS.items(), ("partition", "file")}
_SMALL = {"local": Local, "stop": Stop, "privacy": Privacy, "attack": Attack}
_INNER = {  # keys that people write without their place -> the key with its place
    name: f"{key}.{name}"
    for key, name in [
        *((key, field.name) for key, made in _SMALL.items() for field in dataclasses.fields(made)),
        *sorted(_OPTIONS),
    ]
}


def build(tree: Tree) -> StudySpec:
    """The study that a tree describes. Errors name the key and its place.

    The keys of a setting stand at the top level, shared by all settings; each entry of `settings` lays its
    own over them.
    """
    values, places = tree.values, tree.places
    record = values.get(RECORD)
    begun = isinstance(record, Mapping) and "study" in record  # the digest of what a study wrote
    check_keys(tree, [*TOP_LEVEL, RECORD] if begun else TOP_LEVEL)
    entries = values.get("settings") or [{}]
    inside: dict[str, Places] = defaultdict(Places)  # by index of an entry
    outside = Places()
    for path, place in places.items():
        if path.startswith("settings."):
            entry_index, _, key = path.removeprefix("settings.").partition(".")
            inside[entry_index][key] = place
        else:
            outside[path] = place
    shared = Tree({key: values[key] for key in values if key in KEYS and key != "name"}, outside)
    grids, most, name = [], values.get("most_runs"), str(values.get("name", "study"))
    with places.in_errors():
        fix = "set what all of them share, or write each of them out in a file"
        require("settings", isinstance(entries, list), "must be a list", entries, fix)
        for index, entry in enumerate(entries):
            rule = "must be a mapping such as {name: small, partition.beta: 0.1}"
            require(f"settings.{index}", isinstance(entry, Mapping), rule, entry)
            own = Tree(entry, inside[str(index)])
            check_keys(own, [*KEYS, RECORD])
            point = own.over(shared)
            with point.places.in_errors():
                # what was run already holds no grids: there, lists of lists are values
                grids.append((point, dict(axes_of(point.values, begun))))
        _refuse_many(sum(math.prod(map(len, axes.values())) for _, axes in grids), most)
        points: list[Tree] = []
        for whole, axes in grids:
            points += _points(whole, axes, name) if axes else [whole]
        study = {key: values[key] for key in STUDY_KEYS if values.get(key) is not None}
        spec = StudySpec(settings=tuple(map(_draft, points)), **study)
    return narrowed(spec, tree.only) if tree.only else spec


def narrowed(spec: StudySpec, names: Sequence[str]) -> StudySpec:
    """The study with only the named settings.

    `*` and `?` stand for any text. The name of a swept setting stands for all points of the sweep.
    """
    kept = set()
    for name in names:
        matching = {
            draft.name
            for draft in spec.settings
            if fnmatchcase(draft.name, name)
            or (draft.record.sweep and fnmatchcase(draft.record.sweep.of, name))
        }
        if not matching:
            raise unknown("setting", name, [draft.name for draft in spec.settings])
        kept |= matching
    settings = tuple(draft for draft in spec.settings if draft.name in kept)
    return dataclasses.replace(spec, settings=settings)


def _draft(tree: Tree) -> Draft:
    methods = tree.values.get("methods") or []
    for index, entry in enumerate(methods if isinstance(methods, list | tuple) else [methods]):
        try:  # one by one, as here an error knows its line
            parse_many([entry])
        except InputError as error:
            raise error.at(tree.places.of(f"methods.{index}")) from error.__cause__
    with tree.places.in_errors():
        record = from_mapping(RECORD, Record, tree.values.get(RECORD)) or Record()
    return Draft({k: v for k, v in tree.values.items() if k != RECORD}, record, tree.places)


def check_keys(tree: Tree, known: list[str]) -> None:
    """Refuse other keys, and say what may be meant."""
    for key in tree.values:
        if key not in known:
            error = unknown_key(key, [name for name in known if name != RECORD])
            if key == RECORD:
                rule = "is what a study notes of itself, and no key"
                error = InputError(key, rule, fix="leave it out")
            if key in _INNER:
                error = InputError(key, "is not a known key", fix=f"did you mean {_INNER[key]!r}?")
            if key in STUDY_KEYS:
                error = InputError(key, "holds for the whole study", fix="move it to the top level")
            raise error.at(tree.places.of(key))


def _refuse_many(runs: int, allowed: Any) -> None:
    # a value of `most_runs` that is not allowed is refused elsewhere
    most = allowed if isinstance(allowed, int) and allowed >= 1 else RUNS
    rule = f"has {runs:,} runs, methods times seeds in all settings; at most {most:,} are begun"
    require("the study", runs <= most, rule, fix=f"set most_runs={runs} if you mean it")


# --- grids -----------------------------------------------------------------------------------------------

# keys that hold lists themselves, or do not change how runs are trained
_NEVER_SWEPT = ("name", "methods", "seeds", "metric", "target", "note", "reference")


def axes_of(values: Mapping[str, Any], begun: bool = False) -> Iterator[tuple[str, list[Any]]]:
    """The dotted keys that have a list in the place of a value, and the values in it."""
    for key, value in flatten({key: value for key, value in values.items() if key in KEYS}).items():
        head, _, option = key.partition(".")
        swept = _as_list(value)
        if swept is None or head in _NEVER_SWEPT:
            continue
        if option and head in TAGS and takes_list(head, values[head].get(TAGS[head]), option):
            nested = [_as_list(inner) is not None for inner in swept]
            if begun or not any(nested):
                continue
            rule = "must be one list, or a list of lists to sweep"
            require(key, all(nested), rule, value, f"write {key}: [[32], [64, 32]]")
        require(key, len(swept) > 0, "must hold at least one value to sweep", value)
        for i, inner in enumerate(swept):
            if any(type(inner) is type(other) and inner == other for other in swept[:i]):
                raise InputError(key, f"holds {inner!r} twice", value, "keep one of the two")
        yield key, swept


def _as_list(value: Any) -> list[Any] | None:
    """The values of a list, or of what Python has in its place."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple | range) else None


def takes_list(head: str, name: Any, option: str) -> bool:
    """Whether an option of the data, the partition or the model is itself a list.

    An option is taken for a list where that is not known: options of files, and those that declare neither
    a type nor a default.
    """
    maker = _maker(head, str(name))
    parameter = signature(maker).parameters.get(option) if maker else None
    if maker is None or parameter is None:
        return (head, option) not in _OPTIONS
    untyped = list if parameter.default in (parameter.empty, None) else type(parameter.default)
    kinds = (get_origin(part) or part for part in parts_of(hints_for(maker).get(option, untyped)))
    return any(isinstance(k, type) and issubclass(k, Collection) and k is not str for k in kinds)


def _maker(head: str, name: str) -> Callable[..., Any] | None:
    """The function whose arguments are the options, if there is one by that name."""
    if head == "partition":
        return KINDS.get(name)
    if head == "data":
        return CATALOGUE[name].load if name in CATALOGUE else None
    try:
        return maker_of(name)
    except InputError:  # it is refused when the model is made
        return None


def _points(tree: Tree, axes: Mapping[str, list[Any]], study: str) -> Iterator[Tree]:
    """The settings of a grid, each with a name such as `small(lr=0.01,beta=0.5)`.

    Args:
        study: its name, for settings that have none and whose data differ.
    """
    data = tree.values.get("data")
    data = data.get("name") if isinstance(data, Mapping) else getattr(data, "name", None)
    own = as_name(Path(data).stem) if isinstance(data, str) and data else study
    name = str(tree.values.get("name") or own)
    record = (tree.values.get(RECORD) or {}) | {"sweep": {"of": name, "keys": list(axes)}}
    texts: dict[str, list[str]] = {}
    for key, swept in axes.items():  # texts that are the same get a number: `w`, `w-2`
        plain_texts = [value_text(value) for value in swept]
        before = [plain_texts[:i].count(one) for i, one in enumerate(plain_texts)]
        texts[key] = [f"{t}-{n + 1}" if n else t for t, n in zip(plain_texts, before, strict=True)]
    shorts = short_names(axes)
    for indices in itertools.product(*(range(len(swept)) for swept in axes.values())):
        values, inside = dict(tree.values), []
        for (key, swept), index in zip(axes.items(), indices, strict=True):
            *heads, last = key.split(".")
            level = values
            for head in heads:
                level[head] = copy(level[head])
                level = level[head]
            level[last] = swept[index]
            inside.append(f"{shorts[key]}={texts[key][index]}")
        values |= {"name": f"{name}({','.join(inside)})", RECORD: record}
        yield Tree(values, tree.places)


def short_names(keys: Sequence[str] | Mapping[str, Any]) -> dict[str, str]:
    """How names and figures call dotted keys: by their last part, unless two of them share it.

    >>> short_names(["local.lr", "model.name", "stop.target"])
    {'local.lr': 'lr', 'model.name': 'model', 'stop.target': 'target'}
    """
    last = {}
    for key in keys:
        head, _, rest = key.partition(".")
        last[key] = head if rest == TAGS.get(head) else key.rpartition(".")[2]
    counts = Counter(last.values())
    return {key: key if counts[name] > 1 else name for key, name in last.items()}


def value_text(value: Any) -> str:
    """A value as part of a name.

    >>> [value_text(value) for value in (0.01, None, [64, 32], {"kind": "iid", "seed": 1}, "data/a.npz")]
    ['0.01', 'none', '64-32', 'iid-1', 'a']
    """
    if isinstance(value, Mapping):
        return "-".join(value_text(inner) for inner in value.values())
    if (inner := _as_list(value)) is not None:
        return "-".join(map(value_text, inner))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | np.floating):
        return f"{value:.12g}"
    if isinstance(value, str):
        is_path = not is_own(value) and ("/" in value or Path(value).suffix)
        value = Path(value).stem if is_path else value
    elif not isinstance(value, int | np.integer):
        names = (getattr(value, name, None) for name in ("name", "__name__"))
        value = next(filter(None, names), type(value).__name__)
    return as_name(str(value))


# --- as YAML ---------------------------------------------------------------------------------------------


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
    each = [_plain(setting.keys, empty=False) for setting in settings]
    first = each[0]
    shared = {k: first[k] for k in first if k != "name" and all(s.get(k) == first[k] for s in each)}
    own = []
    for keys, setting in zip(each, settings, strict=True):
        record = {key: value for key, value in _plain(setting.record).items() if value}
        keys = {key: value for key, value in keys.items() if key not in shared}
        own.append(keys | ({RECORD: record} if record else {}))
    return {**_plain(study, empty=False), **shared, "settings": own}


def _plain(value: Any, empty: bool = True) -> Any:
    """Plain data; an object becomes its name. `empty`: keep keys without a value."""
    if isinstance(value, Method):
        return text(value)
    if isinstance(value, Local | Privacy | Attack | Record | Runs | Sweep):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items() if empty or inner is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{PYTHON}{named.__module__}.{named.__qualname__}"
