"""Paths in a study file are relative to the file's folder, so that the folder can be moved.

On the command line and in Python, paths are relative to the working folder. A study's own study.yaml
is relative to where it lies. Absolute paths, and paths that begin with ~, stay as they were written.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedskip.data.catalogue import is_file
from fedskip.data.tables import is_table

Move = Callable[[str], str]


def moved(study: Mapping[str, Any], move: Move) -> dict[str, Any]:
    """A study, or a setting, with every path moved. Keys must be nested, not dotted."""
    values = dict(study)
    for key, move_inside in {"data": _data, "partition": _partition, "init": _paths}.items():
        if key in values:
            values[key] = move_inside(values[key], move)
    if isinstance(values.get("settings"), list):
        values["settings"] = [
            moved(entry, move) if isinstance(entry, Mapping) else entry
            for entry in values["settings"]
        ]
    return values


def _data(value: Any, move: Move) -> Any:
    if not isinstance(value, Mapping):
        return _paths(value, move, is_file)
    tests = {"name": is_file, "test": is_table}  # `test` may also be the name of a column
    return {k: _paths(inner, move, tests[k]) if k in tests else inner for k, inner in value.items()}


def _partition(value: Any, move: Move) -> Any:
    if not isinstance(value, Mapping) or "file" not in value:
        return value
    return {**value, "file": _paths(value["file"], move)}


def _paths(value: Any, move: Move, is_path: Callable[[str], bool] = bool) -> Any:
    """A path, or each path of a list, moved. Other values stay as they are."""
    if isinstance(value, list):
        return [_paths(inner, move, is_path) for inner in value]
    relative = isinstance(value, str) and is_path(value) and not _is_fixed(value)
    return move(value) if relative else value


def _is_fixed(path: str) -> bool:
    return os.path.isabs(path) or path.startswith("~") or "\0" in path


def read_in(folder: Path) -> Move:
    """Makes a path in a file of this folder relative to the working folder.

    A path that exists only in the working folder stays as it is.
    """

    def move(path: str) -> str:
        there = os.path.join(folder, path)
        only_here = not os.path.exists(there) and os.path.exists(path)
        if os.path.realpath(folder) == os.getcwd() or only_here:
            return path
        simple = os.path.relpath(there)  # which is wrong where a folder is a link
        if os.path.exists(simple) == os.path.exists(there):
            return simple
        return os.path.relpath(os.path.realpath(there))

    return move


def written_in(folder: Path) -> Move:
    """Makes a path of the working folder relative to this folder."""

    def move(path: str) -> str:
        parent, name = os.path.split(path)
        absolute = os.path.join(os.path.realpath(parent), name)
        try:
            relative = os.path.relpath(absolute, os.path.realpath(folder))
        except ValueError:  # Windows, on another drive
            return os.path.abspath(path)
        return relative.replace(os.sep, "/")

    return move
