"""Tables and figures of a check: as files in a folder, and to print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from fedskip.files import write_bytes, write_text
from fedskip.records.table import Table
from fedskip.report.canvas import drawn
from fedskip.report.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write(out: Path, tables: Mapping[str, Table], figures: Mapping[str, Axes]) -> None:
    """NAME.csv for each table, NAME.svg for each figure."""
    for name, table in tables.items():
        write_text(out / f"{name}.csv", table.csv())
    for name, axes in figures.items():
        write_bytes(out / f"{name}.svg", drawn(axes, "svg"))


def sheet(title: str, table: Table, shown: Mapping[str, str], names: int = 1) -> Sheet:
    """Some columns of a table under their headers, numbers with four digits; the first ones name a row."""

    def cell(value: object) -> Text:
        return Text("" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value))

    rows = [[cell(row.get(name)) for name in shown] for row in table]
    return Sheet(title, list(shown.values()), names, rows)
