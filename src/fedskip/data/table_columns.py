"""Turns columns of a table into arrays: inputs, one-hot columns, classes, names of clients.

The index of a table counts its rows from 1; the rows of a separate test table count from -1 down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskip.errors import InputError, require

if TYPE_CHECKING:
    import pandas as pd

MOST = 50  # different texts that become one-hot columns; different labels without a `task`
SHOWN = 8  # names that a message lists
NUMBERS = ("whole", "float", "bool")  # kinds of columns that hold numbers; others: text, category

# the loss and the metric for targets that are no classes
REGRESSION = {"loss": "squared_error", "metric": "minus_squared_error"}
MULTI_LABEL = {"loss": "binary_cross_entropy", "metric": "label_accuracy"}


@dataclass(frozen=True)
class Labels:
    """The targets of all rows, and what is known about them."""

    y: np.ndarray  # (n,) classes, or (n,) or (n, k) numbers
    note: str  # what was read, for the user
    classes: int | None = None
    names: tuple[str, ...] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)  # a loss and a metric that fit


# --- what a column holds --------------------------------------------------------------------------


def kind(where: str, column: pd.Series) -> str:
    """`whole`, `float`, `bool`, `text` or `category`; an `InputError` for anything else."""
    from pandas.api import types

    if isinstance(column.dtype, types.CategoricalDtype):
        return "category"
    if types.is_bool_dtype(column):
        return "bool"
    if types.is_integer_dtype(column):
        return "whole"
    if types.is_float_dtype(column):
        return "float"
    held = {type(value) for value in column} if column.dtype == object else set()
    if types.is_string_dtype(column) or (held and held <= {str, int, float, bool}):
        return "text"
    given = ", ".join(sorted(each.__name__ for each in held)) or str(column.dtype)
    fix = "make numbers of it, a column for each, or leave it out with data.drop"
    raise InputError(where, "must hold numbers or texts", given, fix)


def row(column: pd.Series, wrong: np.ndarray) -> str:
    """The first wrong row, as messages call it."""
    number = int(column.index[int(np.flatnonzero(wrong)[0])])
    return f"row {number:,}" if number > 0 else f"row {-number:,} of the test table"


def numbers(where: str, column: pd.Series) -> np.ndarray:
    """A column of numbers, (n,) float64; an `InputError` for a number that float32 cannot hold."""
    values: np.ndarray = column.to_numpy(np.float64)
    for wrong, rule in (
        (~np.isfinite(values), "must be finite"),
        (np.abs(values) > np.finfo(np.float32).max, "must fit into float32"),
    ):
        if wrong.any():
            rule = f"{rule}, and {row(column, wrong)} is not"
            raise InputError(where, rule, values[wrong][0].item())
    return values


def _whole_numbers(where: str, column: pd.Series, rule: str) -> np.ndarray:
    """A column of floats that are whole numbers, (n,) float64."""
    values = numbers(where, column)
    broken = values != np.floor(values)
    if broken.any():
        rule = f"{rule}, and {row(column, broken)} does not"
        raise InputError(where, rule, values[broken][0].item())
    return values


def _texts(where: str, column: pd.Series, *, label: bool = False) -> pd.Series:
    """A column of texts; an `InputError` if most of them are numbers (labels may be)."""
    import pandas as pd

    texts = column.astype(str)
    plain = pd.to_numeric(texts, errors="coerce").notna().to_numpy()
    loose = pd.to_numeric(texts.str.replace(",", ""), errors="coerce").notna().to_numpy()
    if (plain.all() and label) or loose.mean() < 0.5:
        return texts
    if plain.all():
        fix = "convert it with pd.to_numeric"
        raise InputError(where, "holds numbers as texts", texts.iloc[0], fix)
    rule = f"holds numbers, but {row(column, ~plain)} has none that can be read"
    fix = "write numbers plainly, as 1234.5, or leave the row or the column out"
    raise InputError(where, rule, texts[~plain].iloc[0], fix)


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


# --- inputs and clients ---------------------------------------------------------------------------


def inputs(where: str, name: str, column: pd.Series) -> tuple[list[str], np.ndarray]:
    """The inputs that a column becomes, (n, k) float32, and their names.

    Numbers stay one column. Texts become one-hot columns, named `NAME=TEXT`, in sorted order.
    """
    what = kind(where, column)
    if what in NUMBERS:
        return [name], numbers(where, column).astype(np.float32)[:, None]
    import pandas as pd

    texts = column.astype(str) if what == "category" else _texts(where, column)
    codes, levels = pd.factorize(texts, sort=True)
    if len(levels) > MOST:
        rule = f"must hold at most {MOST} different texts, each of which becomes a one-hot column"
        fix = "leave it out with data.drop, or put numbers in its place"
        raise InputError(where, rule, len(levels), fix)
    return [f"{name}={level}" for level in levels], np.eye(len(levels), dtype=np.float32)[codes]


def clients(where: str, column: pd.Series) -> np.ndarray:
    """The client of each row, (n,): whole numbers or texts."""
    what = kind(where, column)
    if what == "float":
        _whole_numbers(where, column, "must hold whole numbers or names")
    is_number = what in ("float", "whole")
    names: np.ndarray = (
        column.to_numpy(np.int64) if is_number else column.astype(str).to_numpy(object)
    )
    return names


# --- labels ---------------------------------------------------------------------------------------


def labels(
    table: str, columns: Sequence[pd.Series], task: str | None = None, classes: int | None = None
) -> Labels:
    """The targets, by the rules of docs/data.md.

    Args:
        table: what errors call the table.
        columns: one column is a class or a number, several are a vector.
        task: `classification` or `regression`; None to decide by the column.
        classes: their number, if labels are the numbers of classes.
    """
    if len(columns) > 1:
        return _several(table, columns, task, classes)
    [column] = columns
    where = f"{table}: column {column.name!r}"
    what = kind(where, column)
    if task == "regression":
        rule = "must hold numbers for task: regression"
        require(where, what in NUMBERS, rule, str(column.iloc[0]))
    if classes is not None:
        not_regression = task != "regression"
        require("data.classes", not_regression, "is for classification", classes, "leave it out")
        rule = f"is for numbers, and {where} has names"
        fix = "leave it out: they are counted"
        require("data.classes", what in ("whole", "float"), rule, classes, fix)
    if task == "regression" or (what == "float" and _is_measured(where, column, task)):
        y = numbers(where, column)
        require(where, bool((y != y[0]).any()), "must not be the same in every row", y[0].item())
        note = f"{column.name}: numbers, for regression"
        return Labels(y.astype(np.float32), note, defaults=REGRESSION)
    if classes is not None:
        return _numbered_classes(where, column, classes)
    return _classes(where, column, what, task)


def _is_measured(where: str, column: pd.Series, task: str | None) -> bool:
    """Whether a column of floats holds measurements, and not classes that were written as floats."""
    if task == "classification":
        _whole_numbers(where, column, "must hold classes")
        return False
    values = numbers(where, column)
    if (values != np.floor(values)).any() or len(np.unique(values)) > MOST:
        return True
    rule = "holds whole numbers written as floats, which may be classes or measurements"
    fix = "set data.task=classification or data.task=regression"
    raise InputError(where, rule, values[0].item(), fix)


def _numbered_classes(where: str, column: pd.Series, classes: int) -> Labels:
    """Labels that are the numbers of classes, from 0 on; some classes may not occur."""
    values = column.to_numpy(np.int64)
    wrong = (values < 0) | (values >= classes)
    if wrong.any():
        rule = f"must hold classes from 0 to {classes - 1}, and {row(column, wrong)} does not"
        fix = "leave data.classes out to count what is there"
        raise InputError(where, rule, values[wrong][0].item(), fix)
    return Labels(values, f"{column.name}: {classes} classes, numbered", classes)


def _classes(where: str, column: pd.Series, what: str, task: str | None) -> Labels:
    """Each different value is a class, in sorted order or in that of a categorical column."""
    import pandas as pd

    if what == "category":
        names = [str(name) for name in column.cat.categories]
        codes = column.cat.codes.to_numpy(np.int64)
        present = len(np.unique(codes))
    else:
        values = _texts(where, column, label=True) if what == "text" else column
        values = values.astype(np.int64) if what == "float" else values
        codes, levels = pd.factorize(values, sort=True)
        names, present = [str(level) for level in levels], len(levels)
    if present < 2:
        raise InputError(where, "must not be the same in every row", names[int(codes[0])])
    if len(names) > MOST and task is None:
        rule = f"has {len(names):,} different values, which may be too many for classes"
        fix = "set data.task=classification if they are classes"
        fix += ", data.task=regression if they are numbers" if what == "whole" else ""
        raise InputError(where, rule, fix=fix)
    note = f"{column.name}: {len(names)} classes ({listed(names)})"
    return Labels(codes.astype(np.int64), note, len(names), tuple(names))


def _several(
    table: str, columns: Sequence[pd.Series], task: str | None, classes: int | None
) -> Labels:
    """Several label columns: 0 and 1 for multi-label tasks, or numbers for regression."""
    fix = "leave it out: each column is an output"
    require("data.classes", classes is None, "is for a single label column", classes, fix)
    parts, binary = [], True
    for column in columns:
        where = f"{table}: column {column.name!r}"
        fix = "several label columns are numbers, or 0 and 1"
        is_numeric = kind(where, column) in NUMBERS
        require(where, is_numeric, "must hold numbers", str(column.iloc[0]), fix)
        parts.append(numbers(where, column))
        is_binary = bool(np.isin(parts[-1], (0, 1)).all())
        rule = "must hold 0 and 1, as one of several labels"
        require(where, is_binary or task != "classification", rule, parts[-1].max().item())
        binary &= is_binary
    y, names = np.stack(parts, 1).astype(np.float32), listed([str(c.name) for c in columns])
    if binary and task != "regression":
        return Labels(y, f"{len(columns)} labels of 0 and 1 ({names})", defaults=MULTI_LABEL)
    return Labels(y, f"{len(columns)} numbers, for regression ({names})", defaults=REGRESSION)
