"""The class × client heat map: how many samples of each class each client has (the paper's Figure 3)."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedskip.errors import InputError, option, shorten
from fedskip.files import write_bytes
from fedskip.report import FORMATS

MOST_NAMES, LONGEST = 30, 20  # names are shown for at most 30 classes, cut to 20 characters
MOST_NUMBERS = 200  # numbers are shown for at most so many cells


def draw(
    counts: np.ndarray, path: Path, title: str = "", names: Sequence[str] | None = None
) -> None:
    """Draw counts (C, N) to an .svg, .png or .pdf file; `names` are those of the classes."""
    from matplotlib.figure import Figure  # takes half a second to import

    refuse_other_suffix(path)
    classes, clients = counts.shape
    figure = Figure(
        figsize=(max(4.0, min(12.0, 1.6 + 0.45 * clients)), max(3.0, min(8.0, 1.2 + 0.3 * classes)))
    )
    axes = figure.add_subplot(title=title)
    paint(counts, axes, names)
    drawn = BytesIO()  # first to memory: a figure that fails leaves no file
    figure.savefig(drawn, format=path.suffix[1:], bbox_inches="tight", dpi=150)
    write_bytes(path, drawn.getvalue())


def refuse_other_suffix(path: Path) -> None:
    """Refuse a file whose format cannot be drawn."""
    if path.suffix.removeprefix(".") not in FORMATS:
        endings = ", ".join(f".{form}" for form in FORMATS)
        raise InputError(option("out"), f"must end in {endings}", str(path))


def paint(counts: np.ndarray, axes: Any, names: Sequence[str] | None = None) -> None:
    """Draw counts (C, N) into matplotlib axes, with a colour bar. `names`: of the classes."""
    axes.set(xlabel="client", ylabel="class")
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    if names is not None and len(names) <= MOST_NAMES:
        axes.set_yticks(range(len(names)), [shorten(name, LONGEST) for name in names])
    # colours start at 0, so that small differences between large numbers look small
    image = axes.imshow(counts, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
    axes.figure.colorbar(image, ax=axes, label="training samples")
    if counts.size <= MOST_NUMBERS:
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if count > counts.max() / 2 else "black"
            axes.text(column, row, str(count), ha="center", va="center", fontsize=6, color=colour)
