"""Tables in memory and as CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedskip.records.table import Table


@pytest.mark.parametrize(
    "rows",
    [
        [{"client": "ROMEO", "test_accuracy": 0.1 + 0.2}, {"client": "12", "test_accuracy": None}],
        [{"client": 0, "test_accuracy": 1e-300}, {"client": 12, "test_accuracy": True}],
        [{"run": "1e5", "seed": 7, "final": float("inf")}],
        [{"client": "nan", "seed": 1}],
        [],
    ],
    ids=["names", "numbers", "words", "odd names", "none"],
)
def test_a_table_is_read_back_as_it_was(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    table = Table(rows[0] if rows else ["client"], rows)
    (tmp_path / "t.csv").write_text(table.csv())
    assert Table.read(tmp_path / "t.csv").rows == rows


def test_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    table = Table(["run", "round"], [{"run": "a", "round": 1}, {"run": "b", "round": 2}])
    for cut in range(1, 4):
        (tmp_path / "t.csv").write_text(table.csv()[:-cut])
        assert Table.read(tmp_path / "t.csv").rows == table.rows[:1]
