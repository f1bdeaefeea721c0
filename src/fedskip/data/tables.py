"""Makes a data set from a table: a CSV, TSV or parquet file, or a pandas DataFrame.

A sample is a row. Errors count the rows of a table from 1, and those of a separate test table from 1, too.
So the index of a table here is 1, 2, ..., and that of the test rows below it -1, -2, ...
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedskip.data.archives import unpacked
from fedskip.data.arrays import build_dataset, check_numbers, refuse_any, row_name
from fedskip.data.dataset import Dataset
from fedskip.errors import InputError, first_line, join_some, require, unknown
from fedskip.files import expand_home, refuse_unreadable
from fedskip.parsing import fit

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
MOST_TEXTS = 50  # different texts that become one-hot columns; different labels without a `task`
SHOWN = 8  # names that a message lists
NUMBERS = ("whole", "float", "bool")  # kinds of columns that hold numbers; others: text, category
IS_TEST = {"train": False, "test": True, "0": False, "1": True, "false": False, "true": True}
Task = Literal["classification", "regression"]

# the loss and the metric for targets that are no classes
REGRESSION = {"loss": "squared_error", "metric": "minus_squared_error"}
MULTI_LABEL = {"loss": "binary_cross_entropy", "metric": "label_accuracy"}


# --- files ----------------------------------------------------------------------------------------


def is_table(name: str) -> bool:
    """Whether a name is that of a file with a table."""
    return name.lower().endswith(TABLES)


def _read_file(
    given: Any,
    field: str,
    identity: Mapping[str, bool],
    keep_na: bool,
    separator: str | None,
    encoding: str,
) -> pd.DataFrame:
    """The table that is given, or that a file holds.

    Args:
        given: a DataFrame, or a path.
        field: what errors call the path.
        identity: columns of labels (True) and clients (False), which a CSV gives as they are written.
        keep_na, separator, encoding: see `from_frame`.
    """
    if not isinstance(given, str | os.PathLike):
        return given
    path = expand_home(given, field)
    refuse_unreadable(field, path)
    name = path.name.lower()
    if name.endswith(".parquet"):
        return _read_parquet(path)
    import pandas as pd

    separator = separator or ("\t" if ".tsv" in name else ",")
    require("data.separator", len(separator) == 1, "must be one character", separator, "such as ;")
    options: dict[str, Any] = {"sep": separator, "encoding": encoding, "low_memory": False}
    try:
        with warnings.catch_warnings():
            # about columns that pandas would leave out
            warnings.simplefilter("error", pd.errors.ParserWarning)
            with unpacked(path) as file:
                header = pd.read_csv(
                    file, header=None, nrows=1, dtype=str, na_filter=False, **options
                )
            names = header.iloc[0].tolist()
            refuse_repeated(str(path), [name for name in names if name])
            for other in ";\t,|":
                rule = f"has one column, {names[0]!r}, when it is split at {separator!r}"
                split = len(names) > 1 or other == separator or other not in names[0]
                require(str(path), split, rule, fix=f"set data.separator={other!r}")
            with unpacked(path) as file:
                frame = pd.read_csv(file, index_col=False, **options)
            options |= {"usecols": lambda name: name in identity, "dtype": str}
            with unpacked(path) as file:
                texts = pd.read_csv(file, na_values=[""], keep_default_na=not keep_na, **options)
            return frame.assign(**{
                name: _as_written(frame[name], texts[name], identity[name]) for name in texts
            })  # fmt: skip
    except InputError:
        raise
    except (OSError, EOFError, zlib.error, ValueError, LookupError, Warning) as error:
        why = first_line(error).removeprefix("Error tokenizing data. C error: ")
        fix = "the first line names the columns, and every row has as many values as it has names; quote "
        fix += (
            f"values that hold a comma; set data.encoding, such as latin-1, if it is not {encoding}"
        )
        rule = f"cannot be read as a table ({why})"
        raise InputError(str(path), rule, fix=fix) from error


def _as_written(column: pd.Series, texts: pd.Series, is_label: bool) -> pd.Series:
    """A column of clients or labels in which different texts stay different.

    So `01` is not `1`, and numbers beside gaps keep all their digits, which floats would not. But labels
    such as `0.50` are numbers.
    """
    from pandas.api import types

    if not types.is_numeric_dtype(column) or types.is_bool_dtype(column):
        return texts if texts.isna().sum() < column.isna().sum() else column
    present = texts.dropna()
    if present.str.fullmatch(r"0|-?[1-9]\d{0,17}").all():
        return present.astype(np.int64).astype("Int64").reindex(texts.index)
    padded = present.str.fullmatch(r"[+-]?0\d+").any()  # `01` is a name
    is_same = (is_label and not padded) or present.nunique() == column.nunique()
    is_number = types.is_float_dtype(column) and texts.isna().equals(column.isna())
    return column if is_number and is_same else texts


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        fix = "run `pip install 'fedskip[parquet]'`"
        raise InputError(str(path), "needs pyarrow to be read", fix=fix) from error
    try:
        frame: pd.DataFrame = pyarrow.parquet.read_table(path).to_pandas(ignore_metadata=True)
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(str(path), f"cannot be read as parquet ({first_line(error)})") from error
    # pandas may have saved its row numbers as a column
    return frame[[name for name in frame if not name.startswith("__index_level_")]]


# --- the data set ---------------------------------------------------------------------------------


def from_frame(
    frame: Any,
    *,
    label: str | Sequence[str] | None = None,
    client: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] | None = None,
    test: Any = None,
    test_fraction: float = 0.1,
    task: Task | None = None,
    classes: int | None = None,
    gaps: Literal["refuse", "drop"] = "refuse",
    keep_na: bool = False,
    separator: str | None = None,
    encoding: str = "utf-8",
    standardize: bool = False,
    name: str | None = None,
) -> Dataset:
    """Make a data set from a table with a sample in each row.

    Args:
        frame: a pandas DataFrame, or the path of a CSV, TSV or parquet file.
        label: the column to predict, or several for several labels or numbers per sample.
        client: the column that names the client of each row.
        features: the columns that are inputs; by default all others. Texts become one-hot columns.
        drop: columns to leave out.
        test: the test rows, as another table; or a column that holds train and test, 0 and 1, or
            false and true.
        test_fraction: without `test`, the share of each client's rows that is for testing, drawn by
            the partition seed.
        task: `classification` or `regression`, where the label column leaves it open.
        classes: their number, if labels count from 0 and some may not occur.
        gaps: `drop` leaves out rows with a gap; `refuse` raises an error.
        keep_na: in the label and client columns of a text file, `NA`, `None`, `null` and the like are
            names; only an empty cell is a gap.
        separator: of columns in a file; by default a comma, or a tab in a .tsv.
        encoding: of the text in a file.
        standardize: give inputs mean 0 and standard deviation 1, by the training samples.
        name: of the data set; by default that of the file.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [61, 34, 45], "sex": ["f", "m", "f"], "ill": [1, 0, 1]})
    >>> data = from_frame(frame, label="ill")
    >>> data.input_names, data.samples.x[0].tolist()
    (('age', 'sex=f', 'sex=m'), [61.0, 1.0, 0.0])
    """
    where = str(frame) if isinstance(frame, str | os.PathLike) else "the frame"
    named = [label] if isinstance(label, str) else label if isinstance(label, Sequence) else []
    read = partial(
        _read_file, identity=dict.fromkeys(named, True) | {client or "": False}, keep_na=keep_na,
        separator=separator, encoding=encoding,
    )  # fmt: skip
    if isinstance(test, os.PathLike) or (isinstance(test, str) and is_table(test)):
        test = read(test, "data.test")
    table, roles = select_columns(
        read(frame, "data.name"), test, where,
        label=label, client=client, features=features, drop=drop,
    )  # fmt: skip
    table, notes = without_gaps(table, roles, gaps, where)
    parts = [inputs(f"{where}: column {each!r}", table[each]) for each in roles.features]
    names = [each for names, _ in parts for each in names]
    x = np.concatenate([x for _, x in parts], 1)
    one_hot = sum("=" in each and each not in roles.features for each in names)
    details = f" ({one_hot} one-hot columns from texts)" if one_hot else ""
    notes += _repeated_tests(table, roles)
    coarse = [
        each for each, (_, x) in zip(roles.features, parts, strict=True)
        if kind(where, table[each]) == "whole" and (x[:, 0] != np.asarray(table[each], float)).any()
    ]  # fmt: skip
    if coarse:
        notes.append(
            f"more digits than 32-bit numbers have, so rounded: {join_some(coarse, SHOWN)}"
        )
    if constant := [names[i] for i in np.flatnonzero((x == x[0]).all(0))]:
        notes.append(f"the same in every row, so of no use: {join_some(constant, SHOWN)}")
    return build_from_table(
        table, roles, where, x, f"; {len(names)} inputs{details}", notes, task=task, classes=classes,
        name=name or (Path(where).name.split(".")[0] if where != "the frame" else "frame"),
        test_fraction=test_fraction, input_names=tuple(names), standardize=standardize,
    )  # fmt: skip


def _repeated_tests(table: pd.DataFrame, roles: Roles) -> list[str]:
    """A note on rows of a separate test table that are training rows, too; all must not be."""
    import pandas as pd

    rows = pd.util.hash_pandas_object(table[[*roles.features, *roles.label]], index=False)
    tests = rows[rows.index < 0]
    repeated = int(tests.isin(rows[rows.index > 0]).sum())
    rule = f"must have rows that are not for training, and all its {repeated:,} rows are"
    require("data.test", not repeated or repeated < len(tests), rule, fix="name the test rows")
    if not repeated:
        return []
    return [f"{repeated:,} of {len(tests):,} test rows are also rows for training"]


def build_from_table(
    table: pd.DataFrame,
    roles: Roles,
    where: str,
    x: np.ndarray,
    about: str,
    notes: Sequence[str],
    *,
    task: Task | None = None,
    classes: int | None = None,
    **fields: Any,
) -> Dataset:
    """Build a data set of the inputs x (n, ...), with the labels, clients and test rows of a table."""
    task = fit("data.task", task, Task | None)
    classes = fit("data.classes", classes, int | None)
    found = labels(where, [table[each] for each in roles.label], task, classes)
    below = np.array(table.index < 0)  # the rows of a separate test table
    test = below if below.any() else None
    if roles.test is not None:
        test = _test_rows(f"{where}: column {roles.test!r}", table[roles.test])
    client = None
    if roles.client is not None:
        named = f"{where}: column {roles.client!r}"
        column = table[roles.client]
        client = clients(named, column[~below] if _tests_lack_clients(column) else column)
        trained = client if test is None else client[~test[: len(client)]]
        fix = "leave data.client out, and draw clients: partition=dirichlet, clients=10"
        several = len(np.unique(trained)) > 1
        require(named, several, "must name at least two clients", str(trained[0]), fix)
    return build_dataset(
        x=x, y=found.y, client=client, test=test, classes=found.classes, class_names=found.names,
        defaults=found.defaults, notes=(found.note + about, *notes), **fields,
    )  # fmt: skip


def _test_rows(where: str, column: pd.Series) -> np.ndarray:
    """Which rows a column of train and test marks for testing, (n,)."""
    words = column.astype(str).str.lower().str.removesuffix(".0")
    rule = "must be train or test, 0 or 1, false or true"
    _refuse_rows(where, column, ~words.isin(IS_TEST), rule)
    test: np.ndarray = words.map(IS_TEST).to_numpy(bool)
    both = bool(test.any() and not test.all())
    require(where, both, "must have rows for training and rows for testing", str(column.iloc[0]))
    return test


# --- columns and rows -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are for."""

    label: list[str]
    features: list[str]
    client: str | None
    test: str | None

    @property
    def all(self) -> list[str]:
        """The columns that are used; each must have a value in every row."""
        single = [name for name in (self.client, self.test) if name is not None]
        return list(dict.fromkeys([*self.features, *self.label, *single]))


