"""What a study records: one row per run and evaluation, one summary row per run."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedskip.files import write_text

Row = dict[str, Any]

HISTORY = (
    "setting", "run", "method", "period", "seed", "round", "merges", "test_accuracy", "test_loss",
    "val_accuracy", "slot_accuracy", "train_loss", "drift_mean", "drift_broadcast", "bytes_down", "bytes_up",
    "seconds", "x_broadcast_accuracy",
)  # fmt: skip
SUMMARY = (
    "setting", "run", "method", "period", "seed", "last", "best", "best_round", "mean_tail", "final",
    "rounds", "merges", "bytes_total", "diverged", "best_val", "full_test",
)  # fmt: skip
TAIL = 0.1  # the share of the rounds that `mean_tail` looks back on
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
        return Table(
            self.columns, (row for row in self.rows if all(row.get(k) == v for k, v in values.items()))
        )

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
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = [{k: v if k in _WORDS else _number(v) for k, v in row.items()} for row in reader]
            return cls(reader.fieldnames or (), rows)

    def __repr__(self) -> str:
        shown = [[_short(row.get(name)) for name in self.columns] for row in self.rows]
        widths = [max(map(len, col)) for col in zip(self.columns, *shown, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in [self.columns, *shown])

    def _repr_html_(self) -> str:
        def line(cells: Iterable[Any], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(line((_short(row.get(n)) for n in self.columns), "td") for row in self.rows)
        return f"<table>{line(self.columns, 'th')}{body}</table>"


class HistoryFile:
    """history.csv: rows are appended as they come, and cut back when a study resumes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table = Table(HISTORY)
        if path.exists():
            text = path.read_text(encoding="utf-8")
            if not text.endswith("\n"):  # a kill has cut the last line short
                write_text(path, text[: text.rfind("\n") + 1])
            self.table = Table.read(path)

    def append(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        if not self.path.exists():
            write_text(self.path, Table(HISTORY).csv())
        with self.path.open("a", newline="", encoding="utf-8") as file:
            file.write(Table(HISTORY, rows).csv().split("\n", 1)[1])
        self.table.rows += rows

    def sync(self) -> None:
        """Make sure that the disk has it all, so that no checkpoint is ever ahead of its history."""
        with self.path.open("a", encoding="utf-8") as file:
            os.fsync(file.fileno())

    def cut(self, setting: str, round: int) -> None:
        """Forget what a setting recorded after a round."""
        kept = [row for row in self.table if row["setting"] != setting or row["round"] <= round]
        self.table = Table(HISTORY, kept)
        write_text(self.path, self.table.csv())


def summarise(rows: Sequence[Row], *, rounds: int) -> Row:
    """What the history of one run comes to, if it was made for so many rounds."""
    last = rows[-1] if rows else {}
    scored = [row for row in rows if not math.isnan(row["test_accuracy"])]  # a metric may be undefined
    best = max(scored, key=lambda row: row["test_accuracy"], default={})
    tail = [row["test_accuracy"] for row in scored if row["round"] > (1 - TAIL) * rounds] or [
        last.get("test_accuracy")
    ]
    validated = [row for row in scored if row["val_accuracy"] is not None]
    chosen = max(validated, key=lambda row: row["val_accuracy"], default={})
    return {
        "last": last.get("test_accuracy"),
        "best": best.get("test_accuracy"),
        "best_round": best.get("round"),
        "mean_tail": float(np.mean(tail)) if rows else None,
        "rounds": last.get("round", 0),
        "merges": last.get("merges", 0),
        "bytes_total": last.get("bytes_down", 0) + last.get("bytes_up", 0),
        "best_val": chosen.get("test_accuracy"),
    }


def _text(value: Any) -> Any:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else value


def _number(text: str | None) -> Any:
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
