"""Tables, in memory and as CSV."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedskip.files import refuse_unreadable
from fedskip.input.errors import InputError

Row = dict[str, Any]

_WORDS = {"ended", "setting", "run", "method", "period"}
_WHOLE = {
    "seed", "round", "rounds", "merges", "best_round", "broke_round", "bytes_down", "bytes_up", "bytes_total",
    "broke_slot", "set_aside", "x_set_aside",
}  # fmt: skip
_RESTORE = "bring back the file as the study wrote it"


class Table(Sequence[Row]):
    """Rows with named columns, for a notebook or a file; `pandas()` where pandas is installed."""

    def __init__(self, columns: Iterable[str], rows: Iterable[Row] = ()) -> None:
        self.columns, self.rows = tuple(columns), list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def column(self, name: str) -> list[Any]:
        return [row.get(name) for row in self.rows]

    def where(self, **values: Any) -> Table:
        """The rows that have these values."""
        found = (row for row in self.rows if all(row.get(k) == v for k, v in values.items()))
        return Table(self.columns, found)

    def pandas(self) -> Any:
        """A pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=self.columns)

    def csv(self) -> str:
        """As text; numbers are written so that they read back exactly."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_text(row.get(name)) for name in self.columns] for row in self.rows)
        return out.getvalue()

    @classmethod
    def read(
        cls, path: Path, *, filled: Collection[str] = (), present: Collection[str] = (), whole: bool = False
    ) -> Table:
        """What `csv` gave; the order of its columns and how its lines end do not matter.

        A last line that a kill has cut short is left out; of a `whole` table it is an error. `filled`:
        columns that have a value in every row; `present`: columns that there must be.
        """
        return cls.parse(_decoded(path), path, filled, present, whole)

    @classmethod
    def parse(
        cls,
        text: str,
        path: Path,
        filled: Collection[str] = (),
        present: Collection[str] = (),
        whole: bool = False,
    ) -> Table:
        """The table of a text, as `read` does it; `path` is for errors."""
        end = text.rfind("\n") + 1
        if whole and end < len(text):
            raise InputError(str(path), "ends in the middle of a line", fix=_RESTORE)
        lines = _lines(path, text[:end])
        _, columns = lines[0]
        if lacking := sorted({*filled, *present} - set(columns)):
            raise InputError(str(path), f"lacks the column {lacking[0]}", fix=_RESTORE)
        at = columns.index("client") if "client" in columns else None
        numbered = at is None or all(cells[at].isdecimal() for _, cells in lines[1:])
        words = _WORDS if numbered else {*_WORDS, "client"}  # which may have names
        rows = []
        for number, cells in lines[1:]:
            row = dict(zip(columns, cells, strict=True))
            where = f"{path} line {number}"
            rows.append({k: v if k in words else _value(where, k, v) for k, v in row.items()})
            if empty := [name for name in filled if row[name] == ""]:
                raise InputError(where, f"has nothing in column {empty[0]}", fix=_RESTORE)
        return cls(columns, rows)

    def __repr__(self) -> str:
        shown = [[_short(row.get(name)) for name in self.columns] for row in self.rows]
        widths = [max(map(len, col)) for col in zip(self.columns, *shown, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in [self.columns, *shown])

    def _repr_html_(self) -> str:
        def line(cells: Iterable[Any], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(line((_short(row.get(n)) for n in self.columns), "td") for row in self.rows)
        return f"<table>{line(self.columns, 'th')}{body}</table>"


def _text(value: Any) -> Any:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else value


def _decoded(path: Path) -> str:
    refuse_unreadable(str(path), path)
    try:
        return path.read_text(encoding="utf-8-sig")  # spreadsheets begin with a mark
    except UnicodeDecodeError as error:
        rule = f"is not a text in UTF-8 (byte {error.start})"
        raise InputError(str(path), rule, fix=_RESTORE) from None


def _lines(path: Path, text: str) -> list[tuple[int, list[str]]]:
    """The cells of every line that has any, with its number; the names of the columns come first."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        where = f"{path} line {reader.line_num}"
        raise InputError(where, f"cannot be read ({error})", fix=_RESTORE) from None
    if not lines:
        raise InputError(str(path), "is empty: not even its columns have names", fix=_RESTORE)
    columns = lines[0][1]
    if len(columns) == 1 and (apart := {";", "\t"} & set(columns[0])):
        mark = "semicolons" if ";" in apart else "tabs"
        raise InputError(str(path), f"has {mark} where commas should be", fix=_RESTORE)
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise InputError(str(path), "has a column twice", twice[0], _RESTORE)
    for number, cells in lines:
        if len(cells) != len(columns):
            rule = f"must have {len(columns)} cells, as the first line has"
            raise InputError(f"{path} line {number}", rule, len(cells), _RESTORE)
    return lines


def _value(where: str, column: str, text: str) -> Any:
    if not text:
        return None
    if text.title() in ("True", "False") and column not in _WHOLE:
        return text.title() == "True"
    try:
        if "_" in text:
            raise ValueError  # Python would take it
        return int(text) if column in _WHOLE or text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        kind = "a whole number" if column in _WHOLE else "a number"
        raise InputError(where, f"must have {kind} in column {column}", text, _RESTORE) from None


def _short(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) and math.isfinite(value) else str(value)
