"""What users write, made to fit what a field declares: types, dotted keys, options laid over options."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedskip.errors import InputError, unknown

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}

TAGS = {"data": "name", "partition": "kind", "model": "name"}  # the key that says which one


def fit(field: str, value: Any, hint: Any) -> Any:
    """`value` as the declared type, or an error that names the field.

    Types that users' own classes may declare beyond the plain ones are let through unchecked.

    >>> fit("mu", 1, float), fit("epochs", 5.0, int), fit("lr", "1e-5", float)
    (1.0, 5, 1e-05)
    """
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    choices = [choice for option in options if get_origin(option) is Literal for choice in get_args(option)]
    plain = [option for option in options if option in _WORDS]
    if len(plain) + sum(get_origin(option) is Literal for option in options) < len(options):
        return value
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return value
    if type(value) in plain and type(value) is not float:
        return value
    if bool in plain and isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    number = _number(value)
    if number is not None:
        if int in plain and number == int(number):
            return int(number)
        if float in plain:
            return float(number)
    rule = " or ".join([*map(repr, choices), *(_WORDS[option] for option in plain)])
    raise InputError(field, f"must be {rule}", value)


def _number(value: Any) -> int | float | None:
    """A finite number, also where YAML 1.1 has read one as text (`1e-5`)."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    try:
        number = float(value) if isinstance(value, Real | str) and not isinstance(value, bool) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def fit_all(instance: Any, prefix: str = "") -> None:
    """Fit every field of a frozen dataclass; for its `__post_init__`."""
    hints = get_type_hints(type(instance))
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if value is not field.default:
            object.__setattr__(instance, field.name, fit(prefix + field.name, value, hints[field.name]))


def expand(flat: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Dotted keys as nested ones; `at` is where the mapping stands, for the error.

    >>> expand({"local.lr": 0.1, "local": {"batch": 64}})
    {'local': {'lr': 0.1, 'batch': 64}}
    """
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        graft(nested, key, value, at)
    return nested


def graft(tree: dict[str, Any], key: str, value: Any, at: str = "") -> None:
    """Put `value` under a dotted key of a nested dict; a key that is taken is refused.

    >>> expand({"partition": "dirichlet", "partition.beta": 0.3})  # a bare text is a name
    {'partition': {'kind': 'dirichlet', 'beta': 0.3}}
    """
    head, dot, rest = str(key).partition(".")  # in a file, too, a key is text
    if dot:
        value = {rest: value}
    path = f"{at}{head}"
    if head in TAGS and head in tree:
        tree[head], value = _tagged(head, tree[head]), _tagged(head, value)
    if head not in tree:
        tree[head] = expand(value, f"{path}.") if isinstance(value, Mapping) else value
    elif isinstance(tree[head], dict) and isinstance(value, Mapping):
        for inner, leaf in value.items():
            graft(tree[head], inner, leaf, f"{path}.")
    else:
        raise InputError(path, "is written twice", fix="keep one of the two")


def _tagged(field: str, value: Any) -> Any:
    return {TAGS[field]: value} if isinstance(value, str) else value


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, level by level.

    Options belong to the thing they configure: where `over` names another `kind` or `name`, those of
    `base` go with the old one.

    >>> overlay({"partition": {"kind": "dirichlet", "beta": 0.5}}, {"partition": {"kind": "iid"}})
    {'partition': {'kind': 'iid'}}
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not _renamed(old, value):
            value = overlay(old, value)
        merged[key] = value
    return merged


def _renamed(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return any(tag in new and new[tag] != old.get(tag) for tag in ("name", "kind"))


def unknown_key(path: str, known: Iterable[str]) -> InputError:
    """A key that nothing reads, with the nearest one that something does."""
    return InputError(path, "is not a known key", fix=unknown("", path, known).fix)
