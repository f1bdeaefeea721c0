"""Fits what users write to the type and range that a field declares."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fedskip.errors import InputError, require, unknown
from fedskip.parsing.ranges import LARGEST, Range

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "null",
}


def fit(field: str, value: Any, hint: Any) -> Any:
    """Convert a value to the declared type and check its range.

    Args:
        field: how errors call it, such as `local.lr`.
        value: from YAML, the command line or Python.
        hint: int, float, bool, str, None, a Literal, any of these with ranges in `Annotated`, or a union of
            them. A value of any other type passes unchecked: users' own classes may declare what they like.

    >>> fit("mu", 1, float), fit("epochs", 5.0, int), fit("lr", "1e-5", float)
    (1.0, 5, 1e-05)
    >>> from fedskip.parsing.ranges import Count
    >>> fit("cohort", 0, Count | None)
    Traceback (most recent call last):
    fedskip.errors.InputError: cohort must be >= 1, got 0.
    """
    parts = list(_parts(hint))
    fitted = _typed(field, value, [part for part in parts if not isinstance(part, Range)])
    if isinstance(fitted, int | float) and not isinstance(fitted, bool):
        for part in parts:
            if isinstance(part, Range):
                part.check(field, fitted)
    return fitted


def _parts(hint: Any) -> Iterator[Any]:
    """The types and ranges that a hint is made of."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        yield from _parts(inner)
        yield from (range_ for range_ in metadata if isinstance(range_, Range))
    elif get_origin(hint) in (Union, UnionType):
        for inner in get_args(hint):
            yield from _parts(inner)
    else:
        yield hint


def _typed(field: str, value: Any, types: list[Any]) -> Any:
    literals = [hint for hint in types if get_origin(hint) is Literal]
    choices = [choice for hint in literals for choice in get_args(hint)]
    plain = [hint for hint in types if hint in _WORDS]
    if len(plain) + len(literals) < len(types):
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
            fix = "models are trained with 32-bit numbers"
            require(field, abs(number) <= LARGEST, f"must be at most {LARGEST} in size", value, fix)
            return float(number)
    rule = " or ".join([*map(repr, choices), *(_WORDS[hint] for hint in plain)])
    raise InputError(field, f"must be {rule}", value)


def _number(value: Any) -> int | float | None:
    """A finite number. YAML 1.1 reads `1e-5` as text, so text may be one."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    try:
        number = (
            float(value)
            if isinstance(value, Real | str) and not isinstance(value, bool)
            else math.nan
        )
    except ValueError:
        return None
    return number if math.isfinite(number) else None


_HINTS: dict[type, Mapping[str, Any]] = {}  # reading the types takes longer than fitting values


def hints_of(cls: type) -> Mapping[str, Any]:
    """The types that a class declares for its fields, ranges included."""
    if cls not in _HINTS:
        _HINTS[cls] = get_type_hints(cls, include_extras=True)
    return _HINTS[cls]


def fit_all(instance: Any, prefix: str = "") -> None:
    """Fit every field of a frozen dataclass. Call it in `__post_init__`."""
    hints = hints_of(type(instance))
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if value is not field.default:
            fitted = fit(prefix + field.name, value, hints[field.name])
            object.__setattr__(instance, field.name, fitted)


def fit_options(
    head: str, function: Callable[..., Any], options: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Options, each fitted to the keyword argument of a function; others are refused.

    Args:
        head: the key that holds the options, such as `partition`.
        function: what is called with them. Its options are its keyword-only arguments.
        options: as users write them.
        name: how errors call the function.
    """
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for option, value in options.items():
        if option not in known:
            fix = unknown("", option, known).fix if known else "remove it"
            raise InputError(f"{head}.{option}", f"is not an option of {name!r}", value, fix)
    hints = get_type_hints(function, include_extras=True)
    return {key: fit(f"{head}.{key}", value, hints[key]) for key, value in options.items()}