def select_columns(
    frame: pd.DataFrame, test: str | pd.DataFrame | None, where: str, **options: Any
) -> tuple[pd.DataFrame, Roles]:
    """The used columns of a table and its test table, one below the other, and their roles.

    `options` are `label`, `client`, `features` and `drop`.
    """
    import pandas as pd

    table, has_tests = _checked(frame, where), not (test is None or isinstance(test, str))
    roles = _roles([*table.columns], where, test=None if has_tests else test, **options)
    table.index = pd.RangeIndex(1, len(table) + 1)
    if roles.client is not None and pd.api.types.is_integer_dtype(table[roles.client]):
        table[roles.client] = table[roles.client].astype("Int64")  # exact, also beside gaps
    if not has_tests:
        return table[roles.all], roles
    tests = _checked(test, f"the test table of {where}")
    tests.index = pd.RangeIndex(-1, -len(tests) - 1, -1)
    # a test table may leave out the clients: then its rows are everyone's
    for name in roles.all:
        rule = f"must be a column of the test table of {where}, too"
        optional = name == roles.client and name not in roles.features
        require("data.test", optional or name in tests.columns, rule, name)
        if name in tests.columns and isinstance(table[name].dtype, pd.CategoricalDtype):
            # keep the order of its categories
            order = [*dict.fromkeys([*table[name].cat.categories, *tests[name].dropna()])]
            table[name] = pd.Categorical(table[name], order)
            tests[name] = pd.Categorical(tests[name], order)
    return pd.concat([table[roles.all], tests.filter(roles.all)]), roles


