"""What those keys of a setting hold that are more than one plain value."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedskip.input.errors import InputError, require, unknown_key
from fedskip.input.fit import MOST, fit
from fedskip.methods.base import Method
from fedskip.methods.grammar import parse_many

MOST_SEEDS = 10_000
STOP = {"patience": int, "target": float}


@dataclass(frozen=True)
class Added:
    """Runs that a setting got when it had been run already: these methods, each at these seeds."""

    methods: tuple[Method, ...]
    seeds: tuple[int, ...]


def seeds(written: Any) -> tuple[int, ...]:
    """A number n stands for 0..n-1.

    >>> seeds(3), seeds([7, 5])
    ((0, 1, 2), (7, 5))
    """
    rule = "must be how many seeds or a list of different ones, whole numbers >= 0"
    try:
        if isinstance(written, Iterable) and not isinstance(written, str | Mapping):
            found = tuple(fit("seeds", seed, int) for seed in written)
        else:
            found = tuple(range(min(fit("seeds", written, int), MOST_SEEDS + 1)))
    except InputError:
        raise InputError("seeds", rule, written) from None
    require("seeds", len(set(found)) == len(found) > 0 and min(found) >= 0, rule, written)
    require("seeds", len(found) <= MOST_SEEDS, f"must be {MOST_SEEDS:,} or fewer", written)
    return found


def stop(written: Any) -> dict[str, int | float] | None:
    """When a run ends early; None where nothing is said of it."""
    example = "must be a mapping such as {patience: 20}"
    require("stop", isinstance(written, Mapping | None), example, written)
    found = {}
    for key, value in (written or {}).items():
        if key not in STOP:
            raise unknown_key(f"stop.{key}", [f"stop.{name}" for name in STOP])
        if value is not None:
            found[key] = fit(f"stop.{key}", value, STOP[key])
    patience = found.get("patience", 1)
    require("stop.patience", 1 <= patience <= MOST, f"must be from 1 to {MOST:,} rounds", patience)
    return found or None


def added(written: Any) -> tuple[Added, ...] | None:
    """Additions as `fedskip extend` writes them, one after another."""
    rule = "must be a list of mappings such as {methods: [scaffold], seeds: [0, 1]}"
    require("added", isinstance(written, list | tuple | None), rule, written)
    found = []
    for one in written or ():
        if isinstance(one, Mapping):
            require("added", set(one) == {"methods", "seeds"}, rule, dict(one))
            one = Added(tuple(parse_many(one["methods"])), seeds(one["seeds"]))
        require("added", isinstance(one, Added), rule, one)
        found.append(one)
    return tuple(found) or None


def swept(written: Any) -> dict[str, Any] | None:
    """The grid that a setting is a point of: the name before its values, and the keys, dotted."""
    if written is None:
        return None
    whole = isinstance(written, Mapping) and set(written) == {"of", "keys"}
    ok = whole and isinstance(written["of"], str) and isinstance(written["keys"], list | tuple)
    ok = ok and all(isinstance(key, str) for key in written["keys"])
    fix = "a study writes it; leave it out, and write a list in the place of a value"
    require("swept", ok, "must be a mapping such as {of: name, keys: [local.lr]}", written, fix)
    return {"of": written["of"], "keys": list(written["keys"])}


def part(key: str, made: type) -> Callable[[Any], Any]:
    """Makes one of the small dataclasses of a setting from a mapping."""
    fields = dataclasses.fields(made)

    def make(value: Any) -> Any:
        if value is None or isinstance(value, made):
            return value
        needed = [field.name for field in fields if field.default is dataclasses.MISSING]
        example = ", ".join(f"{name}: 1" for name in needed or [fields[0].name])
        require(key, isinstance(value, Mapping), f"must be a mapping such as {{{example}}}", value)
        for name in value:
            if name not in [field.name for field in fields]:
                raise unknown_key(f"{key}.{name}", [f"{key}.{field.name}" for field in fields])
        written = {name: inner for name, inner in value.items() if inner is not None}
        for name in needed:
            require(f"{key}.{name}", name in written, "is missing", ..., f"write {key}: {{{example}}}")
        return made(**written)

    return make


def metrics(chosen: Any) -> Any:
    """A name or a function, or several of them, each once."""
    rule, fix = "must be a name or a function, or a list of them", "such as accuracy, or [accuracy, macro_f1]"
    listed = list(chosen) if isinstance(chosen, list | tuple) else [chosen]
    for one in listed:
        require("metric", callable(one) or (isinstance(one, str) and one.strip() != ""), rule, one, fix)
    require("metric", bool(listed), rule, chosen, fix)
    for one in listed:
        require("metric", listed.count(one) == 1, "must not be given twice", one)
    return listed[0] if len(listed) == 1 else tuple(listed)


def target(written: Any) -> float | str | None:
    """A number, or the text of one method."""
    if written is None:
        return None
    if isinstance(written, numbers.Real) and not isinstance(written, bool):
        return float(fit("target", written, float))
    fix = "such as 0.68, or fedavg"
    try:
        with contextlib.suppress(InputError):
            return float(fit("target", written, float))  # it may be text
        one = isinstance(written, str) and len(parse_many(written)) == 1
    except InputError as error:
        raise InputError("target", "must be a score or one method", written, f"{fix}; {error}") from None
    require("target", one, "must be a score or one method", written, fix)
    return str(written)
