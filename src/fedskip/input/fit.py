"""What users write, made to fit the type that a field declares."""

import dataclasses
import math
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedskip.input.errors import InputError, require

MOST = 1_000_000_000  # of what is counted
LARGEST, SMALLEST = 3.4e38, 1.2e-38  # of a float32, in which models are trained
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}


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
            fix = "models are trained with 32-bit numbers"
            require(field, abs(number) <= LARGEST, f"must be at most {LARGEST} in size", value, fix)
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


_HINTS: dict[type, dict[str, Any]] = {}  # to find them takes longer than to fit values to them


def hints_of(cls: type) -> dict[str, Any]:
    """The types that a class declares."""
    if cls not in _HINTS:
        _HINTS[cls] = get_type_hints(cls)
    return _HINTS[cls]


def fit_all(instance: Any, prefix: str = "") -> None:
    """Fit every field of a frozen dataclass; for its `__post_init__`."""
    hints = hints_of(type(instance))
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if value is not field.default:
            object.__setattr__(instance, field.name, fit(prefix + field.name, value, hints[field.name]))
