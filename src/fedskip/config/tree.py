"""What users write: nested values that know where each key was written.

A tree comes from a YAML file (with line numbers), from `--set` on the command line, or from Python. Keys
may be nested or dotted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedskip.config.yaml_text import DEEPEST, parse, read_text
from fedskip.data.catalogue import is_file
from fedskip.data.tables import is_table
from fedskip.errors import InputError, flag, option
from fedskip.files import refuse_not_utf8
from fedskip.methods.grammar import own_names
from fedskip.parsing import is_own

TAGS = {"data": "name", "partition": "kind", "model": "name"}  # the key that says which one


class Places(dict[str, str]):
    """Where keys were written, by dotted key: `local.lr` -> `study.yaml line 12`."""

    def of(self, key: str) -> str:
        """The place of a key, or else of a key inside it, or else of the level above it."""
        while key and key not in self:
            for path, place in self.items():
                if path.startswith(f"{key}."):
                    return place
            key = key.rpartition(".")[0]
        return self.get(key, "")

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Inside, errors get the place of the field that they name."""
        try:
            yield
        except InputError as error:
            raise error.at(error.where or self.of(error.field)) from error.__cause__


@dataclass(frozen=True)
class Tree:
    """Nested values as they were written. Dotted keys are expanded; `iid` becomes `{kind: iid}`."""

    values: Mapping[str, Any]
    places: Places = field(default_factory=Places)
    only: tuple[str, ...] = ()  # the settings that are wanted; none: all

    def __post_init__(self) -> None:
        values = expand(self.values)
        for key in TAGS.keys() & values.keys():
            values[key] = tagged(key, values[key])  # so that options can be laid over a bare name
        object.__setattr__(self, "values", values)

    def over(self, other: Tree) -> Tree:
        """This tree laid over another: where both have a key, this one's value counts."""
        replaced = tuple(f"{key}." for key, v in self.values.items() if not isinstance(v, Mapping))
        kept = {key: at for key, at in other.places.items() if not key.startswith(replaced)}
        places = Places({**kept, **self.places})
        return Tree(overlay(other.values, self.values), places, self.only or other.only)


def load_yaml(path: str | os.PathLike[str], *, trust: bool = False) -> Tree:
    """The tree of a study file. Paths in it are made relative to the working folder.

    Nothing is imported here. What is made of the tree imports the code that it names, as `my_nets:Net`: without
    `trust`, a file that names code is refused.
    """
    path = Path(path)
    values, places = parse(read_text(path), str(path))
    if not isinstance(values, dict):
        raise InputError(str(path), "must hold the keys of a study, such as `data:` and `methods:`")
    with Places(places).in_errors():
        values = moved(expand(values), partial(read_in, path.parent))
        if not trust:
            refuse_code(values)
    return Tree({"name": path.stem} | values, Places(places))


def assigned(assignments: Iterable[str]) -> Tree:
    """The tree of `key=value` texts. Values are YAML; an empty one leaves the key out.

    >>> dict(assigned(["local.lr=0.1", "cohort=5", "clients="]).values)
    {'local': {'lr': 0.1}, 'cohort': 5, 'clients': None}
    """
    values: dict[str, Any] = {}
    places = Places()
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key, place = key.strip(), f"{option('set')} {assignment}"
        if not equals or not key:
            raise InputError(option("set"), "must be key=value", assignment, "such as local.lr=0.1")
        with Places({"": place}).in_errors():
            value, inner = parse(text, key, key, place)
            graft(values, key, value)
        places |= {key: place} | inner
    return Tree(values, places)


# --- dotted keys -----------------------------------------------------------------------------------------


