"""Reads the keys of a setting that are more than a number, a word or a flag."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, TypeVar

import numpy as np

from fedskip.config.tree import TAGS, tagged
from fedskip.data.dataset import Dataset
from fedskip.engine.local import Local
from fedskip.engine.upload_filters import Attack, Privacy
from fedskip.errors import InputError, require, unknown_key
from fedskip.methods.grammar import parse_many
from fedskip.parsing import PYTHON, Count, fit, fit_all

MOST_SEEDS = 10_000
LONGEST_NAME = 100  # bytes of a name
_NAME = re.compile(r"\w[\w .,+=()@-]*")  # names become parts of file names
_OBJECTS: dict[str, tuple[Any, str]] = {  # what may stand in the place of a mapping
    "data": (Dataset, "a name, a mapping or a Dataset"),
    "partition": ((), "a kind or a mapping"),
    "model": (Callable, "a name, a mapping, an nn.Module or a function that makes one"),
}
_MAKERS = {  # of a data set, from what other libraries have
    "pandas": "from_frame(df, label='COLUMN')",
    "torch": "from_torch(dataset)",
    "datasets": "from_huggingface(dataset, label='COLUMN')",
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
    fields = {field.name: field.default for field in dataclasses.fields(made)}  # type: ignore[arg-type]
    needed = [name for name, default in fields.items() if default is dataclasses.MISSING]
    example = f"{{{', '.join(f'{name}: 1' for name in needed or [*fields][:1])}}}"
    require(key, isinstance(value, Mapping), f"must be a mapping such as {example}", value)
    for name in value:
        if name not in fields:
            raise unknown_key(f"{key}.{name}", [f"{key}.{known}" for known in fields])
    written = {name: inner for name, inner in value.items() if inner is not None}
    for name in needed:
        require(f"{key}.{name}", name in written, "is missing", ..., f"write {key}: {example}")
    return made(**written)


def read_local(value: Any) -> dict[str, Any]:
    """What was written of `local`. Null is left out, unless all keys are there."""
    if isinstance(value, Local):
        return dataclasses.asdict(value)
    rule = "must be a mapping such as {lr: 0.01, epochs: 10}"
    require("local", isinstance(value, Mapping), rule, value)
    fitted = from_mapping("local", Local, value)
    complete = len(value) == len(dataclasses.fields(Local))
    kept = (key for key, inner in value.items() if complete or inner is not None)
    return {key: getattr(fitted, key) for key in kept}


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
    rule, fix = "must be a name or a function, or a list of them", "such as [accuracy, macro_f1]"
    metrics = list(value) if isinstance(value, list | tuple) else [value]
    require("metric", bool(metrics), rule, value, fix)
    for metric in metrics:
        named = isinstance(metric, str) and metric.strip() != ""
        require("metric", named or callable(metric), rule, metric, fix)
        require("metric", metrics.count(metric) == 1, "must not be given twice", metric)
    return metrics[0] if len(metrics) == 1 else tuple(metrics)


def read_target(value: Any) -> float | str:
    """A score, or the text of one method."""
    try:
        float(value)
    except (TypeError, ValueError):
        pass
    else:
        return float(fit("target", value, float))  # a number may be text
    rule, fix = "must be a score or one method", "such as 0.68, or fedavg"
    try:
        if isinstance(value, str) and len(parse_many(value)) == 1:
            return value
    except InputError as error:
        fix = f"{fix}; {error}"
    raise InputError("target", rule, value, fix)


def check_name(name: Any) -> str:
    """A name, which becomes part of file names."""
    name = fit("name", name, str)
    rule = "must start with a letter or digit and hold no slashes, colons or quotes"
    require("name", bool(_NAME.fullmatch(name)), rule, name)
    rule = f"must have at most {LONGEST_NAME} characters (bytes of UTF-8): it names files"
    require("name", len(name.encode()) <= LONGEST_NAME, rule, name)
    return str(name)


def as_name(stem: str) -> str:
    """The name of a data set, with what a setting's name may not hold replaced."""
    kept = "".join(c if _NAME.fullmatch(f"a{c}") else "-" for c in stem)
    kept = kept if _NAME.fullmatch(kept) else f"data{kept}"
    return kept.encode()[:LONGEST_NAME].decode(errors="ignore")


def read_options(key: str, value: Any) -> Any:
    """A mapping of a name or kind and its options; plain text is the name; objects stay as they are."""
    tag, (accepted, words) = TAGS[key], _OBJECTS[key]
    value = tagged(key, value)
    name = value.get(tag) if isinstance(value, dict) else None
    if isinstance(name, str) and name.startswith(PYTHON):
        return name
    # some of other libraries' data are mappings, too
    foreign = _foreign(value) if key == "data" and type(value) is not dict else ""
    if isinstance(value, Mapping) and not foreign:
        require(f"{key}.{tag}", name is None or isinstance(name, str), "must be text", name)
        if key == "partition" and (file := value.get("file")) is not None:
            require("partition.file", isinstance(file, str | PathLike), "must be a path", file)
            rule = f"must not stand beside kind: {name}"
            require("partition.file", name is None, rule, file, "keep one of the two")
        return {option: _plain(inner) for option, inner in value.items() if inner is not None}
    shown = type(value).__name__ if foreign else value
    fix = f"write data=fedskip.{foreign}" if foreign else ""
    require(key, isinstance(value, accepted), f"must be {words}", shown, fix)
    return value


def _foreign(value: Any) -> str:
    """The function that makes a data set of another library's data, if it is that."""
    libraries = {cls.__module__.partition(".")[0] for cls in type(value).__mro__}
    return next((maker for library, maker in _MAKERS.items() if library in libraries), "")


def _plain(value: Any) -> Any:
    """Options as YAML would give them, so that a study equals what is read back from its file."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def read_init(value: Any) -> str:
    path = fit("init", os.fspath(value) if isinstance(value, os.PathLike) else value, str)
    fix = "leave it out to start at random"
    require("init", path != "", "must name a file of weights", path, fix)
    return str(path)


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
