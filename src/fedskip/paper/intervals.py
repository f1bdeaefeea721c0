"""Differences as a picture: rows of means with their intervals, around a line at 0."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fedskip.report.canvas import GREY
from fedskip.report.statistics import Difference
from fedskip.report.style import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDEST = 10.0  # points to each side; beyond, a number is written
SHARE = 0.7  # of the room of a row that its lines take
NOTE = "paired by seed; lines: Student's 95 % intervals"
Row = Mapping[str, Difference]  # by the name of a method, which has its colour


def draw(axes: Axes, rows: Mapping[str, Row]) -> None:
    """Draw rows of differences, in points, one below another under their names."""
    told = set[str]()  # a name is in the legend from where it is first drawn
    for number, row in enumerate(rows.values()):
        for name, y, found in _lines(number, row):
            _mark(axes, name, y, found, label=None if name in told else name)
            told.add(name)
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()


def fit(axes: Axes) -> None:
    """Let both sides have the same room."""
    most = min(WIDEST, 1.05 * max(map(abs, axes.dataLim.intervalx)))
    axes.set_xlim(-most, most)


def heights(number: int, names: Sequence[str]) -> dict[str, float]:
    """Where the lines of a row are."""
    return {name: number + SHARE * ((i + 0.5) / len(names) - 0.5) for i, name in enumerate(names)}


def _lines(number: int, row: Row) -> Iterator[tuple[str, float, Difference]]:
    """What there is to draw: nothing where a run diverged, of either method, or had another length."""
    for name, y in heights(number, list(row)).items():
        if row[name].mean is not None and not _lacks(row[name]):
            yield name, y, row[name]


def _lacks(found: Difference) -> bool:
    return bool(found.missing or found.unmatched)


def cautions(rows: Mapping[str, Row]) -> list[str]:
    """What a picture says of differences that it does not show, or not where they are."""
    every = [found for row in rows.values() for found in row.values()]
    far = any(found.mean is not None and not _lacks(found) and _far(100 * found.mean) for found in every)
    said = ["at the edge: further out"] * far
    return [*said, *["none where a run diverged, or lengths differ"] * any(map(_lacks, every))]


def _far(points: float) -> bool:
    return abs(points) > WIDEST


def _mark(axes: Axes, name: str, y: float, found: Difference, label: str | None) -> None:
    assert found.mean is not None
    seen, mean = look(name), 100 * found.mean
    at = math.copysign(WIDEST, mean) if _far(mean) else mean
    axes.plot(at, y, seen.marker, color=seen.colour, markersize=6, label=label, clip_on=False)
    if _far(mean):
        axes.annotate(
            f"{mean:+.1f}", (at, y), xytext=(9, 0), textcoords="offset points", va="center", fontsize=8,
            color=seen.colour, bbox={"fc": "white", "ec": "none", "pad": 1},
        )  # fmt: skip
    if found.low is not None and found.high is not None:
        axes.plot([100 * found.low, 100 * found.high], [y, y], color=seen.colour, linewidth=1.6)
