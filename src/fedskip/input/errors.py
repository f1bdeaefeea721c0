"""The one error that users see: it names the field, the rule, the value and the way out.

A way out may be an option. Who reads the error has it as a flag, or as an argument in Python: `option`,
`flag` and `resuming` write both into a text, and the reader sees his own.
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


def either(flags: str, python: str) -> str:
    """Words for who calls from the command line, and for who calls from Python; `told` chooses."""
    return f"\0{flags}\0{python}\0"


def told(text: str, *, flags: bool = False) -> str:
    """A text as its reader has it: by default in Python.

    >>> told(f"add {flag('force')}"), told(f"add {flag('force')}", flags=True)
    ('add force=True', 'add --force')
    """
    return _EITHER.sub(r"\1" if flags else r"\2", text)


_EITHER = re.compile("\0([^\0]*)\0([^\0]*)\0")


def option(name: str, value: str = "", python: str = "") -> str:
    """An option, or how to give it a value: `--rounds N`, or `rounds=N`; `python`: where that differs."""
    return either(f"--{name} {value}", f"{name}={python or value}") if value else either(f"--{name}", name)


def flag(name: str) -> str:
    """An option that is on or off: `--force`, or `force=True`."""
    return either(f"--{name}", f"{name}=True")


def resuming(out: str | os.PathLike[str]) -> str:
    """How to go on with the study of a folder."""
    return either(f"`fedskip resume {_quoted(out)}`", f"`fedskip.resume({os.fspath(out)!r})`")


def resuming_it(out: str | os.PathLike[str], *, anyway: bool = False) -> str:
    """How to go on with a study that who calls from Python holds: it may have objects that no file has."""
    here, there = (" --anyway", "anyway=True") if anyway else ("", "")
    return either(f"`fedskip resume {_quoted(out)}{here}`", f"`study.resume({there})`")


def _quoted(path: str | os.PathLike[str]) -> str:
    """A path as it can be pasted into a shell."""
    return shlex.quote(os.fspath(path))


class InputError(ValueError):
    """Bad input. The message reads `FIELD RULE, got VALUE. FIX`.

    >>> print(InputError("partition.beta", "must be > 0", -1, "use 0.5 as the paper does"))
    partition.beta must be > 0, got -1. Use 0.5 as the paper does.
    """

    def __init__(self, field: str, rule: str, value: Any = ..., fix: str = "", where: str = "") -> None:
        self.field, self.rule, self.value, self.fix, self.where = field, rule, value, fix, where
        super().__init__(self.message())

    def message(self, *, flags: bool = False) -> str:
        """The error in one line; with `flags`, as the command line says it."""
        field, rule, fix, where = (
            told(text, flags=flags) for text in (self.field, self.rule, self.fix, self.where)
        )
        text = f"{ends(field, 120)} {short(rule, 240)}"
        if self.value is not ...:
            text += f", got {ends(_shown(self.value), 80)}"
        if where:
            text += f" ({ends(where, 120)})"
        text += "."
        if fix:
            fix = short(fix, 480)
            text += f" {fix[0].upper()}{fix[1:]}" + ("" if fix[-1] in ".?!`" else ".")
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)

    def __reduce__(self) -> tuple[type[InputError], tuple[Any, ...]]:
        return InputError, (self.field, self.rule, self.value, self.fix, self.where)

    def at(self, where: str) -> InputError:
        """The same error with a place, such as `study.yaml line 12`."""
        return InputError(self.field, self.rule, self.value, self.fix, where)


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # Python does not write a number of thousands of digits
        return f"a {type(value).__name__} of thousands of digits"


def short(text: str, most: int) -> str:
    """The text, or its beginning."""
    return text if len(text) <= most else text[: most - 3] + "..."


def ends(text: str, most: int) -> str:
    """The text, or its beginning and its end, which of a path says most.

    >>> ends("/home/ada/studies/of-2026/history.csv", 25)
    '/home/ada/s...history.csv'
    """
    tail = (most - 3) // 2
    return text if len(text) <= most else f"{text[: most - 3 - tail]}...{text[-tail:]}"


def few(names: Iterable[str], most: int = 3) -> str:
    """Names in a message, of many only the first.

    >>> few(["a", "b"]), few("abcd")
    ('a, b', 'a, b, c, ...')
    """
    all_ = list(names)
    return ", ".join(all_[:most]) + (", ..." if len(all_) > most else "")


def require(field: str, ok: bool, rule: str, value: object = ..., fix: str = "") -> None:
    """Raise an `InputError` unless `ok`."""
    if not ok:
        raise InputError(field, rule, value, fix)


def said(error: Exception) -> str:
    """What an error of another library says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def portable(error: Exception, where: str) -> Exception:
    """The error as another process can have it, or one that says the same; with where it happened."""
    found: Exception = error
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        found = RuntimeError(f"{type(error).__name__}: {error}")
    found.add_note("".join([f"{where}:\n", *traceback.format_exception(error)]))
    return found


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An unknown name, with the nearest known one suggested."""
    names = sorted(known)
    near = nearest(name, names)
    fix = f"did you mean {near!r}?" if near else f"known: {', '.join(names)}"
    return InputError(kind, "is not known", name, fix)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that is most like another, if any is; `cutoff`: how much, from 0 to 1."""
    return next(iter(get_close_matches(name, sorted(known), n=1, cutoff=cutoff)), None)


def unknown_key(path: str, known: Iterable[str]) -> InputError:
    """A key that nothing reads, with the nearest one that something does."""
    return InputError(path, "is not a known key", fix=unknown("", path, known).fix)