def _checked(frame: Any, where: str) -> pd.DataFrame:
    """The table with texts as names of columns; an `InputError` if it is none."""
    import pandas as pd

    fix = "give a pandas DataFrame"
    require(where, isinstance(frame, pd.DataFrame), "must be a table", type(frame).__name__, fix)
    require(where, len(frame) > 0, "has no rows")
    names = [str(name) for name in frame.columns]
    refuse_repeated(where, names)
    return frame.set_axis(names, axis=1)


def refuse_repeated(where: str, names: Sequence[str]) -> None:
    """Refuse a table with two columns of one name."""
    for name, times in Counter(names).items():
        fix = "give each column a name of its own"
        require(where, times == 1, f"has {times} columns called {name!r}", fix=fix)


def _roles(columns: list[str], where: str, **given: Any) -> Roles:
    """The roles that the options `label`, `client`, `test`, `features` and `drop` give to columns."""
    fix = f"name one of its columns: {join_some(columns, SHOWN)}"
    chosen: dict[str, list[str]] = {}
    for field, value in given.items():
        names = [] if value is None else [value] if isinstance(value, str) else value
        is_names = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
        rule = "must be the name of a column, or a list of them"
        in_quotes = "write names in quotes that YAML takes for something else"
        require(f"data.{field}", is_names, rule, value, in_quotes)
        for name, times in Counter(names).items():
            rule, near = f"must be a column of {where}", unknown("", name, columns).fix
            require(f"data.{field}", name in columns, rule, name, near)
            require(f"data.{field}", times == 1, "names a column twice", name)
        chosen[field] = [*names]
    label, test, features = chosen["label"], chosen["test"], chosen["features"]
    require("data.label", bool(label), f"must name the column of {where} to predict", fix=fix)
    for field in ("client", "test"):
        require(f"data.{field}", len(chosen[field]) <= 1, "must be one column", chosen[field])
    both = given["features"] is not None and given["drop"] is not None
    rule = "cannot stand beside features"
    require("data.drop", not both, rule, given["drop"], "keep one of the two")
    for field in ("features", "drop", "client"):
        clash = [name for name in chosen[field] if name in (*label, *test)]
        require(f"data.{field}", not clash, "must not be a column of label or test", clash)
    if given["features"] is None:
        others = {*label, *test, *chosen["client"], *chosen["drop"]}
        features = [name for name in columns if name not in others]
    rule = f"must leave a column of {where} to predict from"
    require("data.features", bool(features), rule, features)
    for name in features:
        rule = f"has a column without a name, {name!r}"  # pandas names it
        fix = f"if these are row numbers, leave it out: data.drop=['{name}']; otherwise name it"
        require(where, not name.startswith("Unnamed: "), rule, fix=fix)
    return Roles(label, features, *(next(iter(names), None) for names in (chosen["client"], test)))


