"""Which samples train, which test, and which are looked at."""

import numpy as np

from fedskip.data.split import evaluation_subset, within_owners


def test_within_owners():
    owner = np.array([2, 0, 2, 2, 0, 2, 2])
    train, test = within_owners(owner, 0.6, seed=0)
    assert np.bincount(owner[train], minlength=3).tolist() == [1, 0, 3]
    assert sorted([*train, *test]) == list(range(7))
    assert len({tuple(within_owners(owner, 0.6, seed)[0]) for seed in range(300)}) == 2 * 10  # all choices


def test_evaluation_subset():
    test = np.arange(100, 200)
    chosen = evaluation_subset(test, 30)
    assert len(set(chosen)) == 30
    assert set(chosen) <= set(test)
    assert chosen.tolist() == sorted(chosen) == evaluation_subset(test, 30).tolist()
    assert evaluation_subset(test, None) is evaluation_subset(test, 100) is test
