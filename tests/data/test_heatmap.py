"""How many samples of a class a client has."""

import numpy as np

from fedskip.data import heatmap
from fedskip.data.partitions import Partition


def test_class_counts_by_hand():
    parts = Partition(np.array([0, 3, 1, 2, 4]), np.array([0, 2, 5]))
    counts = heatmap.class_counts(parts, np.array([0, 2, 2, 1, 0], np.uint8), classes=4)
    assert counts.tolist() == [[1, 1], [1, 0], [0, 2], [0, 0]]
