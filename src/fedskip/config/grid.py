"""Grids: a list in the place of a value stands for several settings, one for each value.

A key that takes a list itself, such as `model.hidden`, is swept by a list of lists.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np

from fedskip.config.fields import as_name
from fedskip.config.record import RECORD
from fedskip.config.setting import KEYS
from fedskip.config.tree import Tree
from fedskip.data.catalogue import CATALOGUE
from fedskip.data.partitions import KINDS
from fedskip.errors import InputError, require
from fedskip.models.construction import hints_for, maker_of
from fedskip.parsing.dotted_keys import TAGS, flatten
from fedskip.parsing.user_code import is_own

# options that all hold one value: of every partition, and what names data, partitions and models
OPTIONS = {("partition", name) for kind in KINDS.values() for name in signature(kind).parameters}
OPTIONS |= {*TAGS.items(), ("partition", "file")}
# keys that hold lists themselves, or do not change how runs are trained
NEVER = ("name", "methods", "seeds", "metric", "target", "note", "reference")


@dataclass(frozen=True)
class Grid:
    """A setting as written, and the values of the keys that are swept."""

    tree: Tree
    axes: Mapping[str, list[Any]]  # by dotted key

    @classmethod
    def of(cls, tree: Tree, begun: bool = False) -> Grid:
        """Find the keys that have a list in the place of a value.

        Args:
            begun: the study was run already, so that lists of lists are values.
        """
        with tree.places.in_errors():
            return cls(tree, dict(_axes(tree.values, begun)))

    def __len__(self) -> int:
        return math.prod(map(len, self.axes.values()))

    def points(self, study: str) -> Iterator[Tree]:
        """The settings of the grid, each with a name such as `small(lr=0.01,beta=0.5)`.

        Args:
            study: its name, for settings that have none and whose data differ.
        """
        if not self.axes:
            yield self.tree
            return
        shorts = short_names(self.axes)
        texts = {key: _numbered(list(map(text, values))) for key, values in self.axes.items()}
        name = self._name(study)
        record = self.tree.values.get(RECORD) or {}
        for indices in itertools.product(*(range(len(values)) for values in self.axes.values())):
            point = dict(zip(self.axes, indices, strict=True))
            inside = ",".join(f"{shorts[key]}={texts[key][i]}" for key, i in point.items())
            values = _copied(self.tree.values)
            for key, i in point.items():
                _put(values, key, self.axes[key][i])
            values["name"] = f"{name}({inside})"
            values[RECORD] = {**record, "sweep": {"of": name, "keys": list(self.axes)}}
            yield Tree(values, self.tree.places)

    def _name(self, study: str) -> str:
        """The name of the setting without its values. A data set may be an object or a path."""
        values = self.tree.values
        if values.get("name") is not None:
            return str(values["name"])
        data = values.get("data")
        name = data.get("name") if isinstance(data, Mapping) else getattr(data, "name", None)
        return as_name(Path(name).stem) if isinstance(name, str) and name else study


def _axes(values: Mapping[str, Any], begun: bool) -> Iterator[tuple[str, list[Any]]]:
    """The dotted keys that have a list in the place of a value, and the values in it."""
    for key, value in flatten({key: value for key, value in values.items() if key in KEYS}).items():
        head, _, option = key.partition(".")
        swept = _as_list(value)
        if swept is None or head in NEVER:
            continue
        if option and head in TAGS and takes_list(head, values[head].get(TAGS[head]), option):
            nested = [_as_list(inner) is not None for inner in swept]
            if begun or not any(nested):
                continue
            rule = "must be one list, or a list of lists to sweep"
            require(key, all(nested), rule, value, f"write {key}: [[32], [64, 32]]")
        require(key, len(swept) > 0, "must hold at least one value to sweep", value)
        for i, inner in enumerate(swept):
            if any(type(inner) is type(other) and inner == other for other in swept[:i]):
                raise InputError(key, f"holds {inner!r} twice", value, "keep one of the two")
        yield key, swept


def _as_list(value: Any) -> list[Any] | None:
    """The values of a list, or of what Python has in its place."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple | range) else None


def takes_list(head: str, name: Any, option: str) -> bool:
    """Whether an option of the data, the partition or the model is itself a list.

    An option is taken for a list where that is not known: options of files, and those that declare neither
    a type nor a default.
    """
    maker = _maker(head, str(name))
    parameter = signature(maker).parameters.get(option) if maker else None
    if maker is None or parameter is None:
        return (head, option) not in OPTIONS
    if (hint := hints_for(maker).get(option)) is None:
        empty = parameter.default in (parameter.empty, None)
        return empty or isinstance(parameter.default, list | tuple)
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = tuple(get_origin(kind) or kind for kind in kinds)
    return any(
        isinstance(kind, type) and issubclass(kind, Collection) and kind is not str
        for kind in kinds
    )


def _maker(head: str, name: str) -> Callable[..., Any] | None:
    """The function whose arguments are the options, if there is one by that name."""
    if head == "partition":
        return KINDS.get(name)
    if head == "data":
        return CATALOGUE[name].load if name in CATALOGUE else None
    try:
        return maker_of(name)
    except InputError:  # it is refused when the model is made
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
    counts = Counter(last.values())
    return {key: key if counts[name] > 1 else name for key, name in last.items()}


def text(value: Any) -> str:
    """A value as part of a name.

    >>> text(0.01), text(None), text([64, 32]), text({"kind": "dirichlet", "beta": 0.1}), text("data/a.npz")
    ('0.01', 'none', '64-32', 'dirichlet-0.1', 'a')
    """
    if isinstance(value, Mapping):
        return "-".join(text(inner) for inner in value.values())
    if (inner := _as_list(value)) is not None:
        return "-".join(map(text, inner))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | np.floating):
        return f"{value:.12g}"
    if isinstance(value, str):
        is_path = not is_own(value) and ("/" in value or Path(value).suffix)
        value = Path(value).stem if is_path else value
    elif not isinstance(value, int | np.integer):
        names = (getattr(value, name, None) for name in ("name", "__name__"))
        value = next(filter(None, names), type(value).__name__)
    return as_name(str(value))


def _numbered(texts: Sequence[str]) -> list[str]:
    """Texts that are the same get a number: `w`, `w-2`."""
    before = [texts[:i].count(words) for i, words in enumerate(texts)]
    return [f"{words}-{n + 1}" if n else words for words, n in zip(texts, before, strict=True)]


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _copied(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *heads, last = key.split(".")
    for head in heads:
        values = values[head]
    values[last] = value
