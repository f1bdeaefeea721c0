"""A study as YAML: read with line numbers, overridden from the command line, built, written back.

The keys of a setting stand at the top level, shared by all settings; each entry of `settings:` lays its
own over them. Keys may be nested or dotted.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

import yaml

from fedskip.errors import InputError
from fedskip.fields import TAGS, expand, graft, overlay, unknown_key
from fedskip.methods import Method, parse_many, text
from fedskip.spec import PYTHON, Local, Setting, StudySpec

__all__ = [
    "RECORD",
    "Local",
    "Setting",
    "StudySpec",
    "Tree",
    "apply",
    "build",
    "dump",
    "is_portable",
    "load_yaml",
]

RECORD = "record"  # what a study notes about its machine; not part of what it is, so `build` skips it

_SETTING = [f.name for f in dataclasses.fields(Setting)]
_STUDY = [f.name for f in dataclasses.fields(StudySpec) if f.name != "settings"]
_TOP = [*_STUDY, *(name for name in _SETTING if name != "name"), "settings", RECORD]


class _Loader(yaml.SafeLoader):
    """YAML 1.1 wants a dot in a number; people write 1e-3."""


_NUMBER = "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
_Loader.add_implicit_resolver(*_NUMBER)


@dataclass(frozen=True)
class Tree:
    """Nested values as written, and the place of each by its dotted path."""

    values: Mapping[str, Any]  # dotted keys are expanded
    places: Mapping[str, str] = field(default_factory=dict)  # local.lr -> study.yaml line 12

    def __post_init__(self) -> None:
        values = expand(self.values)
        for key, tag in TAGS.items():
            if isinstance(values.get(key), str):
                values[key] = {tag: values[key]}  # so that options can be laid over a bare name
        object.__setattr__(self, "values", values)

    def where(self, path: str) -> str:
        """The place of a key: its own, else that of a key inside it, else that of the level above."""
        while path and path not in self.places:
            for key, place in self.places.items():
                if key.startswith(f"{path}."):
                    return place
            path = path.rpartition(".")[0]
        return self.places.get(path, "")

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Errors inside get the place of the field they name."""
        try:
            yield
        except InputError as error:
            raise error.at(self.where(error.field)) from error.__cause__

    def over(self, other: Tree) -> Tree:
        """This tree laid over another."""
        replaced = tuple(f"{key}." for key, value in self.values.items() if not isinstance(value, Mapping))
        kept = {path: place for path, place in other.places.items() if not path.startswith(replaced)}
        return Tree(overlay(other.values, self.values), {**kept, **self.places})

    def entry(self, index: int) -> Tree:
        """One entry of `settings`, as a tree of its own."""
        path = f"settings.{index}"
        values = self.values["settings"][index]
        if not isinstance(values, Mapping):
            example = "must be a mapping such as {name: small, partition.beta: 0.1}"
            raise InputError(path, example, values).at(self.where(path))
        root = f"{path}."
        inner = {key.removeprefix(root): at for key, at in self.places.items() if key.startswith(root)}
        return Tree(values, {**inner, "": self.where(path)})


# --- reading -------------------------------------------------------------------------------------------


