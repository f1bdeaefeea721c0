"""The study that a user means: a bundled one, a file, or what a data set has by default."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedskip.input.errors import InputError, nearest, require, unknown
from fedskip.input.nest import TAGS, flatten, tagged
from fedskip.spec import Tree, bundled
from fedskip.spec.setting import KEYS


def chosen(study: str | None, over: Tree, scale: float | None = None) -> Tree:
    """The study that a user means.

    The quickstart is made for its data set: with another one, and no study named, what the data set has by
    default is the study. `scale`: so much of the rounds of every setting.
    """
    if study is not None:
        refuse_unknown(study)
    tree = bundled.load(bundled.QUICKSTART if study is None else study)
    if study and study.partition("/")[0] in bundled.papers():
        tree = marked(tree, over.values, scale)
    elif scale is not None:
        raise InputError("--scale", "is for the paper's studies", scale, "set --rounds")
    data = over.values.get("data")
    name = data.get("name") if isinstance(data, Mapping) else None
    if study is None and name not in (None, tree.values["data"]["name"]):
        return over.over(Tree({"name": Path(str(name)).stem}))
    return overridden(tree, over)


def refuse_unknown(study: str) -> None:
    """Refuse a name that is none, with the nearest of all that can be run."""
    from fedskip.data.catalogue import CATALOGUE
    from fedskip.paper.columns import columns, settings
    from fedskip.paper.computed import COMPUTED

    name, inner = study.partition("/")[::2]
    known = study in bundled.names() or (inner and name in bundled.names())
    if known or Path(study).exists() or Path(study).suffix in (".yaml", ".yml"):
        return
    if inner and name in COMPUTED:
        rule = f"is not known: {name} is computed, and has no settings"
        raise InputError("study", rule, study, f"did you mean {name!r}?")
    if study in CATALOGUE:
        tables = [name for name in columns() if columns()[name].draft.keys["data"]["name"] == study]
        fix = f"run one of {', '.join(tables)}; or any study with --set data.name={study}"
        raise InputError("study", "is a data set, and no study", study, fix)
    names = [*bundled.names(), *COMPUTED]
    near = nearest(study, [*names, *settings()], 0.7 if inner else 0.5)
    if near or not inner:  # else it may be meant as a path
        raise unknown("study", study, [near] if near else names)


def marked(tree: Tree, given: Mapping[str, Any], scale: float | None) -> Tree:
    """One of the paper's studies with fewer rounds or seeds, or changed, which its outputs will say."""
    if scale is not None:
        rounds, rule = given.get("rounds"), "must be above 0 and at most 1"
        require("--scale", 0 < scale <= 1, rule, scale, "0.1 is a tenth of the rounds")
        require("--scale", rounds is None, "cannot be given with --rounds", scale, "give one of the two")
    entries = []
    for entry in tree.values["settings"]:
        own = {**tree.values, **entry}
        fewer = given.get("rounds") if scale is None else math.ceil(scale * own["rounds"])
        less = {"rounds": fewer, "seeds": given.get("seeds")}
        less = {key: value for key, value in less.items() if _count(value) < _count(own[key])}
        # of what: one may be reduced as it is
        of = {f"of_{key}": own.get(f"of_{key}", _count(own[key])) for key in less}
        said = [*filter(None, [own.get("note")]), *_changed(own, given)]
        entries.append({**entry, **less, **of, **({"note": "; ".join(said)} if said else {})})
    return Tree({**tree.values, "settings": entries}, tree.places)


def _changed(own: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """What makes a setting other than the paper's, in words."""
    from fedskip.paper.columns import FREE, defaults

    own = defaults(tagged("data", own["data"])["name"]) | {**own}
    before, now = (
        flatten({key: tagged(key, value) if key in TAGS else value for key, value in some.items()})
        for some in (own, {key: given[key] for key in given if key in KEYS and key not in FREE})
    )
    other = [f"{key}={value}" for key, value in now.items() if before.get(key) != value]
    return [f"not the paper's: {', '.join(other)}"] if other else []


def _count(value: Any) -> float:
    """So many rounds or seeds, which may be listed; what is neither is refused where it is read."""
    if isinstance(value, list | tuple):
        return len(value)
    return value if isinstance(value, int) else math.inf


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