def without_gaps(
    table: pd.DataFrame, roles: Roles, gaps: str, where: str
) -> tuple[pd.DataFrame, list[str]]:
    """The rows without gaps, and a note on those left out; gaps are refused unless `gaps` is drop."""
    require("data.gaps", gaps in ("refuse", "drop"), "must be 'refuse' or 'drop'", gaps)
    missing = table.isna()
    if roles.client is not None and _tests_lack_clients(table[roles.client]):
        missing.loc[table.index < 0, roles.client] = False
    counts = missing.sum()
    broken = [name for name in roles.all if counts[name]]
    if not broken:
        return table, []
    if gaps == "refuse":
        name, more = broken[0], len(broken) - 1
        rule = f"has {counts[name]:,} gaps (empty or NA), the first in {row_name(missing[name].idxmax())}"
        rule += f"; {more} more columns have gaps, too" if more else ""
        fix = "fill them, leave the column out with data.drop, or its rows with data.gaps=drop"
        raise InputError(f"{where}: column {name!r}", rule, fix=fix)
    whole = ~missing.any(axis=1)
    for rows, of in ((table.index > 0, where), (table.index < 0, f"the test table of {where}")):
        some_left = bool(whole[rows].any()) or not rows.any()
        require(of, some_left, "has a gap in every row", fix="leave columns out with data.drop")
    kept = table[whole].infer_objects()  # without gaps, true and false are booleans again
    return kept, [f"{len(table) - len(kept):,} of {len(table):,} rows have gaps and are left out"]