def load_yaml(path: str | os.PathLike[str]) -> Tree:
    """The tree of a study file. Only plain data are read: nothing in the file is ever run."""
    path = Path(path)
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        places = {"": path.name}
        values = _read(loader, root, path.name, "", places)
    except InputError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path.name} line {mark.line + 1}" if mark else path.name
        fix = "quote a method that holds commas or brackets"
        raise InputError(str(path), f"is not valid YAML: {error.problem}", fix=fix, where=where) from None
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise InputError(str(path), f"cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise InputError(str(path), "must hold the keys of a study, such as `data:` and `methods:`")
    return Tree({"name": path.stem} | values, places)


def _read(loader: yaml.SafeLoader, node: yaml.Node | None, file: str, at: str, places: dict[str, str]) -> Any:
    """The value of a node; notes the places of all that is inside it."""
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = f"{file} line {key_node.start_mark.line + 1}"
            if not isinstance(key_node, yaml.ScalarNode):
                raise InputError(at or file, "must have plain text as its keys", where=place)
            path = f"{at}{key_node.value}"
            places.setdefault(path, place)
            value = _read(loader, value_node, file, f"{path}.", places)
            try:
                graft(found, key_node.value, value, at)
            except InputError as error:
                raise error.at(place) from None
        return found
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            places[f"{at}{index}"] = f"{file} line {item.start_mark.line + 1}"
        return [_read(loader, item, file, f"{at}{index}.", places) for index, item in enumerate(node.value)]
    return None if node is None else loader.construct_object(node)  # type: ignore[no-untyped-call]


def apply(tree: Tree, assignments: Iterable[str]) -> Tree:
    """The tree with `key=value` texts laid over it; values are YAML, an empty one means left out.

    >>> dict(apply(Tree({"local": {"lr": 0.01}}), ["local.lr=0.1", "cohort=5"]).values)
    {'local': {'lr': 0.1}, 'cohort': 5}
    """
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for assignment in assignments:
        key, equals, written = assignment.partition("=")
        key, place = key.strip(), f"--set {assignment}"
        if not equals or not key:
            raise InputError("--set", "must be key=value", assignment, "write --set local.lr=0.1")
        try:
            value = yaml.load(written, _Loader)
        except (yaml.YAMLError, ValueError):
            raise InputError(key, "is not valid YAML", written, where=place) from None
        places[key] = place
        try:
            graft(values, key, value)
        except InputError as error:
            raise error.at(place) from None
    return Tree(values, places).over(tree)


# --- building ------------------------------------------------------------------------------------------


def build(tree: Tree) -> StudySpec:
    """The study that a tree describes; errors name the key and its place."""
    _check_keys(tree, _TOP)
    values = tree.values
    entries = values.get("settings")
    if not isinstance(entries, list | None):
        fix = "--set reaches only what all settings share"
        raise InputError("settings", "must be a list", entries, fix, tree.where("settings"))
    shared = Tree({key: values[key] for key in values if key in _SETTING and key != "name"}, tree.places)
    settings = []
    for entry in [tree.entry(index) for index in range(len(entries))] if entries else [Tree({})]:
        _check_keys(entry, _SETTING)
        settings.append(_setting(entry.over(shared)))
    study = {key: values[key] for key in _STUDY if values.get(key) is not None}
    with tree.blamed():
        return StudySpec(settings=tuple(settings), **study)


def _setting(tree: Tree) -> Setting:
    values = {key: value for key, value in tree.values.items() if value is not None}
    methods = values.get("methods", [])
    for index, entry in enumerate(methods if isinstance(methods, list | tuple) else [methods]):
        try:  # one by one, as here an error knows its line
            parse_many([entry])
        except InputError as error:
            raise error.at(tree.where(f"methods.{index}")) from error.__cause__
    with tree.blamed():
        return Setting(**values)


def _check_keys(tree: Tree, known: list[str]) -> None:
    for key in tree.values:
        if key not in known:
            error = unknown_key(key, known)
            if key in _STUDY:
                error = InputError(key, "holds for the whole study", fix="move it to the top level")
            raise error.at(tree.where(key))


# --- writing -------------------------------------------------------------------------------------------


def dump(spec: StudySpec) -> str:
    """YAML that builds back to an equal study, as long as the study `is_portable`."""
    style: dict[str, Any] = {
        "sort_keys": False,
        "allow_unicode": True,
        "width": 110,
        "default_flow_style": None,
    }
    return str(yaml.dump(_written(spec), Dumper=_Dumper, **style))


def is_portable(spec: StudySpec) -> bool:
    """Whether a file can hold the study: no functions, modules or data sets given as Python objects."""
    ours = all(_importable(type(method)) for s in spec.settings for method in s.methods or ())
    return ours and _is_plain(_written(spec))


def _written(spec: StudySpec) -> dict[str, Any]:
    """The study as nested plain values; what all settings share comes first."""
    settings = [_fields(setting) for setting in spec.settings]
    first = settings[0]
    shared = [k for k in first if k != "name" and all(k in s and s[k] == first[k] for s in settings)]
    study = {key: value for key, value in _fields(spec).items() if key != "settings"}
    own = [{key: value for key, value in s.items() if key not in shared} for s in settings]
    return study | {key: first[key] for key in shared} | {"settings": own}


def _fields(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not None."""
    found = {}
    for f in dataclasses.fields(instance):
        value = getattr(instance, f.name)
        if isinstance(value, Local):
            value = dataclasses.asdict(value)  # complete, nulls too: so it is read back as a `Local`
        elif f.name == "methods" and value is not None:
            value = [text(method) for method in value]
        elif isinstance(value, tuple):
            value = list(value)
        if value is not None:
            found[f.name] = value
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return type(value) in (str, bool, int, float, NoneType)


def _importable(cls: type[Method]) -> bool:
    return cls.__module__ != "__main__" and "<locals>" not in cls.__qualname__


class _Dumper(yaml.SafeDumper):
    """Plain data, and a trace of everything else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_object(dumper: _Dumper, value: Any) -> yaml.Node:
    named = value if hasattr(value, "__qualname__") else type(value)
    return dumper.represent_str(f"{PYTHON}{named.__module__}.{named.__qualname__}")


_Dumper.add_multi_representer(object, _represent_object)
_Dumper.add_implicit_resolver(*_NUMBER)  # so that a text which looks like one is quoted
