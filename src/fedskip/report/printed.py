"""DataFrames that print their numbers with units, such as `82.7 %` and `4.77 MB`."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedskip.report.tables import NONE, size


class Printed(pd.DataFrame):  # type: ignore[misc]
    """The values stay numbers, and all columns are shown. What is made from it is a plain DataFrame.

    `attrs["percent"]`: by setting, whether scores are shares.
    """

    def __repr__(self) -> str:
        return str(self._texts().to_string(index=False))

    def _repr_html_(self) -> str:
        with pd.option_context("display.max_colwidth", None):
            return str(self._texts().to_html(index=False))

    def _texts(self) -> pd.DataFrame:
        percent = self.attrs["percent"]
        return pd.DataFrame([
            {name: _text(name, value, percent.get(row["setting"], False)) for name, value in row.items()}
            for row in self.to_dict("records")
        ], columns=self.columns)  # fmt: skip


def _text(column: str, value: Any, percent: bool) -> str:
    if isinstance(value, str):
        return value
    if value != value:
        return NONE
    if column.startswith("bytes"):
        return size(value)
    if percent and column in ("mean", "target"):
        return f"{100 * value:.1f} %"
    if percent and column in ("difference", "low", "high"):
        return f"{100 * value:+.1f} points"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
