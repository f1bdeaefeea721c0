"""The one error that users see: it names the field, the rule, the value and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class InputError(ValueError):
    """Bad input. The message reads `FIELD RULE, got VALUE. FIX`.

    >>> print(InputError("partition.beta", "must be > 0", -1, "use 0.5 as the paper does"))
    partition.beta must be > 0, got -1. Use 0.5 as the paper does.
    """

    def __init__(self, field: str, rule: str, value: Any = ..., fix: str = "", where: str = "") -> None:
        self.field, self.rule, self.value, self.fix, self.where = field, rule, value, fix, where
        text = f"{field} {rule}"
        if value is not ...:
            shown = repr(value)
            text += f", got {shown if len(shown) <= 80 else shown[:77] + '...'}"
        if where:
            text += f" ({where})"
        text += "."
        if fix:
            text += f" {fix[0].upper()}{fix[1:]}" + ("" if fix[-1] in ".?!`" else ".")
        super().__init__(text)

    def __reduce__(self) -> tuple[type[InputError], tuple[Any, ...]]:
        return InputError, (self.field, self.rule, self.value, self.fix, self.where)

    def at(self, where: str) -> InputError:
        """The same error with a place, such as `study.yaml line 12`."""
        return InputError(self.field, self.rule, self.value, self.fix, where)


def require(field: str, ok: bool, rule: str, value: object = ..., fix: str = "") -> None:
    """Raise an `InputError` unless `ok`."""
    if not ok:
        raise InputError(field, rule, value, fix)


def said(error: Exception) -> str:
    """What an error of another library says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An unknown name, with the nearest known one suggested."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    fix = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return InputError(kind, "is not known", name, fix)


def unknown_key(path: str, known: Iterable[str]) -> InputError:
    """A key that nothing reads, with the nearest one that something does."""
    return InputError(path, "is not a known key", fix=unknown("", path, known).fix)
