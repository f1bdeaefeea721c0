"""Grids: a list in the place of a value stands for several settings, one for each combination.

A key that takes a list itself, such as `model.hidden`, is swept by a list of lists.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np

from fedskip.data.catalogue import CATALOGUE
from fedskip.data.partitions import KINDS
from fedskip.input.errors import InputError, require
from fedskip.input.named import is_own
from fedskip.input.nest import TAGS, flatten
from fedskip.models.making import hints_for, maker_of
from fedskip.spec.setting import KEYS, as_name
from fedskip.spec.tree import Tree

OPTIONS = {("partition", name) for deal in KINDS.values() for name in inspect.signature(deal).parameters}
OPTIONS |= {(head, tag) for head, tag in TAGS.items()} | {("partition", "file")}  # none of which is a list
# keys that hold lists themselves, or say nothing of how runs are trained
NEVER = (
    "name", "methods", "seeds", "metric", "target", "note", "of_rounds", "of_seeds", "reference", "added",
    "swept",
)  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A setting as written, and the values of the keys that are swept."""

    tree: Tree
    axes: Mapping[str, list[Any]]  # by dotted key

    @classmethod
    def of(cls, tree: Tree, begun: bool = False) -> Grid:
        """`begun`: the study was run already, so that lists of lists are values."""
        with tree.blamed():
            return cls(tree, dict(_axes(tree.values, begun)))

    def __len__(self) -> int:
        return math.prod(map(len, self.axes.values()))

    def points(self, study: str) -> Iterator[Tree]:
        """The settings, each with a name of its own: `small(lr=0.01,beta=0.5)`.

        `study`: its name, for settings that have none and whose data differ.
        """
        if not self.axes:
            yield self.tree
            return
        called = short_names(self.axes)
        texts = {key: _told_apart([text(value) for value in values]) for key, values in self.axes.items()}
        of = self._name(study)
        for chosen in itertools.product(*(range(len(values)) for values in self.axes.values())):
            at = dict(zip(self.axes, chosen, strict=True))
            inside = ",".join(f"{called[key]}={texts[key][i]}" for key, i in at.items())
            values = _copied(self.tree.values)
            for key, i in at.items():
                _put(values, key, self.axes[key][i])
            about = {"name": f"{of}({inside})", "swept": {"of": of, "keys": list(self.axes)}}
            yield Tree({**values, **about}, self.tree.places)

    def _name(self, study: str) -> str:
        """Of the setting without its values; a data set may be an object or a path."""
        values = self.tree.values
        if values.get("name") is not None:
            return str(values["name"])
        data = values.get("data")
        named = data.get("name") if isinstance(data, Mapping) else getattr(data, "name", None)
        return as_name(Path(named).stem) if isinstance(named, str) and named else study


def _axes(values: Mapping[str, Any], begun: bool) -> Iterator[tuple[str, list[Any]]]:
    """The dotted keys that have a list in the place of a value, and what it holds."""
    for key, value in flatten({key: value for key, value in values.items() if key in KEYS}).items():
        head, _, option = key.partition(".")
        found = _listed(value)
        if found is None or head in NEVER:
            continue
        if option and head in TAGS and takes_list(head, values[head].get(TAGS[head]), option):
            if begun or not any(_listed(inner) is not None for inner in found):
                continue
            rule, fix = "must be one list, or a list of lists to sweep", f"write {key}: [[32], [64, 32]]"
            require(key, all(_listed(inner) is not None for inner in found), rule, value, fix)
        require(key, len(found) > 0, "must hold at least one value to sweep", value)
        for i, inner in enumerate(found):
            if any(type(inner) is type(other) and inner == other for other in found[:i]):
                raise InputError(key, f"holds {inner!r} twice", value, "keep one of the two")
        yield key, found


def _listed(value: Any) -> list[Any] | None:
    """A list, or what Python has in its place."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple | range) else None


def takes_list(head: str, name: Any, option: str) -> bool:
    """Whether an option of the data, the partition or the model is itself a list.

    Where nobody knows, as of a file's options and of what declares neither type nor default, it is.
    """
    maker = _maker(head, str(name))
    found = inspect.signature(maker).parameters.get(option) if maker else None
    if maker is None or found is None:
        return (head, option) not in OPTIONS
    if (hint := hints_for(maker).get(option)) is None:
        return found.default in (found.empty, None) or isinstance(found.default, list | tuple)
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = tuple(get_origin(kind) or kind for kind in kinds)
    return any(isinstance(kind, type) and issubclass(kind, Collection) and kind is not str for kind in kinds)


def _maker(head: str, name: str) -> Callable[..., Any] | None:
    """The function whose arguments are the options, if there is one by that name."""
    if head == "partition":
        return KINDS.get(name)
    if head == "data":
        return CATALOGUE[name].load if name in CATALOGUE else None
    try:
        return maker_of(name)
    except InputError:  # said when it is made
        return None


def short_names(keys: Sequence[str] | Mapping[str, Any]) -> dict[str, str]:
    """How names and figures call dotted keys: by their last part, unless two of them share it.

    >>> short_names(["local.lr", "model.name", "stop.target"])
    {'local.lr': 'lr', 'model.name': 'model', 'stop.target': 'target'}
    """
    last = {}
    for key in keys:
        head, _, rest = key.partition(".")
        last[key] = head if rest == TAGS.get(head) else key.rpartition(".")[2]
    shared = {name for name in last.values() if list(last.values()).count(name) > 1}
    return {key: key if name in shared else name for key, name in last.items()}


def text(value: Any) -> str:
    """A value as part of a name.

    >>> text(0.01), text(None), text([64, 32]), text({"kind": "dirichlet", "beta": 0.1}), text("data/a.npz")
    ('0.01', 'none', '64-32', 'dirichlet-0.1', 'a')
    """
    if isinstance(value, Mapping):
        return "-".join(text(inner) for inner in value.values())
    if (inner := _listed(value)) is not None:
        return "-".join(map(text, inner))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | np.floating):
        return f"{value:.12g}"
    if isinstance(value, str):
        value = value if is_own(value) else Path(value).stem if "/" in value or Path(value).suffix else value
    elif not isinstance(value, int | np.integer):
        value = getattr(value, "name", None) or getattr(value, "__name__", None) or type(value).__name__
    return as_name(str(value))


def _told_apart(texts: Sequence[str]) -> list[str]:
    """What would be called the same is numbered."""
    return [
        one if (before := texts[:i].count(one)) == 0 else f"{one}-{before + 1}" for i, one in enumerate(texts)
    ]


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *heads, last = key.split(".")
    for head in heads:
        values = values[head]
    values[last] = value
