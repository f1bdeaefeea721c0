"""Makes a data set from a table: which columns are inputs, label, client and test, and what of gaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskip.data import table_columns
from fedskip.data.build import build_dataset
from fedskip.data.dataset import Dataset
from fedskip.errors import InputError, require, unknown
from fedskip.parsing import fit

if TYPE_CHECKING:
    import pandas as pd

TASKS = ("classification", "regression")
IS_TEST = {"train": False, "test": True, "0": False, "1": True, "false": False, "true": True}


def from_frame(
    frame: pd.DataFrame,
    *,
    label: str | Sequence[str] | None = None,
    client: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] | None = None,
    test: str | pd.DataFrame | None = None,
    test_fraction: float = 0.1,
    task: str | None = None,
    classes: int | None = None,
    gaps: str = "refuse",
    standardize: bool = False,
    name: str = "frame",
    where: str = "the frame",
) -> Dataset:
    """Make a data set from a pandas DataFrame with a sample in each row.

    Args:
        frame: the table.
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
        standardize: give inputs mean 0 and standard deviation 1, by the training samples.
        name: of the data set.
        where: what errors call the table.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [61, 34, 45], "sex": ["f", "m", "f"], "ill": [1, 0, 1]})
    >>> data = from_frame(frame, label="ill")
    >>> data.input_names, data.samples.x[0].tolist()
    (('age', 'sex=f', 'sex=m'), [61.0, 1.0, 0.0])
    """
    table, roles = join_tables(frame, test, where, label, client, features, drop)
    table, notes = _without_gaps(table, roles, gaps, where)
    task, classes = check_task(task, classes)
    labels = table_columns.labels(where, [table[name] for name in roles.label], task, classes)
    parts = [
        table_columns.inputs(f"{where}: column {name!r}", name, table[name])
        for name in roles.features
    ]
    names = [name for names, _ in parts for name in names]
    x = np.concatenate([x for _, x in parts], 1)
    one_hot = sum("=" in name and name not in roles.features for name in names)
    details = f" ({one_hot} one-hot columns from texts)" if one_hot else ""
    notes.insert(0, f"{labels.note}; {len(names)} inputs{details}")
    if constant := [names[i] for i in np.flatnonzero((x == x[0]).all(0))]:
        listed = table_columns.listed(constant)
        notes.append(f"the same in every row, so of no use: {listed}")
    return build_from_columns(
        table, roles, where, x, labels, name=name, test_fraction=test_fraction,
        input_names=tuple(names), notes=tuple(notes), standardize=standardize,
    )  # fmt: skip


def check_task(task: str | None, classes: Any) -> tuple[str | None, int | None]:
    """The options `task` and `classes`, if they are valid."""
    require("data.task", task in (None, *TASKS), f"must be {' or '.join(TASKS)}", task)
    classes = fit("data.classes", classes, int | None)
    require("data.classes", classes is None or classes >= 2, "must be >= 2", classes)
    return task, classes


# --- roles of columns -----------------------------------------------------------------------------


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


def _roles(columns: list[str], where: str, **given: Any) -> Roles:
    """The roles that the options `label`, `client`, `test`, `features` and `drop` give to columns."""
    if given["label"] is None:
        fix = f"name one of its columns: {table_columns.listed(columns)}"
        raise InputError("data.label", f"must name the column of {where} to predict", fix=fix)
    chosen = {field: _named_columns(field, v, columns, where) for field, v in given.items()}
    for field in ("client", "test"):
        require(f"data.{field}", len(chosen[field]) <= 1, "must be one column", chosen[field])
    require("data.label", bool(chosen["label"]), "must name a column", given["label"])
    both = given["features"] is not None and given["drop"] is not None
    rule = "cannot stand beside features"
    require("data.drop", not both, rule, given["drop"], "keep one of the two")
    taken = {*chosen["label"], *chosen["test"]}
    for field in ("features", "drop", "client"):
        for name in chosen[field]:
            rule = "must not be a column of label or test"
            require(f"data.{field}", name not in taken, rule, name)
    features = chosen["features"]
    if given["features"] is None:
        others = {*taken, *chosen["client"], *chosen["drop"]}
        features = [name for name in columns if name not in others]
    rule = f"must leave a column of {where} to predict from"
    require("data.features", bool(features), rule, features)
    for name in features:
        if name.startswith("Unnamed: "):  # pandas names a column without a name
            fix = f"if these are row numbers, leave it out: data.drop=['{name}']; otherwise name it"
            raise InputError(where, f"has a column without a name, {name!r}", fix=fix)
    client, test = (next(iter(chosen[field]), None) for field in ("client", "test"))
    return Roles(chosen["label"], features, client, test)


def _named_columns(field: str, given: Any, columns: list[str], where: str) -> list[str]:
    """The columns that an option names, as a list."""
    names = [] if given is None else [given] if isinstance(given, str) else given
    is_names = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    rule = "must be the name of a column, or a list of them"
    fix = "write names in quotes that YAML takes for something else"
    require(f"data.{field}", is_names, rule, given, fix)
    for name in names:
        if name not in columns:
            fix = unknown("", name, columns).fix
            raise InputError(f"data.{field}", f"must be a column of {where}", name, fix)
        require(f"data.{field}", list(names).count(name) == 1, "names a column twice", name)
    return list(names)


# --- rows -----------------------------------------------------------------------------------------


def join_tables(
    frame: pd.DataFrame,
    test: str | pd.DataFrame | None,
    where: str,
    label: str | Sequence[str] | None,
    client: str | None,
    features: Sequence[str] | None,
    drop: Sequence[str] | None,
) -> tuple[pd.DataFrame, Roles]:
    """The used columns of a table and its test table, one below the other, and their roles.

    The index counts the rows of the table from 1, and those of the test table from -1 down.
    """
    import pandas as pd

    table, has_table = _checked(frame, where), not (test is None or isinstance(test, str))
    column = None if has_table else test
    roles = _roles(
        [*table.columns], where,
        label=label, client=client, test=column, features=features, drop=drop,
    )  # fmt: skip
    table.index = pd.RangeIndex(1, len(table) + 1)
    if not has_table:
        return table[roles.all], roles
    tests = _checked(test, f"the test table of {where}")
    # a test table may leave out the clients: then its rows are everyone's
    needed = [name for name in roles.all if name != roles.client or name in roles.features]
    for name in needed:
        rule = f"must be a column of the test table of {where}, too"
        fix = "test rows have the columns of the others"
        require("data.test", name in tests.columns, rule, name, fix)
    tests.index = pd.RangeIndex(-1, -len(tests) - 1, -1)
    for name in table.columns.intersection(tests.columns):
        if isinstance(table[name].dtype, pd.CategoricalDtype):  # keep the order of its categories
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


def _without_gaps(
    table: pd.DataFrame, roles: Roles, gaps: str, where: str
) -> tuple[pd.DataFrame, list[str]]:
    """The rows without gaps, and a note on those left out; gaps are refused unless `gaps` is drop."""
    require("data.gaps", gaps in ("refuse", "drop"), "must be refuse or drop", gaps)
    missing = table.isna()
    if roles.client is not None and _tests_lack_clients(table, roles.client):
        missing.loc[table.index < 0, roles.client] = False
    counts = missing.sum()
    broken = [name for name in roles.all if counts[name]]
    if not broken:
        return table, []
    if gaps == "drop":
        whole = ~missing.any(axis=1).to_numpy()
        for rows, of in ((table.index > 0, where), (table.index < 0, f"the test table of {where}")):
            some_left = bool(whole[rows].any()) or not rows.any()
            fix = "leave columns out with data.drop"
            require(of, some_left, "has a gap in every row", fix=fix)
        kept = table[whole].infer_objects()  # without gaps, true and false are booleans again
        left_out = len(table) - len(kept)
        return kept, [f"{left_out:,} of {len(table):,} rows have gaps and are left out"]
    name = broken[0]
    first = table_columns.row(table[name], missing[name].to_numpy())
    others = f"; {len(broken) - 1} more columns have gaps, too" if len(broken) > 1 else ""
    rule = f"has {counts[name]:,} gaps (empty or NA), the first in {first}{others}"
    fix = "fill them, leave the column out with data.drop, or its rows with data.gaps=drop"
    raise InputError(f"{where}: column {name!r}", rule, fix=fix)


def _tests_lack_clients(table: pd.DataFrame, client: str) -> bool:
    """Whether no row of the test table names a client; also true without a test table."""
    return bool(table[client][table.index < 0].isna().all())


# --- the data set ---------------------------------------------------------------------------------


def build_from_columns(
    table: pd.DataFrame,
    roles: Roles,
    where: str,
    x: np.ndarray,
    labels: table_columns.Labels,
    **fields: Any,
) -> Dataset:
    """Build a data set of inputs and labels, with the clients and the test rows of a table."""
    is_test_row = np.array(table.index < 0)
    test = is_test_row if is_test_row.any() else None
    if roles.test is not None:
        test = _test_rows(f"{where}: column {roles.test!r}", table[roles.test])
    client = None
    if roles.client is not None:
        column, name = table[roles.client], f"{where}: column {roles.client!r}"
        if _tests_lack_clients(table, roles.client):
            column = column[table.index > 0]
        client = table_columns.clients(name, column)
        trained = client if test is None else client[~test[: len(client)]]
        if len(np.unique(trained)) == 1:
            fix = "leave data.client out, and draw clients: partition=dirichlet, clients=10"
            raise InputError(name, "must name at least two clients", str(trained[0]), fix)
    return build_dataset(
        x=x, y=labels.y, client=client, test=test, classes=labels.classes,
        class_names=labels.names, defaults=labels.defaults, **fields,
    )  # fmt: skip


def _test_rows(where: str, column: pd.Series) -> np.ndarray:
    """Which rows a column of train and test marks for testing, (n,)."""
    words = column.astype(str).str.lower().str.removesuffix(".0")
    wrong = ~words.isin(IS_TEST).to_numpy()
    if wrong.any():
        rule = "must hold train and test, 0 and 1 or false and true"
        rule += f", and {table_columns.row(column, wrong)} does not"
        raise InputError(where, rule, str(column[wrong].iloc[0]))
    test: np.ndarray = words.map(IS_TEST).to_numpy(bool)
    rule = "must have rows for training and rows for testing"
    require(where, bool(test.any() and not test.all()), rule, str(column.iloc[0]))
    return test
