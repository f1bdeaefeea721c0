"""Files that a study names: a path in a file is relative to that file's folder, so that it can be moved.

On the command line and in Python, a path is relative to the folder where one is. A study's own study.yaml
names files from where it lies; absolute paths, and those from ~, stay as they were written.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedskip.data.catalogue import is_file
from fedskip.data.tables import is_table

Move = Callable[[str], str]


def moved(study: Mapping[str, Any], move: Move) -> dict[str, Any]:
    """A study, or a setting, with every path of a file moved; keys are nested."""
    found = dict(study)
    for key, move_inside in {"data": _data, "partition": _partition, "init": _any}.items():
        if key in found:
            found[key] = move_inside(found[key], move)
    if isinstance(found.get("settings"), list):
        found["settings"] = [
            moved(entry, move) if isinstance(entry, Mapping) else entry for entry in found["settings"]
        ]
    return found


def _data(value: Any, move: Move) -> Any:
    if not isinstance(value, Mapping):
        return _any(value, move, is_file)
    parts = {"name": is_file, "test": is_table}  # another option of that name is a column
    return {key: _any(inner, move, parts[key]) if key in parts else inner for key, inner in value.items()}


def _partition(value: Any, move: Move) -> Any:
    if not isinstance(value, Mapping) or "file" not in value:
        return value
    return {**value, "file": _any(value["file"], move)}


def _any(value: Any, move: Move, names_a_file: Callable[[str], bool] = bool) -> Any:
    """A path, or each of a list, moved; whatever else it is stays."""
    if isinstance(value, list):
        return [_any(one, move, names_a_file) for one in value]
    return move(value) if isinstance(value, str) and names_a_file(value) and not _fixed(value) else value


def _fixed(path: str) -> bool:
    return os.path.isabs(path) or path.startswith("~") or "\0" in path


def read_in(folder: Path) -> Move:
    """What a path in a file of this folder is from here. One that is only here is meant as it stands."""

    def move(path: str) -> str:
        there = os.path.join(folder, path)
        if os.path.realpath(folder) == os.getcwd() or (not os.path.exists(there) and os.path.exists(path)):
            return path
        neat = os.path.relpath(there)  # which goes astray where a folder is a link
        return (
            neat
            if os.path.exists(neat) == os.path.exists(there)
            else os.path.relpath(os.path.realpath(there))
        )

    return move


def written_in(folder: Path) -> Move:
    """How a file of this folder calls what a path is here."""

    def move(path: str) -> str:
        lies, name = os.path.split(path)
        try:
            found = os.path.relpath(os.path.join(os.path.realpath(lies), name), os.path.realpath(folder))
        except ValueError:  # Windows, on another drive
            return os.path.abspath(path)
        return found.replace(os.sep, "/")

    return move
