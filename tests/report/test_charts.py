"""What page.js draws from."""

from __future__ import annotations

import json
from pathlib import Path

from fedskip.report.charts import charts, scripts
from fedskip.report.style import look
from studies import curve, recorded, run


def test_numbers_looks_and_notes(tmp_path: Path) -> None:
    odd = "</script><b>"
    rows = [
        *curve("FedAvg", 0, {1: 0.25, 2: 0.5}),
        *curve("FedAvg", 1, {1: 0.75, 2: 0.5}),
        *curve(odd, 0, {2: 1 / 3}),
    ]
    runs = [run("FedAvg", 0, 0.5), run("FedAvg", 1, 0.5), run(odd, 0, 0.5)]
    text = charts(recorded(tmp_path, runs, rows=rows))
    assert "<" not in text, "it stands in a page"
    data = json.loads(text)
    [chart] = data["charts"]
    assert chart["methods"]["FedAvg"] == {"colour": look("FedAvg").colour, "dash": "solid"}
    view = chart["views"]["test_accuracy"]
    assert (view["name"], view["log"], view["banded"]) == ("test accuracy (%)", False, True)
    line = view["lines"]["FedAvg"]
    assert (line["round"], line["merges"], line["mean"]) == ([1, 2], [1, 2], [50, 50])
    assert (line["low"], line["high"]) == ([25, 50], [75, 50])
    assert view["lines"][odd]["mean"] == [33.333]
    assert chart["views"]["drift_mean"]["log"] is True
    assert "slot_accuracy" not in chart["views"], "it was not measured"


def test_every_line_has_a_dash(tmp_path: Path) -> None:
    """Of methods, of those that skip, and of rules for the period."""
    labels = {"FedAvg": "solid", "FedSkip-5": "solid", "SCAFFOLD+skip-5": "dash", "FedSkip-1x10,5": "dashdot"}
    rows = [row for label in labels for row in curve(label, 0, {1: 0.25, 2: 0.5})]
    text = charts(recorded(tmp_path, [run(label, 0, 0.5) for label in labels], rows=rows))
    [chart] = json.loads(text)["charts"]
    assert {label: look["dash"] for label, look in chart["methods"].items()} == labels


def test_nothing_to_draw(tmp_path: Path) -> None:
    assert charts(recorded(tmp_path, [run("FedAvg", 0, 0.5)])) == ""


def test_the_scripts_are_in_the_package_and_may_stand_in_a_page() -> None:
    plotly, ours = scripts()
    assert "plotly.js" in plotly[:100]
    assert "MIT" in plotly[:200]
    for script in (plotly, ours):
        assert "</script" not in script
