"""Folders that a command line names."""

from collections.abc import Sequence
from pathlib import Path

from fedskip.input.errors import require


def folder(text: str | None, option: str = "--out") -> Path | None:
    """The folder that was named; an empty name, as of an unset variable, would be where one happens to be."""
    require(option, text is None or bool(text.strip()), "must not be empty", text, "write . for this folder")
    require(option, "\0" not in (text or ""), "must not hold a NUL", text)
    return None if text is None else Path(text)


def folders(names: Sequence[str] | None, option: str) -> list[Path] | None:
    """Those that were named, if any."""
    return [path for path in (folder(name, option) for name in names or ()) if path] or None
