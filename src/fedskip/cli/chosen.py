"""The study that a user means: a bundled one, a file, or what a data set has by default."""

from collections.abc import Mapping
from pathlib import Path

from fedskip.spec import Tree, bundled
from fedskip.spec.setting import KEYS

QUICKSTART = "quickstart"


def chosen(study: str | None, over: Tree) -> Tree:
    """The study that a user means.

    The quickstart is made for its data set: with another one, and no study named, what the data set has by
    default is the study.
    """
    tree = bundled.load(study or QUICKSTART)
    data = over.values.get("data")
    name = data.get("name") if isinstance(data, Mapping) else None
    if study is None and name not in (None, tree.values["data"]["name"]):
        return over.over(Tree({"name": Path(str(name)).stem}))
    return overridden(tree, over)


def overridden(tree: Tree, over: Tree) -> Tree:
    """A study with the command line laid over it.

    It beats what single settings say, too: otherwise a key that they all set for themselves would be lost
    without a word. Only references keep what is theirs.
    """
    own = Tree({key: value for key, value in over.values.items() if key in KEYS and key != "name"})
    entries, places = tree.values.get("settings"), dict(tree.places)
    if isinstance(entries, list):
        entries = list(entries)
        for index, entry in enumerate(entries):
            if isinstance(entry, Mapping) and not entry.get("reference"):
                entries[index] = own.over(Tree(entry)).values
                places |= {f"settings.{index}.{path}": place for path, place in over.places.items()}
    return over.over(Tree({**tree.values, "settings": entries}, places))
