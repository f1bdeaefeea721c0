"""Axes to draw on, how they are finished, and figures as files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

from fedskip.input.errors import unknown
from fedskip.report.choices import FORMATS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (6.4, 4.0)  # inches
GREY = "#767676"
WIDE = 100  # characters of a note that fit above the axes and the legend


def new_axes(layout: Literal["constrained"] | None = "constrained") -> Axes:
    """Axes in a figure of their own. Without a layout they are drawn twice as fast, by `drawn`."""
    from matplotlib.figure import Figure  # half a second that only figures need

    axes = Figure(figsize=SIZE, layout=layout).add_subplot()
    axes._repr_png_ = partial(_in_a_notebook, axes)  # type: ignore[attr-defined]
    return axes


def _in_a_notebook(axes: Axes) -> tuple[bytes, dict[str, int]]:
    """What a cell shows that ends in axes: their picture, in few bytes."""
    return drawn(axes, "png", dpi=100), {"width": int(100 * SIZE[0]), "height": int(100 * SIZE[1])}


def finish(axes: Axes, title: str, notes: Sequence[str], *, legend: bool = True) -> Axes:
    below = wrap("; ".join(notes), WIDE)
    names = [axes.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=18 + 9 * len(below[1:]))]
    names.append(axes.text(0, 1.02, "\n".join(below), transform=axes.transAxes, fontsize=7, color=GREY))
    names += [axes.xaxis.label, axes.yaxis.label]
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.grid(alpha=0.25)
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            beside = axes.legend(
                handles, labels, fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5)
            )
            names += beside.get_texts()
    for name in names:  # of methods, settings, metrics: a dollar sign in them is no formula
        name.set_parse_math(False)
    return axes


def drawn(axes: Axes, form: str, dpi: int = 200) -> bytes:
    """The figure of some axes as a file: text stays text, and the same figure gives the same bytes."""
    from matplotlib import rc_context

    if form not in FORMATS:
        raise unknown("figures", form, FORMATS)
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[form]
    out = io.BytesIO()
    figure = axes.get_figure(root=True)
    assert figure is not None
    with rc_context({"svg.hashsalt": "fedskip", "svg.fonttype": "none", "pdf.fonttype": 42}):
        cut = "tight" if figure.get_layout_engine() is None else None  # to what is drawn
        figure.savefig(out, format=form, metadata=metadata, dpi=dpi, bbox_inches=cut)
    return out.getvalue()
