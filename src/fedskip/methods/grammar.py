"""Methods as text, for YAML and the command line: `fedprox(mu=0.01)`.

A list is a grid, a word without quotes is text, `fedskip` is FedAvg with a period, and your own class is
`my_package.my_module:MyMethod(alpha=1)`.
"""

import ast
import dataclasses
import importlib
import itertools
import keyword
import math
import pkgutil
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from fedskip.errors import InputError, shorten, unknown
from fedskip.methods.base import Method
from fedskip.parsing import fit, hints_of, is_own, load

_ENTRY = re.compile(r"([\w.]+(?::[\w.]+)?)\s*(\(.*\))?", re.DOTALL)
_TOKEN = re.compile(
    r"""'(?:\\.|[^'\\])*'?|"(?:\\.|[^"\\])*"?|.""", re.DOTALL
)  # quoted text is one token
LONGEST = 100_000  # characters of an entry
MOST = 10_000  # methods of a grid


@cache
def registry() -> dict[str, type[Method]]:
    """The bundled methods by name: every class with a title in a file of this folder."""
    package = importlib.import_module("fedskip.methods")
    classes: dict[str, type[Method]] = {}
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for value in vars(importlib.import_module(info.name)).values():
            is_method = isinstance(value, type) and issubclass(value, Method)
            if is_method and value.__module__ == info.name and hasattr(value, "title"):
                classes[value.__name__.lower()] = value
    return classes


def parse(entry: str) -> list[Method]:
    """The methods that one entry stands for: several if it holds a grid.

    >>> [m.label for m in parse("fedskip(period=[3, 5])")]
    ['FedSkip-3', 'FedSkip-5']
    """
    try:
        return list(_parse(entry.strip()))
    except InputError as error:
        field = f"methods entry {shorten(repr(entry), 70)}: {error.field}"
        raise InputError(field, error.rule, error.value, error.fix) from error.__cause__


def parse_many(entries: str | Method | Iterable[str | Method]) -> list[Method]:
    """All methods of a list, or of one text separated by commas or spaces. Duplicates are an error.

    >>> [m.label for m in parse_many("fedavg, fedprox(mu=[0.1, 1]) fedskip(period=5)")]
    ['FedAvg', 'FedProx(mu=0.1)', 'FedProx(mu=1.0)', 'FedSkip-5']
    """
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        entries = [entries]
    methods: list[Method] = []
    for entry in entries:
        if isinstance(entry, Method):
            methods.append(entry)
        elif isinstance(entry, str):
            if len(entry) > LONGEST:
                rule, fix = f"must have at most {LONGEST:,} characters", "write several entries"
                raise InputError("an entry of methods", rule, entry, fix)
            methods += [method for part in _split(entry) for method in parse(part)]
        else:
            rule = "must be methods or their text, such as 'fedprox(mu=0.01)'"
            raise InputError("methods", rule, entry)
    _refuse_duplicates(methods)
    return methods


def _refuse_duplicates(methods: list[Method]) -> None:
    """Refuse an empty list, and two methods that would have the same label in a table."""
    if not methods:
        raise InputError("methods", "must name at least one method", fix="write methods: [fedavg]")
    seen: dict[str, Method] = {}
    for method in methods:
        label = in_a_file(method.label)
        if label in seen:
            same = type(seen[label]) is type(method)
            fix = "remove one of the two" if same else "give your class its own `title`"
            raise InputError("methods", f"holds {seen[label].label} twice", text(method), fix)
        seen[label] = method


# --- labels in tables and files --------------------------------------------------------------------------


def label_among(method: Method, others: Iterable[Method]) -> str:
    """The label of a method in a table with others: parameters in which two of a kind differ are shown.

    >>> methods = parse_many("moon(mu=[1, 5]), fedavg")
    >>> [label_among(method, methods) for method in methods]
    ['MOON(mu=1.0)', 'MOON(mu=5.0)', 'FedAvg']
    """
    return method.label_with(_differing_parameters([method, *others])[type(method)])


def labels_as_added(parts: Iterable[Iterable[Method]]) -> list[tuple[Method, str]]:
    """The labels of methods that were added part by part: a label never changes later.

    >>> [label for _, label in labels_as_added([parse_many("moon, fedavg"), parse_many("moon(mu=5)")])]
    ['MOON', 'FedAvg', 'MOON(mu=5.0)']
    """
    labels: list[tuple[Method, str]] = []
    for methods in parts:
        known = [method for method, _ in labels]
        new = [method for method in methods if method not in known]
        differing = _differing_parameters([*known, *new])
        labels += [(method, method.label_with(differing[type(method)])) for method in new]
    return labels


def _differing_parameters(methods: Iterable[Method]) -> Mapping[type[Method], list[str]]:
    """By class of methods, the names of the parameters in which some of them differ."""
    first: dict[type[Method], Method] = {}
    differing: dict[type[Method], list[str]] = {}
    for method in methods:
        one, names = first.setdefault(type(method), method), differing.setdefault(type(method), [])
        for field in dataclasses.fields(method):
            if field.name not in names and getattr(one, field.name) != getattr(method, field.name):
                names.append(field.name)
    return differing


def in_a_file(label: str) -> str:
    """A label as part of a file name.

    >>> in_a_file("Mine(a=1, b='x/y')")
    "Mine(a=1,b='x_y')"
    """
    return label.replace(" ", "").replace("/", "_").replace("\\", "_")


