"""Reads the keys of a setting that are more than a number, a word or a flag."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from fedskip.data.dataset import Dataset
from fedskip.engine.local import Local
from fedskip.engine.upload_filters import Attack, Privacy
from fedskip.errors import InputError, require, unknown_key
from fedskip.methods.grammar import parse_many
from fedskip.parsing.dotted_keys import TAGS
from fedskip.parsing.ranges import Count
from fedskip.parsing.values import fit, fit_all

MOST_SEEDS = 10_000
LONGEST = 100  # bytes of a name
_NAME = re.compile(r"\w[\w .,+=()@-]*")  # names become parts of file names
_OBJECTS: dict[str, tuple[Any, str]] = {  # what may stand in the place of a mapping
    "data": (Dataset, "a name, a mapping or a Dataset"),
    "partition": ((), "a kind or a mapping"),
    "model": (Callable, "a name, a mapping, an nn.Module or a function that makes one"),
}
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When a run ends early, by its validation scores."""

    patience: Count | None = None  # rounds without a better score
    target: float | None = None  # a score that is enough

    def __post_init__(self) -> None:
        fit_all(self, "stop.")


def from_mapping(key: str, made: type[T], value: Any) -> T | None:
    """Make one of the small dataclasses of a setting, such as `Privacy`. None stays None."""
    if value is None or isinstance(value, made):
        return value
    fields = dataclasses.fields(made)  # type: ignore[arg-type]
    names = [field.name for field in fields]
    needed = [field.name for field in fields if field.default is dataclasses.MISSING]
    example = f"{{{', '.join(f'{name}: 1' for name in needed or names[:1])}}}"
    require(key, isinstance(value, Mapping), f"must be a mapping such as {example}", value)
    for name in value:
        if name not in names:
            raise unknown_key(f"{key}.{name}", [f"{key}.{known}" for known in names])
    written = {name: inner for name, inner in value.items() if inner is not None}
    for name in needed:
        require(f"{key}.{name}", name in written, "is missing", ..., f"write {key}: {example}")
    return made(**written)


def read_stop(value: Any) -> dict[str, int | float] | None:
    """The rules that are given, as a mapping; None if there are none."""
    stop = from_mapping("stop", Stop, value) or Stop()
    return {name: rule for name, rule in vars(stop).items() if rule is not None} or None


def read_seeds(value: Any) -> tuple[int, ...]:
    """A number n stands for 0..n-1.

    >>> read_seeds(3), read_seeds([7, 5])
    ((0, 1, 2), (7, 5))
    """
    rule = "must be how many seeds or a list of different ones, whole numbers >= 0"
    try:
        if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
            seeds = tuple(fit("seeds", seed, int) for seed in value)
        else:
            seeds = tuple(range(min(fit("seeds", value, int), MOST_SEEDS + 1)))
    except InputError:
        raise InputError("seeds", rule, value) from None
    require("seeds", len(set(seeds)) == len(seeds) > 0 and min(seeds) >= 0, rule, value)
    require("seeds", len(seeds) <= MOST_SEEDS, f"must be {MOST_SEEDS:,} or fewer", value)
    return seeds


def read_metrics(value: Any) -> Any:
    """A name or a function; or several of them, as a tuple."""
    rule = "must be a name or a function, or a list of them"
    fix = "such as accuracy, or [accuracy, macro_f1]"
    metrics = list(value) if isinstance(value, list | tuple) else [value]
    require("metric", bool(metrics), rule, value, fix)
    for metric in metrics:
        named = isinstance(metric, str) and metric.strip() != ""
        require("metric", named or callable(metric), rule, metric, fix)
        require("metric", metrics.count(metric) == 1, "must not be given twice", metric)
    return metrics[0] if len(metrics) == 1 else tuple(metrics)


def read_target(value: Any) -> float | str | None:
    """A score, or the text of one method."""
    if value is None:
        return None
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(fit("target", value, float))
    rule, fix = "must be a score or one method", "such as 0.68, or fedavg"
    try:
        with contextlib.suppress(InputError):
            return float(fit("target", value, float))  # a number may be text
        ok = isinstance(value, str) and len(parse_many(value)) == 1
    except InputError as error:
        raise InputError("target", rule, value, f"{fix}; {error}") from None
    require("target", ok, rule, value, fix)
    return str(value)


