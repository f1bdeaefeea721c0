"""The study that a command line asks for: a bundled one, a file or a data set's defaults, with its options."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedskip.config import RECORD, Places, Tree, bundled
from fedskip.config.setting import KEYS, Setting
from fedskip.config.study import TOP_LEVEL, axes_of, check_keys
from fedskip.config.tree import TAGS, flatten, tagged
from fedskip.errors import InputError, nearest, require, unknown

# keys that say how much is run or measured, not what
FREE = {
    "name", "methods", "seeds", "rounds", "note", "slot_accuracy",
    "client_accuracy", "target", "reference",
}  # fmt: skip


def requested_study(
    study: str | None, over: Tree, scale: float | None = None, *, trust: bool = False
) -> Tree:
    """The study named `study`, by default the quickstart, with the options `over` laid over it.

    The quickstart fits only its own data set: where `over` names another one, the study is that data set's
    defaults. `scale` is the share of every setting's rounds to train. `trust`: a file may name code.
    """
    if study is not None:
        refuse_unknown(study)
    tree = bundled.load(bundled.QUICKSTART if study is None else study, trust=trust)
    check_keys(over, TOP_LEVEL)  # not `record`, which a study file may have
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
    """Refuse the name of no study, and suggest the nearest of all that can be run."""
    from fedskip.data.catalogue import CATALOGUE

    name, inner = study.partition("/")[::2]
    known = study in bundled.names() or (inner and name in bundled.names())
    if known or Path(study).exists() or Path(study).suffix in (".yaml", ".yml"):
        return
    if study in CATALOGUE:
        fix = f"run any study with --set data.name={study}"
        raise InputError("study", "is a data set, and no study", study, fix)
    names = bundled.names()
    near = nearest(study, [*names, *bundled.settings()], 0.7 if inner else 0.5)
    if near or not inner:  # else it may be meant as a path
        raise unknown("study", study, [near] if near else names)


def marked(tree: Tree, given: Mapping[str, Any], scale: float | None) -> Tree:
    """One of the paper's studies with fewer rounds or seeds, or other changes, which its outputs mention."""
    if scale is not None:
        rounds, rule = given.get("rounds"), "must be above 0 and at most 1"
        require("--scale", 0 < scale <= 1, rule, scale, "0.1 is a tenth of the rounds")
        rule, fix = "cannot be given with --rounds", "give one of the two"
        require("--scale", rounds is None, rule, scale, fix)
    entries = []
    for entry in tree.values["settings"]:
        own = {**tree.values, **entry}
        fewer = given.get("rounds") if scale is None else math.ceil(scale * own["rounds"])
        less = {"rounds": fewer, "seeds": given.get("seeds")}
        less = {key: value for key, value in less.items() if _count(value) < _count(own[key])}
        # it may be a smaller version already
        record = {f"full_{key}": _count(own[key]) for key in less} | (entry.get(RECORD) or {})
        notes = [*filter(None, [own.get("note")]), *_changed(own, given)]
        more = {"note": "; ".join(notes)} if notes else {}
        entries.append({**entry, **less, **more, **({RECORD: record} if record else {})})
    return dataclasses.replace(tree, values={**tree.values, "settings": entries})


def _changed(own: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """How a setting differs from the paper's."""
    from fedskip.data.shakespeare import LOOKED_AT

    name = tagged("data", own["data"])["name"]
    defaults = {one.name: one.default for one in dataclasses.fields(Setting)}
    defaults["eval_samples"] = LOOKED_AT if name == "shakespeare" else None
    own = defaults | {**own}
    before, now = (
        flatten({key: tagged(key, value) if key in TAGS else value for key, value in some.items()})
        for some in (own, {key: given[key] for key in given if key in KEYS and key not in FREE})
    )
    other = [f"{key}={value}" for key, value in now.items() if before.get(key) != value]
    return [f"not the paper's: {', '.join(other)}"] if other else []


def _count(value: Any) -> float:
    """A number of rounds or seeds, or of those in a list. Anything else is refused where it is read."""
    if isinstance(value, list | tuple):
        return len(value)
    return value if isinstance(value, int) else math.inf


def overridden(tree: Tree, over: Tree) -> Tree:
    """A study with the command line laid over it.

    The command line also beats the keys of single settings: otherwise it would have no effect on a key that
    all settings set. References keep their keys, and what the command line sweeps; in a shorter study they
    are shorter, too.
    """
    own = Tree({key: value for key, value in over.values.items() if key in KEYS and key != "name"})
    other_runs = {"methods", "seeds"} & own.values.keys()
    entries, places = tree.values.get("settings"), Places(tree.places)
    before, given = flatten(tree.values), flatten(own.values)
    with over.places.in_errors():
        swept = [key for key, _ in axes_of(over.over(tree).values)]
    kept = {key: before.get(key) for key in swept if key in given}  # by references
    if isinstance(entries, list):
        entries = list(entries)
        for index, entry in enumerate(entries):
            if isinstance(entry, Mapping) and not entry.get("reference"):
                _refuse_swept(entry, own)
                values = own.over(Tree(entry)).values
                if other_runs and RECORD in values:  # of a study that was extended: no others
                    values = {**values, RECORD: {**values[RECORD], "added": None}}
                entries[index] = values
                places |= {f"settings.{index}.{path}": place for path, place in over.places.items()}
            elif isinstance(entry, Mapping):
                shorter = _in_proportion(entry, tree.values.get("rounds"), own.values.get("rounds"))
                entries[index] = Tree(shorter).over(Tree(kept)).values
    values = {**tree.values, "settings": entries}
    return over.over(dataclasses.replace(tree, values=values, places=places))


def _refuse_swept(entry: Mapping[str, Any], own: Tree) -> None:
    """Refuse to set a key that is swept: the settings of a sweep are named after its values."""
    given = flatten(own.values)
    for key in ((entry.get(RECORD) or {}).get("sweep") or {}).get("keys", ()):
        rule = f"is swept, and {entry.get('name')} has a value of its own"
        fix = "choose points of the sweep with --only"
        require(key, key not in given, rule, given.get(key), fix)


def _in_proportion(entry: Mapping[str, Any], before: Any, now: Any) -> Mapping[str, Any]:
    """A reference, shortened by the same share as the study."""
    own = entry.get("rounds")
    counts = all(type(rounds) is int and rounds > 0 for rounds in (own, before, now))
    return {**entry, "rounds": math.ceil(own * now / before)} if counts and now < before else entry
