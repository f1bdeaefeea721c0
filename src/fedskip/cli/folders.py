"""Checks folders that are named on the command line."""

from pathlib import Path

from fedskip.errors import require


def folder(text: str | None, option: str = "--out") -> Path | None:
    """The folder of an option. An empty name, such as an unset shell variable, is refused."""
    if text is None:
        return None
    require(option, bool(text.strip()), "must not be empty", text, "write . for this folder")
    require(option, "\0" not in text, "must not hold a NUL", text)
    return Path(text)
