"""A table as a data set: which columns are inputs, label, client and test, and which rows are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskip.data import columns
from fedskip.data.base import Dataset
from fedskip.data.own import assemble
from fedskip.input.errors import InputError, require, unknown
from fedskip.input.fit import fit

if TYPE_CHECKING:
    import pandas as pd

WORDS = {"train": False, "test": True, "0": False, "1": True, "false": False, "true": True}  # of test columns


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are for."""

    label: list[str]
    features: list[str]
    client: str | None
    test: str | None

    @property
    def all(self) -> list[str]:
        """Those that must have a value in every row."""
        single = [name for name in (self.client, self.test) if name is not None]
        return list(dict.fromkeys([*self.features, *self.label, *single]))


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
    """The data set in a pandas DataFrame, a sample in each row.

    Args:
        label: the column to predict; several are several labels or numbers for each sample.
        client: the column that names the client of each row.
        features: the columns that are inputs; all others by default.
        drop: columns that are left out.
        test: the test rows: another table, or a column of train and test, 0 and 1 or false and true.
        test_fraction: of each client's rows that are for testing where `test` is not given, by the seed.
        task: `classification` or `regression`, where the label column does not tell.
        classes: their number, where labels are numbers from 0 on and some may be missing.
        gaps: `drop` leaves out rows with a gap, which are refused otherwise.
        standardize: inputs get mean 0 and standard deviation 1, by the training samples.
        where: what errors call the table.
    """
    table, roles = joined(frame, test, where, label, client, features, drop)
    table, notes = _whole(table, roles, gaps, where)
    found = columns.labels(where, [table[each] for each in roles.label], *check_task(task, classes))
    names, x = _inputs(table, roles.features, where)
    if constant := [names[i] for i in np.flatnonzero((x == x[0]).all(0))]:
        notes.append(f"the same in every row, so of no use: {columns.listed(constant)}")
    made = sum("=" in each and each not in roles.features for each in names)
    parts = f", of them {made} of 0 and 1 for texts" if made else ""
    about = f"{found.about}; {len(names)} inputs{parts}"
    return finished(
        table, roles, where, x, found, name=name, test_fraction=test_fraction,
        input_names=tuple(names), notes=(about, *notes), standardize=standardize,
    )  # fmt: skip


def joined(
    frame: pd.DataFrame,
    test: str | pd.DataFrame | None,
    where: str,
    label: str | Sequence[str] | None,
    client: str | None,
    features: Sequence[str] | None,
    drop: Sequence[str] | None,
) -> tuple[pd.DataFrame, Roles]:
    """The table with its test rows, and the roles of its columns.

    The index counts rows from 1, those of a test table from -1 down.
    """
    import pandas as pd

    table = _named(frame, where)
    tests = None if test is None or isinstance(test, str) else _named(test, f"the test table of {where}")
    column = None if tests is not None else test
    roles = _roles([*table.columns], where, label, client, column, features, drop)  # type: ignore[arg-type]
    table.index = pd.RangeIndex(1, len(table) + 1)
    if tests is None:
        return table[roles.all], roles
    needed = [each for each in roles.all if each != roles.client or each in roles.features]
    for each in needed:
        rule = f"must be a column of the test table of {where}, too"
        require("data.test", each in tests.columns, rule, each, "test rows have the columns of the others")
    tests.index = pd.RangeIndex(-1, -len(tests) - 1, -1)
    held = [*needed, *[each for each in [roles.client] if each in tests.columns and each not in needed]]
    for name in table.columns.intersection(tests.columns):
        if isinstance(table[name].dtype, pd.CategoricalDtype):  # categories keep the order of the table
            order = [*dict.fromkeys([*table[name].cat.categories, *tests[name].dropna()])]
            table[name], tests[name] = (pd.Categorical(one[name], order) for one in (table, tests))
    return pd.concat([table[roles.all], tests[held]]), roles


def _named(frame: Any, where: str) -> pd.DataFrame:
    """The table with texts for names, each of them once."""
    import pandas as pd

    fix = "give a pandas DataFrame"
    require(where, isinstance(frame, pd.DataFrame), "must be a table", type(frame).__name__, fix)
    require(where, len(frame) > 0, "has no rows")
    names = [str(name) for name in frame.columns]
    refuse_twice(where, names)
    return frame.set_axis(names, axis=1)


def refuse_twice(where: str, names: Sequence[str]) -> None:
    """Refuse a table of which two columns have one name."""
    for name, times in Counter(names).items():
        fix = "give each column a name of its own"
        require(where, times == 1, f"has {times} columns called {name!r}", fix=fix)


def _roles(
    known: list[str],
    where: str,
    label: str | Sequence[str] | None,
    client: str | None,
    test: str | None,
    features: Sequence[str] | None,
    drop: Sequence[str] | None,
) -> Roles:
    if label is None:
        fix = f"name one of its columns: {columns.listed(known)}"
        raise InputError("data.label", f"must name the column of {where} to predict", fix=fix)
    chosen = {
        field: _columns(field, value, known, where)
        for field, value in {
            "label": label, "client": client, "test": test, "features": features, "drop": drop,
        }.items()
    }  # fmt: skip
    for field in ("client", "test"):
        require(f"data.{field}", len(chosen[field]) <= 1, "must be one column", chosen[field])
    require("data.label", bool(chosen["label"]), "must name a column", label)
    fix = "keep one of the two"
    require("data.drop", features is None or drop is None, "cannot stand beside features", drop, fix)
    taken = {*chosen["label"], *chosen["test"]}
    for field in ("features", "drop", "client"):
        for name in chosen[field]:
            require(f"data.{field}", name not in taken, "must not be a column of label or test", name)
    apart = {*taken, *chosen["client"], *chosen["drop"]}
    inputs = chosen["features"] if features is not None else [name for name in known if name not in apart]
    require("data.features", bool(inputs), f"must leave a column of {where} to predict from", inputs)
    for name in inputs:
        if name.startswith("Unnamed: "):  # as pandas calls it
            rule = f"has a column without a name, {name!r}"
            fix = f"if these are row numbers, leave it out: data.drop=['{name}']; otherwise name it"
            raise InputError(where, rule, fix=fix)
    one = {field: chosen[field][0] if chosen[field] else None for field in ("client", "test")}
    return Roles(chosen["label"], inputs, one["client"], one["test"])


