"""The one error that users see. It names the field, the rule, the value and the way out.

A way out may be an option, which is a flag on the command line and an argument in Python. `option`, `flag`,
`how_to_resume` and `either` put both forms into a text; `render` picks the one for the reader.
"""

from __future__ import annotations

import os
import pickle
import re
import shlex
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

_EITHER = re.compile("\0([^\0]*)\0([^\0]*)\0")


def either(flags: str, python: str) -> str:
    """A text in two forms: for the command line and for Python. `render` picks one."""
    return f"\0{flags}\0{python}\0"


def render(text: str, *, flags: bool = False) -> str:
    """The text for one reader: for Python, or with `flags` for the command line.

    >>> render(f"add {flag('force')}"), render(f"add {flag('force')}", flags=True)
    ('add force=True', 'add --force')
    """
    return _EITHER.sub(r"\1" if flags else r"\2", text)


def option(name: str, value: str = "", python: str = "") -> str:
    """An option: `--rounds` or `rounds`. With a value: `--rounds N` or `rounds=N`.

    Args:
        python: the value in Python, where it differs.
    """
    if not value:
        return either(f"--{name}", name)
    return either(f"--{name} {value}", f"{name}={python or value}")


def flag(name: str) -> str:
    """An option that is on or off: `--force` or `force=True`."""
    return either(f"--{name}", f"{name}=True")


def how_to_resume(out: str | os.PathLike[str]) -> str:
    """The command, or the call, that resumes the study of a folder."""
    path = os.fspath(out)
    return either(f"`fedskip resume {shlex.quote(path)}`", f"`fedskip.resume({path!r})`")


def how_to_resume_study(out: str | os.PathLike[str], *, anyway: bool = False) -> str:
    """The same for a caller in Python who has the `Study`, which may hold objects that no file has."""
    path = shlex.quote(os.fspath(out))
    if anyway:
        return either(f"`fedskip resume {path} --anyway`", "`study.resume(anyway=True)`")
    return either(f"`fedskip resume {path}`", "`study.resume()`")


def resume_command(out: object, trust: bool) -> str:
    """The command that resumes a study; `trust`: the study names code."""
    return f"fedskip resume {shlex.quote(str(out))}{' --trust' * trust}"


class InputError(ValueError):
    """Bad input. The message reads `FIELD RULE, got VALUE (WHERE). FIX`.

    >>> print(InputError("partition.beta", "must be > 0", -1, "use 0.5 as the paper does"))
    partition.beta must be > 0, got -1. Use 0.5 as the paper does.
    """

    def __init__(
        self, field: str, rule: str, value: Any = ..., fix: str = "", where: str = ""
    ) -> None:
        self.field, self.rule, self.value, self.fix, self.where = field, rule, value, fix, where
        super().__init__(self.message())

    def message(self, *, flags: bool = False) -> str:
        """The error in one line, for Python or with `flags` for the command line."""
        field, rule, fix, where = (
            render(text, flags=flags) for text in (self.field, self.rule, self.fix, self.where)
        )
        text = f"{shorten_middle(field, 120)} {shorten(rule, 240)}"
        if self.value is not ...:
            try:
                value = repr(self.value)
            except ValueError:  # Python does not write a number of thousands of digits
                value = f"a {type(self.value).__name__} of thousands of digits"
            text += f", got {shorten_middle(value, 80)}"
        if where:
            text += f" ({shorten_middle(where, 120)})"
        text += "."
        if fix:
            fix = shorten(fix, 480)
            text += f" {fix[0].upper()}{fix[1:]}" + ("" if fix[-1] in ".?!`" else ".")
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)

    def __reduce__(self) -> tuple[type[InputError], tuple[Any, ...]]:
        return InputError, (self.field, self.rule, self.value, self.fix, self.where)

    def at(self, where: str) -> InputError:
        """The same error with a place, such as `study.yaml line 12`."""
        return InputError(self.field, self.rule, self.value, self.fix, where)


def require(field: str, ok: bool, rule: str, value: object = ..., fix: str = "") -> None:
    """Raise an `InputError` unless `ok`."""
    if not ok:
        raise InputError(field, rule, value, fix)


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for an unknown name. It suggests the nearest known one."""
    names = sorted(known)
    near = nearest(name, names)
    fix = f"did you mean {near!r}?" if near else f"known: {', '.join(names)}"
    return InputError(kind, "is not known", name, fix)


def unknown_key(path: str, known: Iterable[str]) -> InputError:
    """The error for an unknown key. It suggests the nearest known one."""
    return InputError(path, "is not a known key", fix=unknown("", path, known).fix)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that is most similar. `cutoff`: how similar it must be, from 0 to 1."""
    return next(iter(get_close_matches(name, sorted(known), n=1, cutoff=cutoff)), None)


def shorten(text: str, most: int) -> str:
    """The text, or its beginning."""
    return text if len(text) <= most else text[: most - 3] + "..."


def shorten_middle(text: str, most: int) -> str:
    """The text, or its beginning and its end. The ends of a path say most.

    >>> shorten_middle("/home/ada/studies/of-2026/history.csv", 25)
    '/home/ada/s...history.csv'
    """
    tail = (most - 3) // 2
    return text if len(text) <= most else f"{text[: most - 3 - tail]}...{text[-tail:]}"


def join_some(names: Iterable[str], most: int = 3) -> str:
    """The first few of many names.

    >>> join_some(["a", "b"]), join_some("abcd")
    ('a, b', 'a, b, c, ...')
    """
    all_ = list(names)
    return ", ".join(all_[:most]) + (", ..." if len(all_) > most else "")


def first_line(error: BaseException) -> str:
    """The first line of another library's error, or its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def picklable(error: Exception, where: str) -> Exception:
    """The error, or one with the same text, as it can be sent to another process.

    A note says where it happened and holds the traceback.
    """
    sendable: Exception = error
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        sendable = RuntimeError(f"{type(error).__name__}: {error}")
    sendable.add_note("".join([f"{where}:\n", *traceback.format_exception(error)]))
    return sendable
