"""Values that users write, made to fit the types and ranges that fields declare; their own code by name.

A range stands with a field's type: `mu: Annotated[float, AtLeast(0)] = 0.01`. A field may have several.
"""

import dataclasses
import importlib
import inspect
import math
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from fedskip.errors import InputError, require, unknown
from fedskip.user_code import contained

MOST = 1_000_000_000  # of anything that is counted
LARGEST, SMALLEST = 3.4e38, 1.2e-38  # of a float32, in which models are trained
PYTHON = "python:"  # how a file shows an object that it cannot hold
_WORDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null",
}  # fmt: skip


# --- ranges ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """Numbers on one side of a bound. `fix` says what to do about a number outside."""

    bound: Any
    fix: str = ""
    rule: ClassVar[str]
    holds: ClassVar[Callable[[Any, Any], bool]]

    def check(self, field: str, value: float) -> None:
        rule = self.rule.format(self.bound)
        require(field, type(self).holds(value, self.bound), rule, value, self.fix)


class AtLeast(Range):
    rule, holds = "must be >= {}", operator.ge


class AtMost(Range):
    rule, holds = "must be at most {:,}", operator.le


class Above(Range):
    rule, holds = "must be > {}", operator.gt


def _inside(value: float, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    at_end = (value == low and interval[0] == "[") or (value == high and interval[-1] == "]")
    return low < value < high or at_end


class In(Range):
    """An interval as mathematics writes it: `In("[0, 1)")` holds 0 but not 1."""

    rule, holds = "must be in {}", _inside


Count = Annotated[int, AtLeast(1), AtMost(MOST)]  # how many of something
Positive = Annotated[float, Above(0), AtLeast(SMALLEST, "smaller numbers are 0 in 32 bits")]


# --- types -----------------------------------------------------------------------------------------------


def fit(field: str, value: Any, hint: Any) -> Any:
    """Convert a value to the declared type and check its range.

    Args:
        field: how errors call it, such as `local.lr`.
        value: from YAML, the command line or Python.
        hint: int, float, bool, str, None, a Literal, any of these with ranges in `Annotated`, or a union of
            them. A value of any other type passes unchecked: users' own classes may declare what they like.

    >>> fit("mu", 1, float), fit("epochs", 5.0, int), fit("lr", "1e-5", float)
    (1.0, 5, 1e-05)
    >>> fit("cohort", 0, Count | None)
    Traceback (most recent call last):
    fedskip.errors.InputError: cohort must be >= 1, got 0.
    """
    parts = list(parts_of(hint))
    fitted = _typed(field, value, [part for part in parts if not isinstance(part, Range)])
    if type(fitted) in (int, float):
        for part in parts:
            if isinstance(part, Range):
                part.check(field, fitted)
    return fitted


def parts_of(hint: Any) -> Iterator[Any]:
    """The types and ranges that a hint is made of."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        yield from parts_of(inner)
        yield from (part for part in metadata if isinstance(part, Range))
    elif get_origin(hint) in (Union, UnionType):
        for inner in get_args(hint):
            yield from parts_of(inner)
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
            return float(number) + 0.0  # -0.0 is 0.0
    rule = " or ".join([*map(repr, choices), *(_WORDS[hint] for hint in plain)])
    raise InputError(field, f"must be {rule}", value)


def _number(value: Any) -> int | float | None:
    """A finite number. YAML 1.1 reads `1e-5` as text, so text may be one."""
    if isinstance(value, bool) or not isinstance(value, Real | str):
        return None
    if isinstance(value, Integral):
        return int(value)
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


# the types that a class declares for its fields, with their ranges
hints_of: Callable[[type], Mapping[str, Any]] = cache(partial(get_type_hints, include_extras=True))


def fit_all(instance: Any, prefix: str = "") -> None:
    """Fit every field of a frozen dataclass. Call it in `__post_init__`."""
    hints = hints_of(type(instance))
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if value is not field.default:
            fitted = fit(prefix + field.name, value, hints[field.name])
            object.__setattr__(instance, field.name, fitted)


# --- users' own code -------------------------------------------------------------------------------------


def is_own(name: str) -> bool:
    """Whether a name stands for a user's own code: `my_package.my_module:MyMethod`."""
    return ":" in name and not name.startswith(PYTHON)


def load(name: str, field: str = "") -> Any:
    """The object that `MODULE:NAME` stands for. Modules in the working folder are found, too.

    The only place that imports users' code. It gives nothing of Python's standard library: `os:system` is refused
    before it could be called. Callers refuse what is not of the kind that they need.

    Args:
        field: the key that has this value, for errors.
    """
    module, _, path = name.partition(":")
    whole, rule = f"{field} {name}".strip(), "is a part of Python, which is not made for this"
    fix = "name a class or function of your own"
    require(whole, module.partition(".")[0] not in sys.stdlib_module_names, rule, fix=fix)
    of = f"{field} {name}: {module}" if field else module
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # for good: it may import more later
    try:
        with contained("it"):
            imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        fix = "write the module as in `import`, without .py, and run from its folder or install it"
        raise InputError(of, f"cannot be imported: {error}", fix=fix) from error
    except InputError as error:
        raise InputError(of, f"fails when imported: {str(error).rstrip('.')}") from error
    except Exception as error:  # whatever a user's module does when it is imported
        raise InputError(of, f"fails when imported: {type(error).__name__}: {error}") from error
    try:
        thing = operator.attrgetter(path)(imported)
    except AttributeError:
        fix = "check the name of the class or function"
        raise InputError(of, f"has no {path!r}", fix=fix) from None
    of_python = callable(thing) and package_of(thing) in sys.stdlib_module_names  # torch:os.system
    require(whole, not of_python, rule, fix=fix)
    return thing


def package_of(thing: Any) -> str:
    """The package that defines a class, a function, or the class of an object."""
    while isinstance(thing, partial):
        thing = thing.func
    return str(getattr(thing, "__module__", None) or "builtins").partition(".")[0]


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