def _tests_lack_clients(column: pd.Series) -> bool:
    """Whether no row of the test table names a client; also true without a test table."""
    return bool(column[column.index < 0].isna().all())


def _refuse_rows(where: str, column: pd.Series, wrong: Any, rule: str, fix: str = "") -> None:
    """Refuse a column if any value is wrong; the error names the first such row."""
    values = column.astype(object).to_numpy()
    refuse_any(where, values, np.asarray(wrong, bool), rule, fix, column.index)


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


def numbers(where: str, column: pd.Series, rule: str = "") -> np.ndarray:
    """A column of numbers, (n,) float64, that float32 can hold; whole ones if there is a `rule`."""
    values: np.ndarray = column.to_numpy(np.float64)
    check_numbers(where, values, column.index)
    if rule:
        _refuse_rows(where, column, values != np.floor(values), rule)
    return values


def _texts(where: str, column: pd.Series, *, label: bool = False) -> pd.Series:
    """A column of texts; an `InputError` if most of them are numbers (all labels may be)."""
    import pandas as pd

    texts = column.astype(str)
    plain = pd.to_numeric(texts, errors="coerce").notna().to_numpy()
    loose = pd.to_numeric(texts.str.replace(",", ""), errors="coerce").notna()
    if loose.mean() >= 0.5 and not (label and plain.all()):
        fix = "write numbers plainly, as 1234.5, or leave the row or the column out; "
        fix += "pd.to_numeric makes numbers of texts"
        rule = "holds numbers, so all must be plain numbers"
        _refuse_rows(where, texts, plain.all() | ~plain, rule, fix)
    return texts


def inputs(where: str, column: pd.Series) -> tuple[list[str], np.ndarray]:
    """The inputs that a column becomes, (n, k) float32, and their names.

    Numbers stay one column. Texts become one-hot columns, named `NAME=TEXT`, in sorted order.
    """
    import pandas as pd

    what = kind(where, column)
    if what in NUMBERS:
        return [str(column.name)], numbers(where, column).astype(np.float32)[:, None]
    texts = column.astype(str) if what == "category" else _texts(where, column)
    codes, levels = pd.factorize(texts, sort=True)
    rule = f"must hold at most {MOST_TEXTS} different texts, each of which becomes a one-hot column"
    fix = "leave it out with data.drop, or put numbers in its place"
    require(where, len(levels) <= MOST_TEXTS, rule, len(levels), fix)
    one_hot = np.eye(len(levels), dtype=np.float32)[codes]
    return [f"{column.name}={level}" for level in levels], one_hot


def clients(where: str, column: pd.Series) -> np.ndarray:
    """The client of each row, (n,): whole numbers or texts."""
    what = kind(where, column)
    if what == "float":
        numbers(where, column, "must be whole numbers or names")
    if what in ("float", "whole"):
        return np.asarray(column, np.int64)
    return np.asarray(column.astype(str), object)


# --- labels ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labels:
    """The targets of all rows, and what is known about them."""

    y: np.ndarray  # (n,) classes, or (n,) or (n, k) numbers
    note: str  # what was read, for the user
    classes: int | None = None
    names: tuple[str, ...] | None = None
    defaults: Mapping[str, Any] | None = None  # a loss and a metric that fit