def expand(value: Any, at: str = "") -> Any:
    """Dotted keys as nested ones, also inside of lists. `at`: the path of the value, for errors.

    >>> expand({"local.lr": 0.1, "local": {"batch": 64}})
    {'local': {'lr': 0.1, 'batch': 64}}
    """
    if isinstance(value, list):
        return [expand(inner, f"{at}{index}.") for index, inner in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    nested: dict[str, Any] = {}
    for key, inner in value.items():
        graft(nested, str(key), inner, at)  # in a file, too, a key is text
    return nested


def graft(tree: dict[str, Any], key: str, value: Any, at: str = "") -> None:
    """Put a value under a dotted key of a nested dict. A key that is there already is an error.

    >>> expand({"partition": "dirichlet", "partition.beta": 0.3})  # plain text is a name
    {'partition': {'kind': 'dirichlet', 'beta': 0.3}}
    """
    parts = key.split(".")
    if not all(parts):
        rule = "is not a key: nothing stands before or after a dot"
        raise InputError(f"{at}{key}" or "an empty text", rule)
    if len(parts) > DEEPEST:
        raise InputError(f"{at}{key}", "is nested too deep")
    head, dot, rest = key.partition(".")
    if dot:
        value = {rest: value}
    path = f"{at}{head}"
    if head in TAGS and head in tree:
        tree[head], value = tagged(head, tree[head]), tagged(head, value)
    if head not in tree:
        tree[head] = expand(value, f"{path}.")
    elif isinstance(tree[head], dict) and isinstance(value, Mapping):
        for inner, leaf in value.items():
            graft(tree[head], str(inner), leaf, f"{path}.")
    else:
        raise InputError(path, "is written twice", fix="keep one of the two")


def tagged(field: str, value: Any) -> Any:
    """A name as a mapping: `iid` of a partition as `{kind: iid}`. Other values stay as they are."""
    return {TAGS[field]: value} if isinstance(value, str) else value


def flatten(nested: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones.

    >>> flatten({"local": {"lr": 0.1, "batch": 64}, "cohort": 5})
    {'local.lr': 0.1, 'local.batch': 64, 'cohort': 5}
    """
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        path = f"{at}{key}"
        flat |= flatten(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return flat


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`, level by level.

    Options belong to the thing they configure: if `over` has another `kind` or `name`, the options in `base`
    are dropped with the old one. A saved partition (`file`) replaces one that is drawn.

    >>> overlay({"partition": {"kind": "dirichlet", "beta": 0.5}}, {"partition": {"kind": "iid"}})
    {'partition': {'kind': 'iid'}}
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            other = any(tag in value and value[tag] != old.get(tag) for tag in ("name", "kind"))
            if not other and not ("kind" in old and "file" in value):
                value = overlay(old, value)
        merged[key] = value
    return merged


# --- code ------------------------------------------------------------------------------------------------

_METHODS = ("methods", "method", "target")
_CODE = {*((key,) for key in ("model", "loss", "metric", *_METHODS)), ("model", "name")}


def named_code(study: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The dotted keys of a study that name code, with the names, such as `my_nets:Net`. Nothing is imported."""

    def inside(value: Any, at: tuple[str, ...], key: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                level = () if name in ("settings", "record", "added") else (*key, name)
                yield from inside(inner, (*at, name), level)
        elif isinstance(value, list | tuple):
            for index, inner in enumerate(value):
                yield from inside(inner, (*at, str(index)), key)
        elif isinstance(value, str) and key in _CODE:
            names = own_names(value) if key[0] in _METHODS else [value] * is_own(value)
            yield from ((".".join(at), name) for name in names)

    yield from inside(expand(study), (), ())


def refuse_code(
    study: Mapping[str, Any], trusted: Collection[str] = (), fix: str = "", where: str = ""
) -> None:
    """Refuse a study that names code, but for names that are trusted, before anything is imported.

    Args:
        fix: by default, to trust the file.
        where: the file.
    """
    for key, name in named_code(study):
        if name not in trusted:
            module, fix = (
                name.partition(":")[0],
                fix or f"read that code; if you trust it, add {flag('trust')}",
            )
            rule = f"names code: the module {module!r} would be imported and run"
            raise InputError(key, rule, name, fix, where)


# --- paths -----------------------------------------------------------------------------------------------

# Which values are paths, by key and option. `data.test` may also be the name of a column.
_PATHS: dict[str, dict[str, Callable[[str], bool]]] = {
    "data": {"": is_file, "name": is_file, "test": is_table},
    "partition": {"file": bool},
    "init": {"": bool},
}


def moved(study: Mapping[str, Any], move: Callable[[str], str]) -> dict[str, Any]:
    """A study, or a setting, with every relative path moved. Keys must be nested, not dotted.

    Paths in a study file are relative to the file's folder, so that the folder can be moved. On the command
    line and in Python they are relative to the working folder.
    """

    def inside(value: Any, key: str, option: str = "") -> Any:
        if isinstance(value, list):
            return [inside(inner, key, option) for inner in value]
        if isinstance(value, Mapping) and not option:
            return {name: inside(inner, key, name) for name, inner in value.items()}
        is_path = isinstance(value, str) and option in _PATHS[key] and _PATHS[key][option](value)
        if is_path:
            refuse_not_utf8(f"{key}.{option}", value)
        fixed = is_path and (os.path.isabs(value) or value[0] == "~" or "\0" in value)
        return move(value) if is_path and not fixed else value

    values = {key: inside(value, key) if key in _PATHS else value for key, value in study.items()}
    if isinstance(values.get("settings"), list):
        entries = values["settings"]
        values["settings"] = [moved(e, move) if isinstance(e, Mapping) else e for e in entries]
    return values


def read_in(folder: Path, path: str) -> str:
    """A path in a file of this folder, relative to the working folder.

    A path that exists only in the working folder stays as it is.
    """
    there = os.path.join(folder, path)
    only_here = not os.path.exists(there) and os.path.exists(path)
    if os.path.realpath(folder) == os.getcwd() or only_here:
        return path
    simple = os.path.relpath(there)  # which is wrong where a folder is a link
    if os.path.exists(simple) == os.path.exists(there):
        return simple
    return os.path.relpath(os.path.realpath(there))


def written_in(folder: Path, path: str) -> str:
    """A path of the working folder, relative to this folder."""
    parent, name = os.path.split(path)
    absolute = os.path.join(os.path.realpath(parent), name)
    try:
        return os.path.relpath(absolute, os.path.realpath(folder)).replace(os.sep, "/")
    except ValueError:  # Windows, on another drive
        return os.path.abspath(path)
