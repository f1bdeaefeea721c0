"""What users write, as one tree: a YAML file with its line numbers, keys from the command line or Python.

Keys may be nested or dotted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedskip.input.errors import InputError, option, unknown
from fedskip.input.nest import TAGS, expand, graft, overlay
from fedskip.input.plain import PLAIN, Yaml11, compose, construct, read_text
from fedskip.spec.paths import moved, read_in


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

    def entries(self) -> tuple[Tree, list[Tree]]:
        """What stands beside `settings`, and each of its entries as a tree of its own."""
        written = self.values.get("settings")
        if not isinstance(written, list | None):
            fix = "set what all of them share, or write each of them out in a file"
            raise InputError("settings", "must be a list", written, fix, self.where("settings"))
        places: list[dict[str, str]] = [{"": self.places.get("settings", "")} for _ in written or ()]
        shared: dict[str, str] = {}
        for path, place in self.places.items():
            top, _, rest = path.partition(".")
            index, _, inner = rest.partition(".")
            if top == "settings" and index.isdecimal() and int(index) < len(places):
                places[int(index)][inner] = place
            elif top != "settings":
                shared[path] = place
        beside = {key: value for key, value in self.values.items() if key != "settings"}
        return Tree(beside, shared), list(map(_entry, range(len(places)), written or (), places))

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


def _entry(index: int, values: Any, places: Mapping[str, str]) -> Tree:
    if not isinstance(values, Mapping):
        example = "must be a mapping such as {name: small, partition.beta: 0.1}"
        raise InputError(f"settings.{index}", example, values, where=places[""])
    return Tree(values, places)


def load_yaml(path: str | os.PathLike[str]) -> Tree:
    """The tree of a study file, its paths as they are from here.

    Only plain data are read: nothing in the file is ever run.
    """
    path = Path(path)
    loader, root = compose(read_text(path), str(path))
    places = {"": path.name}
    values = _Reader(loader, places, path.name).read(root)
    if not isinstance(values, dict):
        raise InputError(str(path), "must hold the keys of a study, such as `data:` and `methods:`")
    return Tree({"name": path.stem} | moved(values, read_in(path.parent)), places)


@dataclass(frozen=True)
class _Reader:
    """Gives the values of nodes, and notes the places of all that is inside them."""

    loader: Yaml11
    places: dict[str, str]
    file: str = ""
    place: str = ""  # of all that is not in a file

    def read(self, node: yaml.Node | None, at: str = "") -> Any:
        """`at`: the path of what is inside it, which ends with a dot."""
        field = at.removesuffix(".") or self.file
        if node is None:
            return None
        with placed(self._place(node)):
            if not isinstance(node, yaml.CollectionNode) or node.tag not in PLAIN:
                return construct(self.loader, node, field)
            if isinstance(node, yaml.SequenceNode):
                for index, item in enumerate(node.value):
                    self.places[f"{at}{index}"] = self._place(item)
                return [self.read(item, f"{at}{index}.") for index, item in enumerate(node.value)]
        found: dict[str, Any] = {}
        for key, value in node.value:
            with placed(self._place(key)):
                if not isinstance(key, yaml.ScalarNode):
                    raise InputError(field, "must have plain text as its keys")
                if key.value == "<<":
                    fix = "write them out; what settings share stands above `settings`"
                    raise InputError(field, "must not merge keys with <<", fix=fix)
                self.places.setdefault(f"{at}{key.value}", self._place(key))
                graft(found, key.value, self.read(value, f"{at}{key.value}."), at)
        return found

    def _place(self, node: yaml.Node) -> str:
        return self.place or f"{self.file} line {node.start_mark.line + 1}"


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Errors inside that have no place get this one."""
    try:
        yield
    except InputError as error:
        raise error.at(error.where or where) from error.__cause__


def assigned(assignments: Iterable[str]) -> Tree:
    """The tree of `key=value` texts; values are YAML, an empty one means left out.

    >>> dict(assigned(["local.lr=0.1", "cohort=5", "clients="]).values)
    {'local': {'lr': 0.1}, 'cohort': 5, 'clients': None}
    """
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for assignment in assignments:
        key, equals, written = assignment.partition("=")
        key, place = key.strip(), f"{option('set')} {assignment}"
        if not equals or not key:
            raise InputError(option("set"), "must be key=value", assignment, "such as local.lr=0.1")
        places[key] = place
        with placed(place):
            loader, node = compose(written, key, place)
            graft(values, key, _Reader(loader, places, key, place).read(node, f"{key}."))
    return Tree(values, places)
