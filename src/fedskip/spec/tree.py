"""What users write, as one tree: a YAML file with its line numbers, keys from the command line or Python.

Keys may be nested or dotted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedskip.input.errors import InputError, unknown
from fedskip.input.nest import TAGS, expand, graft, overlay

NUMBER = "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")


class _Loader(yaml.SafeLoader):
    """YAML 1.1 wants a dot in a number; people write 1e-3."""


_Loader.add_implicit_resolver(*NUMBER)


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

    def narrowed(self, setting: str) -> Tree:
        """The study with only one of its settings."""
        entries = self.values.get("settings") or []
        names = [entry.get("name") if isinstance(entry, Mapping) else None for entry in entries]
        if setting not in names:
            raise unknown("setting", setting, [name for name in names if name])
        root, others = f"settings.{names.index(setting)}.", tuple(f"settings.{i}." for i in range(len(names)))
        places = {key: at for key, at in self.places.items() if not key.startswith(others)}
        places |= {
            f"settings.0.{k.removeprefix(root)}": at for k, at in self.places.items() if k.startswith(root)
        }
        narrow = {"name": f"{self.values['name']}-{setting}", "settings": [entries[names.index(setting)]]}
        return Tree({**self.values, **narrow}, places)


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


def assigned(assignments: Iterable[str]) -> Tree:
    """The tree of `key=value` texts; values are YAML, an empty one means left out.

    >>> dict(assigned(["local.lr=0.1", "cohort=5", "clients="]).values)
    {'local': {'lr': 0.1}, 'cohort': 5, 'clients': None}
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
    return Tree(values, places)