def _columns(field: str, given: Any, known: list[str], where: str) -> list[str]:
    """The columns that an option names."""
    names = [] if given is None else [given] if isinstance(given, str) else given
    rule = "must be the name of a column, or a list of them"
    proper = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    require(f"data.{field}", proper, rule, given, "write names in quotes that YAML takes for something else")
    for name in names:
        if name not in known:
            fix = unknown("", name, known).fix
            raise InputError(f"data.{field}", f"must be a column of {where}", name, fix)
        require(f"data.{field}", list(names).count(name) == 1, "names a column twice", name)
    return list(names)


def check_task(task: str | None, classes: int | None) -> tuple[str | None, int | None]:
    known = ("classification", "regression")
    require("data.task", task in (None, *known), f"must be {' or '.join(known)}", task)
    classes = fit("data.classes", classes, int | None)
    require("data.classes", classes is None or classes >= 2, "must be >= 2", classes)
    return task, classes


def _whole(table: pd.DataFrame, roles: Roles, gaps: str, where: str) -> tuple[pd.DataFrame, list[str]]:
    """The rows without gaps; refuses gaps unless rows with them are to be dropped."""
    require("data.gaps", gaps in ("refuse", "drop"), "must be refuse or drop", gaps)
    missing = table[roles.all].isna()
    if roles.client is not None and _nobody(table, roles.client):
        missing.loc[table.index < 0, roles.client] = False
    counts = missing.sum()
    broken = [name for name in roles.all if counts[name]]
    if not broken:
        return table, []
    if gaps == "drop":
        whole = ~missing.any(axis=1).to_numpy()
        for part, of in ((table.index > 0, where), (table.index < 0, f"the test table of {where}")):
            some = whole[part].any() or not part.any()
            require(of, bool(some), "has a gap in every row", fix="leave columns out with data.drop")
        kept = table[whole].infer_objects()  # true and false stay what they are
        return kept, [f"{len(table) - len(kept):,} of {len(table):,} rows have gaps and are left out"]
    name = broken[0]
    first = columns.row(table[name], missing[name].to_numpy())
    others = f"; {len(broken) - 1} more columns have gaps, too" if len(broken) > 1 else ""
    rule = f"has {counts[name]:,} gaps (empty or NA), the first in {first}{others}"
    fix = "fill them, leave the column out with data.drop, or its rows with data.gaps=drop"
    raise InputError(f"{where}: column {name!r}", rule, fix=fix)


def _nobody(table: pd.DataFrame, client: str) -> bool:
    """Whether the rows of a test table have no clients."""
    return bool(table[client][table.index < 0].isna().all())


def _inputs(table: pd.DataFrame, features: list[str], where: str) -> tuple[list[str], np.ndarray]:
    """The inputs of all rows, (n, k) float32, and their names."""
    made = [columns.inputs(f"{where}: column {name!r}", name, table[name]) for name in features]
    return [name for names, _ in made for name in names], np.concatenate([x for _, x in made], 1)


def finished(
    table: pd.DataFrame, roles: Roles, where: str, x: np.ndarray, found: columns.Labels, **about: Any
) -> Dataset:
    """The data set of inputs and labels that a table has, by its columns of clients and tests."""
    test = (table.index < 0).copy() if (table.index < 0).any() else None
    if roles.test is not None:
        test = _tests(f"{where}: column {roles.test!r}", table[roles.test])
    client = None
    if roles.client is not None:
        column = table[roles.client]
        named = column[table.index > 0] if _nobody(table, roles.client) else column
        client = columns.clients(f"{where}: column {roles.client!r}", named)
        trained = client if test is None else client[~test[: len(client)]]
        if len(np.unique(trained)) == 1:
            fix = "leave data.client out, and draw clients: partition=dirichlet, clients=10"
            rule = "must name at least two clients"
            raise InputError(f"{where}: column {roles.client!r}", rule, str(trained[0]), fix)
    return assemble(
        x=x, y=found.y, client=client, test=test, classes=found.classes, class_names=found.names,
        defaults=found.defaults, **about,
    )  # fmt: skip


def _tests(where: str, column: pd.Series) -> np.ndarray:
    """Which rows are for testing."""
    words = column.astype(str).str.lower().str.removesuffix(".0")
    wrong = ~words.isin(WORDS).to_numpy()
    if wrong.any():
        rule = (
            f"must hold train and test, 0 and 1 or false and true, and {columns.row(column, wrong)} does not"
        )
        raise InputError(where, rule, str(column[wrong].iloc[0]))
    test: np.ndarray = words.map(WORDS).to_numpy(bool)
    rule = "must have rows for training and rows for testing"
    require(where, bool(test.any() and not test.all()), rule, str(column.iloc[0]))
    return test