def labels(
    table: str,
    columns: Sequence[pd.Series],
    task: Task | None = None,
    classes: int | None = None,
) -> Labels:
    """The targets, by the rules of docs/data.md.

    Args:
        table: what errors call the table.
        columns: one column is a class or a number, several are a vector.
        task: None to decide by the column.
        classes: their number, if labels are the numbers of classes.
    """
    column = columns[0]
    where = f"{table}: column {column.name!r}"
    what = kind(where, column)
    if classes is not None:
        rule = "is for one column of whole numbers, and not for regression"
        is_numbered = len(columns) == 1 and what in ("whole", "float") and task != "regression"
        require("data.classes", is_numbered, rule, classes, "leave it out")
    if len(columns) > 1:
        return _several(table, columns, task)
    if task == "regression" or (what == "float" and _is_measured(where, column, task)):
        require(where, what in NUMBERS, "must hold numbers for regression", str(column.iloc[0]))
        y = numbers(where, column)
        require(where, bool((y != y[0]).any()), "must not be the same in every row", y[0].item())
        note = f"{column.name}: numbers, for regression"
        return Labels(y.astype(np.float32), note, defaults=REGRESSION)
    if classes is None:
        return _classes(where, column, what, task)
    require("data.classes", classes >= 2, "must be >= 2", classes)
    wrong, rule = ~column.between(0, classes - 1), f"must be classes from 0 to {classes - 1}"
    _refuse_rows(where, column, wrong, rule, "leave data.classes out to count what is there")
    note = f"{column.name}: {classes} classes, numbered"
    return Labels(column.to_numpy(np.int64), note, classes)


def _is_measured(where: str, column: pd.Series, task: Task | None) -> bool:
    """Whether a column of floats holds measurements, and not classes that were written as floats."""
    values = numbers(where, column, "must be classes" if task == "classification" else "")
    if task == "classification":
        return False
    measured = bool((values != np.floor(values)).any()) or len(np.unique(values)) > MOST_TEXTS
    rule = "holds whole numbers written as floats, which may be classes or measurements"
    fix = "set data.task=classification or data.task=regression"
    require(where, measured, rule, values[0].item(), fix)
    return True


def _classes(where: str, column: pd.Series, what: str, task: Task | None) -> Labels:
    """Each different value is a class, in sorted order or in that of a categorical column."""
    import pandas as pd

    if what != "category":
        values = _texts(where, column, label=True) if what == "text" else column
        values = values.astype(np.int64) if what == "float" else values
        column = pd.Series(pd.Categorical(values), column.index, name=column.name)
    names = [str(name) for name in column.cat.categories]
    codes = column.cat.codes.to_numpy(np.int64)
    some = len(np.unique(codes)) > 1
    require(where, some, "must not be the same in every row", names[int(codes[0])])
    if len(names) > MOST_TEXTS and task is None:
        rule = f"has {len(names):,} different values, which may be too many for classes"
        fix = "set data.task=classification if they are classes"
        fix += ", data.task=regression if they are numbers" if what == "whole" else ""
        raise InputError(where, rule, fix=fix)
    note = f"{column.name}: {len(names)} classes ({join_some(names, SHOWN)})"
    return Labels(codes, note, len(names), tuple(names))


def _several(table: str, columns: Sequence[pd.Series], task: Task | None) -> Labels:
    """Several label columns: 0 and 1 for multi-label tasks, or numbers for regression."""
    parts = []
    for column in columns:
        where = f"{table}: column {column.name!r}"
        fix = "several label columns are numbers, or 0 and 1"
        is_numeric = kind(where, column) in NUMBERS
        require(where, is_numeric, "must hold numbers", str(column.iloc[0]), fix)
        parts.append(numbers(where, column))
        if task == "classification":
            wrong, rule = ~np.isin(parts[-1], (0, 1)), "must be 0 or 1, as one of several labels"
            _refuse_rows(where, column, wrong, rule)
    y = np.stack(parts, 1).astype(np.float32)
    names = join_some([str(c.name) for c in columns], SHOWN)
    if np.isin(y, (0, 1)).all() and task != "regression":
        return Labels(y, f"{len(columns)} labels of 0 and 1 ({names})", defaults=MULTI_LABEL)
    return Labels(y, f"{len(columns)} numbers, for regression ({names})", defaults=REGRESSION)
