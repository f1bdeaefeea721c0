"""Curves to play with: what page.js, with Plotly, draws them from."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedskip.report.curves import NAMES, curves, shown
from fedskip.report.recorded import About
from fedskip.report.results import Results
from fedskip.report.series import Band
from fedskip.report.style import look
from fedskip.report.sweep import looked_at

HERE = Path(__file__).parent
DASHES = {"-": "solid", "--": "dash", "-.": "dashdot"}  # as Plotly calls them


def scripts() -> list[str]:
    """What a page needs to draw charts: Plotly, and what tells it what to draw."""
    return [(HERE / name).read_text(encoding="utf-8") for name in ("plotly-basic.min.js", "page.js")]


def charts(results: Results) -> str:
    """The numbers of all charts, as JSON that may stand in a page; empty where there are none."""
    drawn = [_chart(results, setting) for setting in looked_at(results) if results.labels(setting.name)]
    drawn = [chart for chart in drawn if chart["views"]]
    if not drawn:
        return ""
    return json.dumps({"across": NAMES, "charts": drawn}, separators=(",", ":")).replace("<", "\\u003c")


def _chart(results: Results, setting: About) -> dict[str, Any]:
    """One setting: how its methods look, and its lines by what they show."""
    methods = {label: look(label) for label in results.labels(setting.name)}
    views = {}
    for y in shown(setting):
        found = curves(results, setting, y)
        if found.lines:
            views[y] = {
                "name": found.name, "log": found.logarithmic, "limits": found.limits, "banded": found.banded,
                "note": "; ".join(found.notes), "references": found.references,
                "lines": {label: _line(band, found.banded) for label, band in found.lines.items()},
            }  # fmt: skip
    looks = {label: {"colour": one.colour, "dash": DASHES[one.line]} for label, one in methods.items()}
    return {"name": setting.name, "methods": looks, "views": views}


def _line(band: Band, banded: bool) -> dict[str, list[float]]:
    parts = {**band.across, "mean": band.mean} | ({"low": band.low, "high": band.high} if banded else {})
    return {name: _short(values) for name, values in parts.items()}


def _short(values: np.ndarray) -> list[float]:
    """With as many digits as a chart can show."""
    return [int(v) if v == int(v) else float(f"{v:.5g}") for v in map(float, values)]
