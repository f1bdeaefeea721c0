"""Who has how much of what: the class × client heat map, Figure 3 of the paper."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedskip.data.partitions import Partition
from fedskip.files import write_bytes
from fedskip.input.errors import InputError, option, short

FORMATS = (".svg", ".png", ".pdf")
MOST_NAMES, LONGEST = 30, 20  # classes up to which each shows its name, of so many characters
MOST_NUMBERS = 200  # cells up to which each shows its number


def class_counts(partition: Partition, labels: np.ndarray, classes: int) -> np.ndarray:
    """Training samples of each class and client, (C, N). labels (n,) are those of the whole pool."""
    client = np.repeat(np.arange(len(partition)), partition.sizes)
    cell = labels[partition.indices].astype(np.int64) * len(partition) + client
    return np.bincount(cell, minlength=classes * len(partition)).reshape(classes, len(partition))


def draw(counts: np.ndarray, path: Path, title: str = "", names: Sequence[str] | None = None) -> None:
    """Draw counts (C, N) to a file whose ending says its format; `names` are those of the classes."""
    from matplotlib.figure import Figure  # half a second that only this needs

    refuse_other_suffix(path)
    classes, clients = counts.shape
    figure = Figure(
        figsize=(max(4.0, min(12.0, 1.6 + 0.45 * clients)), max(3.0, min(8.0, 1.2 + 0.3 * classes)))
    )
    axes = figure.add_subplot(title=title)
    paint(counts, axes)
    if names is not None and len(names) <= MOST_NAMES:
        axes.set_yticks(range(len(names)), [short(name, LONGEST) for name in names])
    drawn = BytesIO()  # a figure that cannot be drawn leaves no file
    figure.savefig(drawn, format=path.suffix[1:], bbox_inches="tight", dpi=150)
    write_bytes(path, drawn.getvalue())


def refuse_other_suffix(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise InputError(option("out"), f"must end in {', '.join(FORMATS)}", str(path))


def paint(counts: np.ndarray, axes: Any) -> None:
    """Paint counts (C, N) into matplotlib's axes, with a scale beside them."""
    axes.set(xlabel="client", ylabel="class")
    # from 0, so that small differences between large numbers look small
    image = axes.imshow(counts, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
    axes.figure.colorbar(image, ax=axes, label="training samples")
    if counts.size <= MOST_NUMBERS:
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if count > counts.max() / 2 else "black"
            axes.text(column, row, str(count), ha="center", va="center", fontsize=6, color=colour)