def check_name(name: Any) -> str:
    """A name, which becomes part of file names."""
    name = fit("name", name, str)
    rule = "must start with a letter or digit and hold no slashes, colons or quotes"
    require("name", bool(_NAME.fullmatch(name)), rule, name)
    rule = f"must have at most {LONGEST} characters (bytes of UTF-8): it names files"
    require("name", len(name.encode()) <= LONGEST, rule, name)
    return str(name)


def as_name(stem: str) -> str:
    """The name of a data set, with what a setting's name may not hold replaced."""
    kept = "".join(c if _NAME.fullmatch(f"a{c}") else "-" for c in stem)
    kept = kept if _NAME.fullmatch(kept) else f"data{kept}"
    return kept.encode()[:LONGEST].decode(errors="ignore")


def read_options(key: str, value: Any) -> Any:
    """A mapping of a name or kind and its options; plain text is the name; objects stay as they are."""
    tag, (accepted, words) = TAGS[key], _OBJECTS[key]
    if isinstance(value, str):
        value = {tag: value}
    maker = _maker(value) if key == "data" else ""
    if isinstance(value, Mapping) and not maker:
        name = value.get(tag)
        require(f"{key}.{tag}", name is None or isinstance(name, str), "must be text", name)
        if key == "partition" and name is not None and value.get("file") is not None:
            rule = f"must not stand beside kind: {name}"
            raise InputError("partition.file", rule, value["file"], "keep one of the two")
        return {option: _plain(inner) for option, inner in value.items() if inner is not None}
    shown = type(value).__name__ if maker else value
    fix = f"write data=fedskip.{maker}" if maker else ""
    require(key, isinstance(value, accepted), f"must be {words}", shown, fix)
    return value


def _maker(value: Any) -> str:
    """The function that makes a data set of another library's data, if it is that."""
    modules = {cls.__module__.partition(".")[0] for cls in type(value).__mro__}
    makers = {
        "pandas": "from_frame(df, label='COLUMN')", "torch": "from_torch(dataset)",
        "datasets": "from_huggingface(dataset, label='COLUMN')",
    }  # fmt: skip
    return next((makers[module] for module in makers if module in modules), "")


def _plain(value: Any) -> Any:
    """Options as YAML would give them, so that a study equals what is read back from its file."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def read_local(value: Any) -> dict[str, Any]:
    """What was written of `local`. Null is left out, unless all keys are there."""
    local = dataclasses.asdict(value) if isinstance(value, Local) else value
    rule = "must be a mapping such as {lr: 0.01, epochs: 10}"
    require("local", isinstance(local, Mapping), rule, local)
    known = [f"local.{field.name}" for field in dataclasses.fields(Local)]
    for key in local:
        if f"local.{key}" not in known:
            raise unknown_key(f"local.{key}", known)
    complete = len(local) == len(known)
    written = {key: inner for key, inner in local.items() if complete or inner is not None}
    fitted = Local(**written)
    return {key: getattr(fitted, key) for key in written}


def read_init(value: Any) -> str | None:
    path = fit("init", os.fspath(value) if isinstance(value, os.PathLike) else value, str | None)
    rule, fix = "must name a file of weights", "leave it out to start at random"
    require("init", path != "", rule, path, fix)
    return None if path is None else str(path)


def read_loss(value: Any) -> Any:
    named = callable(value) or isinstance(value, str)
    require("loss", named, "must be a name or a function", value)
    return value


READERS: dict[str, Callable[[Any], Any]] = {
    "name": check_name,
    "data": partial(read_options, "data"),
    "partition": partial(read_options, "partition"),
    "model": partial(read_options, "model"),
    "local": read_local,
    "methods": lambda value: tuple(parse_many(value)),
    "seeds": read_seeds,
    "init": read_init,
    "privacy": partial(from_mapping, "privacy", Privacy),
    "attack": partial(from_mapping, "attack", Attack),
    "loss": read_loss,
    "metric": read_metrics,
    "target": read_target,
    "stop": read_stop,
}
