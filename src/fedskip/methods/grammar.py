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
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from fedskip.errors import InputError, shorten, unknown
from fedskip.methods.base import Method
from fedskip.parsing import fit, hints_of, is_own, load

_ENTRY = re.compile(r"([\w.]+(?::[\w.]+)?)\s*(\(.*\))?", re.DOTALL)
# quoted text is one token
_TOKEN = re.compile(r"""'(?:\\.|[^'\\])*'?|"(?:\\.|[^"\\])*"?|.""", re.DOTALL)
LONGEST_ENTRY = 100_000  # characters of an entry
MOST_METHODS = 10_000  # methods of a grid


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
    if isinstance(entries, str | Mapping) or not isinstance(entries, Iterable):
        entries = [entries]  # type: ignore[list-item]
    methods: list[Method] = []
    for entry in entries:
        if isinstance(entry, Method):
            methods.append(entry)
            continue
        if not isinstance(entry, str):
            rule = "must be methods or their text, such as 'fedprox(mu=0.01)'"
            raise InputError("methods", rule, entry)
        if len(entry) > LONGEST_ENTRY:
            rule, fix = f"must have at most {LONGEST_ENTRY:,} characters", "write several entries"
            raise InputError("an entry of methods", rule, entry, fix)
        methods += [method for part in _split(entry) for method in parse(part)]
    if not methods:
        raise InputError("methods", "must name at least one method", fix="write methods: [fedavg]")
    seen: dict[str, Method] = {}  # two of one label would share rows and files
    for method in methods:
        first = seen.setdefault(in_a_file(method.label), method)
        if first is not method:
            same = type(first) is type(method)
            fix = "remove one of the two" if same else "give your class its own `title`"
            raise InputError("methods", f"holds {first.label} twice", text(method), fix)
    return methods


def own_names(entries: str) -> list[str]:
    """The classes of users that a text names. Nothing is imported.

    >>> own_names("fedavg, mine:Method(alpha=[1, 2])")
    ['mine:Method']
    """
    found = (_ENTRY.fullmatch(part.strip()) for part in _split(entries))
    return [match[1] for match in found if match and is_own(match[1])]


# --- labels in tables and files --------------------------------------------------------------------------


def label_among(method: Method, others: Iterable[Method]) -> str:
    """The label of a method in a table with others: parameters in which two of a kind differ are shown.

    >>> methods = parse_many("moon(mu=[1, 5]), fedavg")
    >>> [label_among(method, methods) for method in methods]
    ['MOON(mu=1.0)', 'MOON(mu=5.0)', 'FedAvg']
    """
    return labels_as_added([[method, *others]])[0][1]


def labels_as_added(parts: Iterable[Iterable[Method]]) -> list[tuple[Method, str]]:
    """The labels of methods that were added part by part: a label never changes later.

    >>> [label for _, label in labels_as_added([parse_many("moon, fedavg"), parse_many("moon(mu=5)")])]
    ['MOON', 'FedAvg', 'MOON(mu=5.0)']
    """
    labels: list[tuple[Method, str]] = []
    for methods in parts:
        known = [method for method, _ in labels]
        new = [method for method in methods if method not in known]
        differing: dict[type[Method], list[str]] = {}
        for kind in {type(method) for method in new}:
            first, *others = [method for method in [*known, *new] if type(method) is kind]
            differing[kind] = [
                field.name
                for field in dataclasses.fields(kind)
                if any(getattr(one, field.name) != getattr(first, field.name) for one in others)
            ]
        labels += [(method, method.label_with(differing[type(method)])) for method in new]
    return labels


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
    parameters = []
    for key, value in chosen.items():
        word = isinstance(value, str) and value.isidentifier() and not keyword.iskeyword(value)
        written = [value] if isinstance(value, list) else value  # a list alone would be a grid
        parameters.append(f"{key}={value if word else repr(written)}")
    return name + (f"({', '.join(parameters)})" if parameters else "")


# --- parsing ---------------------------------------------------------------------------------------------


def _parse(entry: str) -> Iterator[Method]:
    match = _ENTRY.fullmatch(entry)
    if not match:
        fix = "write NAME or NAME(parameter=value, ...), in quotes where YAML would split it at a comma"
        raise InputError("it", "is not a method", fix=fix)
    name, cls = match[1], _class_of(match[1])
    grid = _arguments(name, match[2] or "()")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for parameter in grid:
        if parameter not in fields:
            fix = unknown("", parameter, fields).fix
            raise InputError(f"{parameter!r}", f"is not a parameter of {name}", fix=fix)
    for field in fields.values():
        required = field.default is field.default_factory  # both are MISSING
        if field.name not in grid and (required or (name == "fedskip" and field.name == "period")):
            raise InputError(name, f"needs {field.name}", fix=f"write {name}({field.name}=...)")
    number = math.prod(map(len, grid.values()))
    if number > MOST_METHODS:
        rule = f"is a grid of {number:,} methods; at most {MOST_METHODS:,} are tried"
        raise InputError(name, rule, fix="leave some values out")
    for values in itertools.product(*grid.values()):
        try:
            hints = hints_of(cls)
            chosen = zip(grid, values, strict=True)
            yield cls(**{key: fit(key, value, hints[key]) for key, value in chosen})
        except InputError:
            raise
        except (
            NameError,
            TypeError,
            ValueError,
        ) as error:  # your own class may have its own checks
            raise InputError(name, f"cannot be made: {error}") from error


def _class_of(name: str) -> type[Method]:
    """The class of a method, bundled or your own."""
    if not is_own(name):
        known = registry() | {"fedskip": registry()["fedavg"]}
        if name.lower() not in known:
            raise unknown("method", name, known)
        return known[name.lower()]
    cls = load(name)
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise InputError(name, "must be a subclass of fedskip.methods.Method", cls)
    if "__dataclass_params__" not in vars(cls):
        fix = "put @dataclass(frozen=True, kw_only=True) above it"
        raise InputError(name, "must be a dataclass", fix=fix)
    return cls


def _arguments(name: str, arguments: str) -> dict[str, list[Any]]:
    """Each parameter with the values of its grid. They are read as literals: nothing is ever evaluated."""
    usage, source = f"write {name}(parameter=value, ...)", f"f{arguments}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of syntax that a later Python refuses
            call = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        too_deep = isinstance(error, RecursionError | MemoryError)
        why = "nested too deep" if too_deep else getattr(error, "msg", str(error))
        rule, fix = f"has arguments that cannot be read: {why}", f"{usage}, and a rule in quotes"
        raise InputError(name, rule, fix=f"{fix}: period='1x10,5'") from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise InputError(name, "takes its parameters by name", fix=usage)
    grid: dict[str, list[Any]] = {}
    for argument in call.keywords:
        if argument.arg is None:
            raise InputError(name, "takes its parameters one by one, without **", fix=usage)
        if argument.arg in grid:
            raise InputError(argument.arg, "is given twice", fix="write a grid as a list")
        try:
            value = ast.literal_eval(_Words().visit(argument.value))
        except (TypeError, ValueError, RecursionError, MemoryError):
            rule = "must be a number, a word, a text in quotes, or a list of them"
            part = ast.get_source_segment(source, argument.value) or "something else"
            raise InputError(argument.arg, rule, part) from None
        if value == []:
            raise InputError(argument.arg, "must not be an empty list", fix="write a value")
        grid[argument.arg] = value if isinstance(value, list) else [value]
    return grid


class _Words(ast.NodeTransformer):
    """Words without quotes become text: init=random."""

    def visit_Name(self, node: ast.Name) -> ast.Constant:
        return ast.Constant(node.id)


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
