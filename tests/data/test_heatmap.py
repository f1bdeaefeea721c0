"""How many samples of a class a client has."""

from types import SimpleNamespace

import numpy as np
from matplotlib.figure import Figure

from fedskip.data import heatmap
from fedskip.data.partitions import Partition


def test_class_counts_by_hand():
    parts = Partition(np.array([0, 3, 1, 2, 4]), np.array([0, 2, 5]))
    counts = heatmap.class_counts(parts, np.array([0, 2, 2, 1, 0], np.uint8), classes=4)
    assert counts.tolist() == [[1, 1], [1, 0], [0, 2], [0, 0]]


def test_colours_begin_at_0():
    """So that 480 and 520 samples look alike, as they are."""
    axes = Figure().add_subplot()
    heatmap.paint(np.array([[480, 520]]), axes)
    assert axes.images[0].get_clim() == (0, 520)


def test_a_table_of_samples_by_hand(monkeypatch):
    parts = Partition(np.array([0, 3, 1, 2, 4]), np.array([0, 2, 5]))
    samples = SimpleNamespace(labels=lambda: np.array([0, 1, 1, 1, 0]))
    data = SimpleNamespace(classes=2, class_names=("a, b", "c"), samples=samples)
    assert heatmap.sample_counts(parts, data) == 'class,0,1\n"a, b",1,1\nc,1,2\n'
    monkeypatch.setattr(heatmap, "MOST_CLIENTS", 1)
    assert heatmap.sample_counts(parts, data) == "class,0,1\nall,2,3\n", "many clients"
