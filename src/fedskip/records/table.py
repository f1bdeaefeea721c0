"""The CSV files of a study, exactly: numbers read back as they were written.

A damaged file is refused with its line and column. Results hold the same tables as pandas DataFrames (`Table.frame`).
"""

from __future__ import annotations

import csv
import io
import lzma
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskip.errors import InputError
from fedskip.files import refuse_unreadable

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]

_NUMBER = re.compile("0|[1-9][0-9]*")  # `01` is a name
TEXTS = {"ended", "setting", "run", "method", "period"}  # columns that hold text
WHOLE = {
    "seed", "round", "rounds", "merges", "best_round", "broke_round", "bytes_down", "bytes_up", "bytes_total",
    "broke_client", "broke_slot", "set_aside", "x_set_aside",
}  # columns that hold whole numbers  # fmt: skip
MOST_BYTES = 2**32  # bytes of a table, unpacked
RESTORE = "bring back the file as the study wrote it"


class Table(list[Row]):
    """Rows under named columns."""

    def __init__(self, columns: Iterable[str], rows: Iterable[Row] = ()) -> None:
        super().__init__(rows)
        self.columns = tuple(columns)

    def column(self, name: str) -> list[Any]:
        return [row.get(name) for row in self]

    def where(self, **values: Any) -> Table:
        """The rows that have these values."""
        rows = (row for row in self if all(row.get(k) == v for k, v in values.items()))
        return Table(self.columns, rows)

    def frame(self) -> pd.DataFrame:
        """The same as a DataFrame. Gaps are NaN, or NA among whole numbers."""
        import pandas as pd

        return pd.DataFrame({name: _series(name, self.column(name)) for name in self.columns})

    def csv(self) -> str:
        """As text; numbers are written so that they read back exactly."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self:
            cells = [row.get(name) for name in self.columns]
            writer.writerow([repr(cell) if isinstance(cell, float) else cell for cell in cells])
        return out.getvalue()

    @classmethod
    def read(cls, path: Path, **rules: Any) -> Table:
        """Read what `csv` wrote, also compressed (.xz); `rules`: see `parse`."""
        refuse_unreadable(str(path), path)
        try:
            with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
            text = content.decode("utf-8-sig")  # spreadsheets begin with a byte order mark
        except (lzma.LZMAError, EOFError) as error:
            raise InputError(str(path), f"cannot be unpacked ({error})", fix=RESTORE) from None
        except UnicodeDecodeError as error:
            rule = f"is not a text in UTF-8 (byte {error.start})"
            raise InputError(str(path), rule, fix=RESTORE) from None
        if len(content) > MOST_BYTES:
            raise InputError(str(path), f"must hold at most {MOST_BYTES:,} bytes")
        return cls.parse(text, path, **rules)

    @classmethod
    def parse(
        cls,
        text: str,
        path: Path,
        *,
        filled: Collection[str] = (),
        present: Collection[str] = (),
        whole: bool = False,
    ) -> Table:
        """Read a table from text. Column order and line endings do not matter.

        Args:
            path: for errors.
            filled: columns that need a value in every row.
            present: columns that must exist.
            whole: refuse a last line that a kill has cut short; else it is left out.
        """
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        end = text.rfind("\n") + 1
        if whole and end < len(text):
            raise InputError(str(path), "ends in the middle of a line", fix=RESTORE)
        (_, columns), *lines = _lines(path, text[:end])
        if lacking := sorted({*filled, *present} - set(columns)):
            raise InputError(str(path), f"lacks the column {lacking[0]}", fix=RESTORE)
        at = columns.index("client") if "client" in columns else None
        named = at is not None and not all(_NUMBER.fullmatch(cells[at]) for _, cells in lines)
        texts = TEXTS | {"client"} if named else TEXTS
        rows = []
        for number, cells in lines:
            where, row = f"{path} line {number}", dict(zip(columns, cells, strict=True))
            if empty := [name for name in filled if not row[name]]:
                raise InputError(where, f"has nothing in column {empty[0]}", fix=RESTORE)
            rows.append({k: v if k in texts else _value(where, k, v) for k, v in row.items()})
        return cls(columns, rows)


def to_rows(frame: pd.DataFrame) -> list[Row]:
    """The rows of a DataFrame, with None in the place of NaN and NA."""
    rows: list[Row] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def _series(name: str, values: list[Any]) -> pd.Series:
    """A column with the type that its name tells."""
    import pandas as pd

    gaps = any(value is None for value in values)
    if name in TEXTS:
        return pd.Series(["" if value is None else str(value) for value in values], dtype="str")
    if name in WHOLE:
        if any(value is not None and abs(value) >= 2**63 for value in values):  # a seed
            return pd.Series(values, dtype="object")
        return pd.Series(values, dtype="Int64" if gaps else "int64")
    if name == "diverged":
        return pd.Series(values, dtype="boolean" if gaps else "bool")
    return pd.Series(values) if name == "client" else pd.Series(values, dtype="float64")


def _lines(path: Path, text: str) -> list[tuple[int, list[str]]]:
    """The number and cells of every line that has any; the names of the columns come first."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        where = f"{path} line {reader.line_num}"
        raise InputError(where, f"cannot be read ({error})", fix=RESTORE) from None
    if not lines:
        raise InputError(str(path), "is empty: not even its columns have names", fix=RESTORE)
    columns = lines[0][1]
    if len(columns) == 1 and (apart := {";", "\t"} & set(columns[0])):
        mark = "semicolons" if ";" in apart else "tabs"
        raise InputError(str(path), f"has {mark} where commas should be", fix=RESTORE)
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise InputError(str(path), "has a column twice", twice[0], RESTORE)
    for number, cells in lines:
        if len(cells) != len(columns):
            rule = f"must have {len(columns)} cells, as the first line has"
            raise InputError(f"{path} line {number}", rule, len(cells), RESTORE)
    return lines


def _value(where: str, column: str, text: str) -> Any:
    if not text:
        return None
    if text.title() in ("True", "False") and column not in WHOLE:
        return text.title() == "True"
    try:
        if "_" in text:
            raise ValueError  # Python would take it
        return int(text) if column in WHOLE or text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        kind = "a whole number" if column in WHOLE else "a number"
        raise InputError(where, f"must have {kind} in column {column}", text, RESTORE) from None
