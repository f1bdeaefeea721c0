"""What becomes of one column of a table: numbers, zeros and ones for texts, classes, names of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskip.input.errors import InputError, require

if TYPE_CHECKING:
    import pandas as pd

MOST = 50  # different texts that become inputs of 0 and 1; different labels that are classes without a `task`
SHOWN = 8  # names that a line lists
NUMBERS, TEXTS = ("whole", "float", "bool"), ("text", "category")


@dataclass(frozen=True)
class Labels:
    """The targets of all rows, and what is known of them."""

    y: np.ndarray  # (n,) classes, or (n,) or (n, k) numbers
    about: str  # in words
    classes: int | None = None
    names: tuple[str, ...] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)  # the loss and the metric that fit


def kind(where: str, column: pd.Series) -> str:
    """One of `NUMBERS` or `TEXTS`; refuses what is neither."""
    from pandas.api import types

    if isinstance(column.dtype, types.CategoricalDtype):
        return "category"
    if types.is_bool_dtype(column):
        return "bool"
    if types.is_integer_dtype(column):
        return "whole"
    if types.is_float_dtype(column):
        return "float"
    found = {type(value) for value in column} if column.dtype == object else set()
    if types.is_string_dtype(column) or (found and found <= {str, int, float, bool}):
        return "text"
    holds = ", ".join(sorted(one.__name__ for one in found)) or str(column.dtype)
    fix = "make numbers of it, a column for each, or leave it out with data.drop"
    raise InputError(where, "must hold numbers or texts", holds, fix)


def row(column: pd.Series, wrong: np.ndarray) -> str:
    """The first row that is wrong. A table's index counts its rows from 1; those of a test table are < 0."""
    number = int(column.index[int(np.flatnonzero(wrong)[0])])
    return f"row {number:,}" if number > 0 else f"row {-number:,} of the test table"


def numbers(where: str, column: pd.Series) -> np.ndarray:
    """A column of numbers, (n,) float64, that float32 can hold."""
    values: np.ndarray = column.to_numpy(np.float64)
    for wrong, rule in (
        (~np.isfinite(values), "must be finite"),
        (np.abs(values) > np.finfo(np.float32).max, "must fit into float32"),
    ):
        if wrong.any():
            raise InputError(where, f"{rule}, and {row(column, wrong)} is not", values[wrong][0].item())
    return values


def texts(where: str, column: pd.Series, *, label: bool = False) -> pd.Series:
    """A column of texts, unless they are numbers that could not be read as such."""
    import pandas as pd

    found = column.astype(str)
    plain = pd.to_numeric(found, errors="coerce").notna().to_numpy()
    loose = pd.to_numeric(found.str.replace(",", ""), errors="coerce").notna().to_numpy()
    if (plain.all() and label) or loose.mean() < 0.5:
        return found
    fix = "write numbers plainly, as 1234.5"
    if plain.all():
        raise InputError(where, "holds numbers as texts", found.iloc[0], "convert it with pd.to_numeric")
    rule = f"holds numbers, but {row(column, ~plain)} has none that can be read"
    raise InputError(where, rule, found[~plain].iloc[0], f"{fix}, or leave the row or the column out")


def inputs(where: str, name: str, column: pd.Series) -> tuple[list[str], np.ndarray]:
    """The inputs that a column becomes, (n, k) float32, and their names."""
    what = kind(where, column)
    if what in NUMBERS:
        return [name], numbers(where, column).astype(np.float32)[:, None]
    import pandas as pd

    found = column.astype(str) if what == "category" else texts(where, column)
    codes, levels = pd.factorize(found, sort=True)
    if len(levels) > MOST:
        rule = f"must hold at most {MOST} different texts, each of which becomes an input of 0 and 1"
        fix = "leave it out with data.drop, or put numbers in its place"
        raise InputError(where, rule, len(levels), fix)
    return [f"{name}={level}" for level in levels], np.eye(len(levels), dtype=np.float32)[codes]


def clients(where: str, column: pd.Series) -> np.ndarray:
    """The client of each row: a whole number or a text."""
    found = kind(where, column)
    if found == "float":
        values = numbers(where, column)
        broken = values != np.floor(values)
        if broken.any():
            rule = f"must hold whole numbers or names, and {row(column, broken)} does not"
            raise InputError(where, rule, values[broken][0].item())
    whole = found in ("float", "whole")
    named: np.ndarray = column.to_numpy(np.int64) if whole else column.astype(str).to_numpy(object)
    return named


