"""What users write, as a tree of nested values that knows where each key was written.

A tree comes from a YAML file (with line numbers), from `--set` on the command line, or from Python. Keys
may be nested or dotted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedskip.config.paths import moved, read_in
from fedskip.errors import InputError, option, unknown
from fedskip.parsing.dotted_keys import TAGS, expand, graft, overlay
from fedskip.parsing.yaml_text import PLAIN, Loader, compose, construct, read_text


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
    """Nested values as they were written."""

    values: Mapping[str, Any]  # dotted keys are expanded
    places: Places = field(default_factory=Places)

    def __post_init__(self) -> None:
        values = expand(self.values)
        for key, tag in TAGS.items():
            if isinstance(values.get(key), str):
                values[key] = {tag: values[key]}  # so that options can be laid over a bare name
        object.__setattr__(self, "values", values)

    def over(self, other: Tree) -> Tree:
        """This tree laid over another: where both have a key, this one's value counts."""
        replaced = tuple(f"{key}." for key, v in self.values.items() if not isinstance(v, Mapping))
        kept = {key: at for key, at in other.places.items() if not key.startswith(replaced)}
        return Tree(overlay(other.values, self.values), Places({**kept, **self.places}))

    def entries(self) -> tuple[Tree, list[Tree]]:
        """What stands beside `settings`, and each entry of `settings` as a tree of its own."""
        entries = self.values.get("settings")
        if not isinstance(entries, list | None):
            fix = "set what all of them share, or write each of them out in a file"
            raise InputError("settings", "must be a list", entries, fix, self.places.of("settings"))
        beside = {key: value for key, value in self.values.items() if key != "settings"}
        outside, whole = Places(), self.places.get("settings", "")
        inside = [Places({"": whole}) for _ in entries or ()]
        for key, place in self.places.items():
            top, _, rest = key.partition(".")
            index, _, inner = rest.partition(".")
            if top != "settings":
                outside[key] = place
            elif index.isdecimal() and int(index) < len(inside):
                inside[int(index)][inner] = place
        trees = []
        for number, (values, places) in enumerate(zip(entries or (), inside, strict=True)):
            if not isinstance(values, Mapping):
                example = "must be a mapping such as {name: small, partition.beta: 0.1}"
                raise InputError(f"settings.{number}", example, values, where=places[""])
            trees.append(Tree(values, places))
        return Tree(beside, outside), trees

    def narrowed(self, setting: str) -> Tree:
        """The study with only one of its settings."""
        entries = self.values.get("settings") or []
        names = [entry.get("name") if isinstance(entry, Mapping) else None for entry in entries]
        if setting not in names:
            raise unknown("setting", setting, [name for name in names if name])
        beside, trees = self.entries()
        entry = trees[names.index(setting)]
        places = {f"settings.0.{key}".removesuffix("."): at for key, at in entry.places.items()}
        values = {"name": f"{self.values['name']}-{setting}", "settings": [entry.values]}
        return Tree({**beside.values, **values}, Places({**beside.places, **places}))


def load_yaml(path: str | os.PathLike[str]) -> Tree:
    """The tree of a study file. Paths in it are made relative to the working folder.

    Only plain data are read: nothing in the file is ever run.
    """
    path = Path(path)
    loader, root = compose(read_text(path), str(path))
    places = Places({"": path.name})
    values = _Reader(loader, places, path.name).read(root)
    if not isinstance(values, dict):
        raise InputError(str(path), "must hold the keys of a study, such as `data:` and `methods:`")
    return Tree({"name": path.stem} | moved(values, read_in(path.parent)), places)


@dataclass(frozen=True)
class _Reader:
    """Gives the values of YAML nodes, and notes the places of all keys inside them."""

    loader: Loader
    places: Places
    file: str = ""
    place: str = ""  # of everything, where it does not come from a file

    def read(self, node: yaml.Node | None, at: str = "") -> Any:
        """`at`: the path of what is inside the node; it ends with a dot."""
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
        values: dict[str, Any] = {}
        for key, value in node.value:
            with placed(self._place(key)):
                if not isinstance(key, yaml.ScalarNode):
                    raise InputError(field, "must have plain text as its keys")
                if key.value == "<<":
                    fix = "write them out; what settings share stands above `settings`"
                    raise InputError(field, "must not merge keys with <<", fix=fix)
                self.places.setdefault(f"{at}{key.value}", self._place(key))
                graft(values, key.value, self.read(value, f"{at}{key.value}."), at)
        return values

    def _place(self, node: yaml.Node) -> str:
        return self.place or f"{self.file} line {node.start_mark.line + 1}"


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Inside, errors that have no place get this one."""
    try:
        yield
    except InputError as error:
        raise error.at(error.where or where) from error.__cause__


def assigned(assignments: Iterable[str]) -> Tree:
    """The tree of `key=value` texts. Values are YAML; an empty one leaves the key out.

    >>> dict(assigned(["local.lr=0.1", "cohort=5", "clients="]).values)
    {'local': {'lr': 0.1}, 'cohort': 5, 'clients': None}
    """
    values: dict[str, Any] = {}
    places = Places()
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
