"""The class × client heat map."""

import numpy as np
from matplotlib.figure import Figure

from fedskip.report import heatmap


def test_colours_begin_at_0():
    """So that 480 and 520 samples look alike, as they are."""
    axes = Figure().add_subplot()
    heatmap.paint(np.array([[480, 520]]), axes)
    assert axes.images[0].get_clim() == (0, 520)
