"""The study that a user means: a bundled one, a file, or what a data set has by default."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedskip.input.errors import InputError, require
from fedskip.input.nest import flatten
from fedskip.spec import Tree, bundled
from fedskip.spec.setting import KEYS


def chosen(study: str | None, over: Tree, scale: float | None = None) -> Tree:
    """The study that a user means.

    The quickstart is made for its data set: with another one, and no study named, what the data set has by
    default is the study. `scale`: so much of the rounds of every setting.
    """
    tree = bundled.load(bundled.QUICKSTART if study is None else study)
    if study and study.partition("/")[0] in bundled.papers():
        tree = marked(tree, over.values.get("rounds"), scale)
    elif scale is not None:
        raise InputError("--scale", "is for the paper's studies", scale, "set --rounds")
    data = over.values.get("data")
    name = data.get("name") if isinstance(data, Mapping) else None
    if study is None and name not in (None, tree.values["data"]["name"]):
        return over.over(Tree({"name": Path(str(name)).stem}))
    return overridden(tree, over)


def marked(tree: Tree, rounds: Any, scale: float | None) -> Tree:
    """One of the paper's studies with fewer rounds, which its outputs will say."""
    if scale is not None:
        require(
            "--scale", 0 < scale <= 1, "must be above 0 and at most 1", scale, "0.1 is a tenth of the rounds"
        )
        require("--scale", rounds is None, "cannot be given with --rounds", scale, "give one of the two")
    entries = []
    for entry in tree.values["settings"]:
        whole = entry.get("rounds", tree.values.get("rounds"))
        fewer = rounds if scale is None else math.ceil(scale * whole)
        less = isinstance(fewer, int) and fewer < whole
        of = entry.get("of_rounds", tree.values.get("of_rounds", whole))  # one may be reduced as it is
        entries.append({**entry, "rounds": fewer, "of_rounds": of} if less else entry)
    return Tree({**tree.values, "settings": entries}, tree.places)


def overridden(tree: Tree, over: Tree) -> Tree:
    """A study with the command line laid over it.

    It beats what single settings say, too: otherwise a key that they all set for themselves would be lost
    without a word. Only references keep what is theirs; in a shorter study they are shorter, too.
    """
    own = Tree({key: value for key, value in over.values.items() if key in KEYS and key != "name"})
    if {"methods", "seeds"} & own.values.keys():  # of a study that was extended: these and no others
        own, over = (Tree({**one.values, "added": None}, one.places) for one in (own, over))
    entries, places = tree.values.get("settings"), dict(tree.places)
    if isinstance(entries, list):
        entries = list(entries)
        for index, entry in enumerate(entries):
            if isinstance(entry, Mapping) and not entry.get("reference"):
                _refuse_swept(entry, own)
                entries[index] = own.over(Tree(entry)).values
                places |= {f"settings.{index}.{path}": place for path, place in over.places.items()}
            elif isinstance(entry, Mapping):
                entries[index] = _in_proportion(entry, tree.values.get("rounds"), own.values.get("rounds"))
    return over.over(Tree({**tree.values, "settings": entries}, places))


def _refuse_swept(entry: Mapping[str, Any], own: Tree) -> None:
    """Refuse to set what the points of a sweep differ in: they would be called by what they are not."""
    given = flatten(own.values)
    for key in (entry.get("swept") or {}).get("keys", ()):
        rule = f"is swept, and {entry.get('name')} has a value of its own"
        require(key, key not in given, rule, given.get(key), "choose points of the sweep with --only")


def _in_proportion(entry: Mapping[str, Any], before: Any, now: Any) -> Mapping[str, Any]:
    """A reference with so much fewer rounds as the study has."""
    own = entry.get("rounds")
    if not all(type(rounds) is int and rounds > 0 for rounds in (own, before, now)) or now >= before:
        return entry
    return {**entry, "rounds": math.ceil(own * now / before)}
