"""Axes to draw into, their title, notes and legend, and figures as files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from fedskip.errors import unknown
from fedskip.report.choices import FORMATS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (6.4, 4.0)  # inches
GREY = "#767676"
WIDTH = 100  # characters of a note that fit above the axes and the legend


def new_axes(layout: Literal["constrained"] | None = "constrained") -> Axes:
    """Axes in a figure of their own. Without a layout they are drawn twice as fast, by `to_bytes`."""
    from matplotlib.figure import Figure  # half a second that only figures need

    axes = Figure(figsize=SIZE, layout=layout).add_subplot()
    axes._repr_png_ = partial(_for_a_notebook, axes)  # type: ignore[attr-defined]
    return axes


def _for_a_notebook(axes: Axes) -> tuple[bytes, dict[str, int]]:
    """The picture of axes at the end of a cell, in few bytes."""
    return to_bytes(axes, "png", dpi=100), {
        "width": int(100 * SIZE[0]),
        "height": int(100 * SIZE[1]),
    }


def finish(axes: Axes, title: str, notes: Sequence[str], *, legend: bool = True) -> Axes:
    """Add a title, notes below it, and a legend beside the axes."""
    lines = [line for packed in _packed(notes) for line in wrap(packed, WIDTH)]
    pad = 18 + 9 * len(lines[1:])
    texts = [axes.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=pad)]
    note = "\n".join(lines)
    texts.append(axes.text(0, 1.02, note, transform=axes.transAxes, fontsize=7, color=GREY))
    texts += [axes.xaxis.label, axes.yaxis.label]
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.grid(alpha=0.25)
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
            beside = axes.legend(handles, labels, fontsize=8, frameon=False, **place)
            texts += beside.get_texts()
    for text in texts:  # a dollar sign in the name of a method or setting is no formula
        text.set_parse_math(False)
    return axes


def _packed(notes: Sequence[str]) -> list[str]:
    """Notes in lines, each as many as fit."""
    lines: list[str] = []
    for note in notes:
        if lines and len(lines[-1]) + len(note) + 2 <= WIDTH:
            lines[-1] += f"; {note}"
        else:
            lines.append(note)
    return lines


def to_bytes(axes: Axes, form: str, dpi: int = 200) -> bytes:
    """The figure of some axes as a file: text stays text, and the same figure gives the same bytes."""
    from matplotlib import rc_context

    if form not in FORMATS:
        raise unknown("figures", form, FORMATS)
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[form]
    out = io.BytesIO()
    figure = axes.get_figure(root=True)
    assert figure is not None
    style: Any = {"svg.hashsalt": "fedskip", "svg.fonttype": "none", "pdf.fonttype": 42}
    with rc_context(style | {"font.sans-serif": ["DejaVu Sans"]}):
        cut = "tight" if figure.get_layout_engine() is None else None  # to what is drawn
        figure.savefig(out, format=form, metadata=metadata, dpi=dpi, bbox_inches=cut)
    return out.getvalue()
