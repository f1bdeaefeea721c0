"""Tables, in memory and as CSV."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_WORDS = {"setting", "run", "method", "period"}


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
    def read(cls, path: Path) -> Table:
        """What `csv` gave. A last line that a kill has cut short is left out."""
        text = path.read_text(encoding="utf-8")
        reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
        lines = list(reader)
        numbered = all(line["client"].isdecimal() for line in lines if "client" in line)
        words = _WORDS if numbered else {*_WORDS, "client"}  # which may have names
        rows = [{k: v if k in words else _value(v) for k, v in line.items()} for line in lines]
        return cls(reader.fieldnames or (), rows)

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


def _value(text: str | None) -> Any:
    if not text:
        return None
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)


def _short(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) and math.isfinite(value) else str(value)
