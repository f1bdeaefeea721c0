"""Nested values with dotted keys: expand, flatten, and lay one over another."""

from collections.abc import Mapping
from typing import Any

from fedskip.errors import InputError

DEEPEST = 50  # levels
TAGS = {"data": "name", "partition": "kind", "model": "name"}  # the key that says which one


def expand(flat: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Dotted keys as nested ones. `at`: the path of the mapping, for errors.

    >>> expand({"local.lr": 0.1, "local": {"batch": 64}})
    {'local': {'lr': 0.1, 'batch': 64}}
    """
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        graft(nested, key, value, at)
    return nested


def flatten(nested: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones.

    >>> flatten({"local": {"lr": 0.1, "batch": 64}, "cohort": 5})
    {'local.lr': 0.1, 'local.batch': 64, 'cohort': 5}
    """
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= (
            flatten(value, f"{at}{key}.") if isinstance(value, Mapping) else {f"{at}{key}": value}
        )
    return flat


def graft(tree: dict[str, Any], key: str, value: Any, at: str = "") -> None:
    """Put a value under a dotted key of a nested dict. A key that is there already is an error.

    >>> expand({"partition": "dirichlet", "partition.beta": 0.3})  # plain text is a name
    {'partition': {'kind': 'dirichlet', 'beta': 0.3}}
    """
    parts = str(key).split(".")  # in a file, too, a key is text
    if len(parts) > DEEPEST or not all(parts):
        empty = "is not a key: nothing stands before or after a dot"
        rule = "is nested too deep" if all(parts) else empty
        raise InputError(f"{at}{key}" if key else "an empty text", rule)
    head, dot, rest = str(key).partition(".")
    if dot:
        value = {rest: value}
    path = f"{at}{head}"
    if head in TAGS and head in tree:
        tree[head], value = tagged(head, tree[head]), tagged(head, value)
    if head not in tree:
        tree[head] = expand(value, f"{path}.") if isinstance(value, Mapping) else value
    elif isinstance(tree[head], dict) and isinstance(value, Mapping):
        for inner, leaf in value.items():
            graft(tree[head], inner, leaf, f"{path}.")
    else:
        raise InputError(path, "is written twice", fix="keep one of the two")


def tagged(field: str, value: Any) -> Any:
    """A name as a mapping: `iid` of a partition as `{kind: iid}`. Other values stay as they are."""
    return {TAGS[field]: value} if isinstance(value, str) else value


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`, level by level.

    Options belong to the thing they configure: if `over` has another `kind` or `name`, the options in `base`
    are dropped with the old one.

    >>> overlay({"partition": {"kind": "dirichlet", "beta": 0.5}}, {"partition": {"kind": "iid"}})
    {'partition': {'kind': 'iid'}}
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not _renamed(old, value):
            value = overlay(old, value)
        merged[key] = value
    return merged


def _renamed(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    if "kind" in old and "file" in new:  # a saved partition replaces one that is drawn
        return True
    return any(tag in new and new[tag] != old.get(tag) for tag in ("name", "kind"))