def text(method: Method) -> str:
    """The shortest text that `parse` reads as this method.

    >>> from fedskip.methods import FedAvg, FedProx
    >>> text(FedAvg(period=5)), text(FedProx(mu=0.1))
    ('fedskip(period=5)', 'fedprox(mu=0.1)')
    """
    cls = type(method)
    name = cls.__name__.lower()
    if registry().get(name) is not cls:
        name = f"{cls.__module__}:{cls.__qualname__}"
    elif name == "fedavg" and method.period not in (1, "never"):
        name = "fedskip"
    chosen = method.hyper_parameters() | ({} if method.period == 1 else {"period": method.period})
    return name + (
        f"({', '.join(f'{k}={_literal(v)}' for k, v in chosen.items())})" if chosen else ""
    )


# --- parsing ---------------------------------------------------------------------------------------------


def _parse(entry: str) -> Iterator[Method]:
    match = _ENTRY.fullmatch(entry)
    if not match:
        fix = "write NAME or NAME(parameter=value, ...), in quotes where YAML would split it at a comma"
        raise InputError("it", "is not a method", fix=fix)
    name = match[1]
    cls = _find(name)
    grid = dict(_arguments(name, match[2] or "()"))
    fields = [field for field in dataclasses.fields(cls) if field.init]
    known = [field.name for field in fields]
    for parameter in grid:
        if parameter not in known:
            fix = unknown("", parameter, known).fix
            raise InputError(f"{parameter!r}", f"is not a parameter of {name}", fix=fix)
    for field in fields:
        required = field.default is field.default_factory  # both are MISSING
        if field.name not in grid and (required or (name == "fedskip" and field.name == "period")):
            raise InputError(name, f"needs {field.name}", fix=f"write {name}({field.name}=...)")
    number = math.prod(map(len, grid.values()))
    if number > MOST:
        rule = f"is a grid of {number:,} methods; at most {MOST:,} are tried"
        raise InputError(name, rule, fix="leave some values out")
    for values in itertools.product(*grid.values()):
        yield _make(name, cls, dict(zip(grid, values, strict=True)))


def _make(name: str, cls: type[Method], chosen: dict[str, Any]) -> Method:
    try:
        hints = hints_of(cls)
        return cls(**{key: fit(key, value, hints[key]) for key, value in chosen.items()})
    except InputError:
        raise
    except (NameError, TypeError, ValueError) as error:  # your own class may have its own checks
        raise InputError(name, f"cannot be made: {error}") from error


def _arguments(name: str, arguments: str) -> Iterator[tuple[str, list[Any]]]:
    """Each parameter with the values of its grid. They are read as literals: nothing is ever evaluated."""
    usage = f"write {name}(parameter=value, ...)"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of syntax that a later Python refuses
            call = ast.parse(f"f{arguments}", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        too_deep = isinstance(error, RecursionError | MemoryError)
        why = "nested too deep" if too_deep else getattr(error, "msg", str(error))
        rule, fix = f"has arguments that cannot be read: {why}", f"{usage}, and a rule in quotes"
        raise InputError(name, rule, fix=f"{fix}: period='1x10,5'") from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise InputError(name, "takes its parameters by name", fix=usage)
    names = Counter(argument.arg for argument in call.keywords)
    for argument in call.keywords:
        if argument.arg is None:
            raise InputError(name, "takes its parameters one by one, without **", fix=usage)
        if names[argument.arg] > 1:
            fix = "keep one, or write a grid as a list"
            raise InputError(argument.arg, "is given twice", fix=fix)
        try:
            value = ast.literal_eval(_Words().visit(argument.value))
        except (TypeError, ValueError, RecursionError, MemoryError):
            rule = "must be a number, a word, a text in quotes, or a list of them"
            source = ast.get_source_segment(f"f{arguments}", argument.value) or "something else"
            raise InputError(argument.arg, rule, source) from None
        grid = value if isinstance(value, list) else [value]
        if not grid:
            rule, fix = "must not be an empty list", "write at least one value"
            raise InputError(argument.arg, rule, fix=fix)
        yield argument.arg, grid


class _Words(ast.NodeTransformer):
    """Words without quotes become text: init=random."""

    def visit_Name(self, node: ast.Name) -> ast.Constant:
        return ast.Constant(node.id)


def _literal(value: Any) -> str:
    if isinstance(value, str) and value.isidentifier() and not keyword.iskeyword(value):
        return value
    return repr([value] if isinstance(value, list) else value)  # a list alone would be a grid


def _split(entries: str) -> Iterator[str]:
    """Cut at commas and spaces that stand outside of brackets and quotes."""
    depth, part = 0, ""
    for token in _TOKEN.findall(entries):
        depth += (token in "([{") - (token in ")]}")
        if depth <= 0 and (token == "," or token.isspace()):
            yield from [part] if part else []
            part = ""
        else:
            part += token
    yield from [part] if part else []


def _find(name: str) -> type[Method]:
    if is_own(name):
        return _load(name)
    known = registry() | {"fedskip": registry()["fedavg"]}
    if name.lower() not in known:
        raise unknown("method", name, known)
    return known[name.lower()]


def _load(name: str) -> type[Method]:
    """Your own class, imported by name."""
    cls = load(name)
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise InputError(name, "must be a subclass of fedskip.methods.Method", cls)
    if "__dataclass_params__" not in vars(cls):
        fix = "put @dataclass(frozen=True, kw_only=True) above it"
        raise InputError(name, "must be a dataclass", fix=fix)
    if not hasattr(cls, "title"):
        fix = f"add `title = {cls.__qualname__!r}` to the class"
        raise InputError(name, "needs a title for tables", fix=fix)
    return cls