def labels(
    table: str, columns: Sequence[pd.Series], task: str | None = None, classes: int | None = None
) -> Labels:
    """The targets, by the rules of docs/data.md: one column is a class or a number, several are a vector."""
    if len(columns) > 1:
        return _several(table, columns, task, classes)
    [column] = columns
    name, where = column.name, f"{table}: column {column.name!r}"
    found = kind(where, column)
    if task == "regression":
        require(where, found in NUMBERS, "must hold numbers for task: regression", str(column.iloc[0]))
    if classes is not None:
        _refuse_uncounted(where, found, task, classes)
    if task == "regression" or (found == "float" and _is_measured(where, column, task)):
        y = numbers(where, column)
        require(where, bool((y != y[0]).any()), "must not be the same in every row", y[0].item())
        return Labels(y.astype(np.float32), f"{name}: numbers, for regression", defaults=_fitting("squared"))
    if classes is not None:
        return _counted(where, column, classes)
    return _classes(where, column, found, task)


def _is_measured(where: str, column: pd.Series, task: str | None) -> bool:
    """Whether a column of floats holds measurements, and not classes that were written as floats."""
    values = numbers(where, column)
    broken = values != np.floor(values)
    if task == "classification":
        rule = f"must hold classes, and {row(column, broken) if broken.any() else ''} does not"
        require(where, not broken.any(), rule, values[broken][0].item() if broken.any() else None)
        return False
    if broken.any() or len(np.unique(values)) > MOST:
        return True
    rule = "holds whole numbers written as floats, which may be classes or measurements"
    raise InputError(where, rule, values[0].item(), "set data.task=classification or data.task=regression")


def _refuse_uncounted(where: str, found: str, task: str | None, classes: int) -> None:
    fix = "leave it out: they are counted"
    require("data.classes", task != "regression", "is for classification", classes, "leave it out")
    require(
        "data.classes", found in ("whole", "float"), f"is for numbers, and {where} has names", classes, fix
    )


def _counted(where: str, column: pd.Series, classes: int) -> Labels:
    """Numbers from 0 on that are the classes themselves, of which some may be missing."""
    values = column.to_numpy(np.int64)
    wrong = (values < 0) | (values >= classes)
    if wrong.any():
        rule = f"must hold classes from 0 to {classes - 1}, and {row(column, wrong)} does not"
        raise InputError(
            where, rule, values[wrong][0].item(), "leave data.classes out to count what is there"
        )
    return Labels(values, f"{column.name}: {classes} classes, numbered", classes)


def _classes(where: str, column: pd.Series, found: str, task: str | None) -> Labels:
    """Each different value is a class, in sorted order, or in that of a categorical column."""
    import pandas as pd

    if found == "category":
        names = [str(name) for name in column.cat.categories]
        codes = column.cat.codes.to_numpy(np.int64)
        present = len(np.unique(codes))
    else:
        values = texts(where, column, label=True) if found == "text" else column
        codes, levels = pd.factorize(values.astype(np.int64) if found == "float" else values, sort=True)
        names, present = [str(level) for level in levels], len(levels)
    if present < 2:
        raise InputError(where, "must not be the same in every row", names[int(codes[0])])
    if len(names) > MOST and task is None:
        rule = f"has {len(names):,} different values, which may be too many for classes"
        fix = "set data.task=classification if they are classes"
        fix += ", data.task=regression if they are numbers" * (found == "whole")
        raise InputError(where, rule, fix=fix)
    about = f"{column.name}: {len(names)} classes ({listed(names)})"
    return Labels(codes.astype(np.int64), about, len(names), tuple(names))


def _several(table: str, columns: Sequence[pd.Series], task: str | None, classes: int | None) -> Labels:
    """Several columns: labels of 0 and 1, or numbers."""
    fix = "leave it out: each column is an output"
    require("data.classes", classes is None, "is for a single label column", classes, fix)
    found, both = [], True
    for column in columns:
        where = f"{table}: column {column.name!r}"
        fix = "several label columns are numbers, or 0 and 1"
        numeric = kind(where, column) in NUMBERS
        require(where, numeric, "must hold numbers", str(column.iloc[0]), fix)
        found.append(numbers(where, column))
        binary = bool(np.isin(found[-1], (0, 1)).all())
        rule = "must hold 0 and 1, as one of several labels"
        require(where, binary or task != "classification", rule, found[-1].max().item())
        both &= binary
    y, names = np.stack(found, 1).astype(np.float32), listed([str(column.name) for column in columns])
    if both and task != "regression":
        return Labels(y, f"{len(columns)} labels of 0 and 1 ({names})", defaults=_fitting("binary"))
    return Labels(y, f"{len(columns)} numbers, for regression ({names})", defaults=_fitting("squared"))


def _fitting(which: str) -> dict[str, Any]:
    """The loss and the metric of targets that are no classes."""
    if which == "binary":
        return {"loss": "binary_cross_entropy", "metric": "label_accuracy"}
    return {"loss": "squared_error", "metric": "minus_squared_error"}


def listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
