"""Who stands in for whom."""

import numpy as np
import pytest

from fedskip.flower.conductor import stand_in


def test_those_who_are_there_keep_their_slots() -> None:
    cohort = np.array([4, 1, 7, 2])
    filled = stand_in(cohort, [1, 2, 5, 6], seed=3, round=2)
    assert filled[1] == 1
    assert filled[3] == 2
    assert sorted(filled[[0, 2]]) == [5, 6]
    assert (filled == stand_in(cohort, [1, 2, 5, 6], seed=3, round=2)).all(), "the same whenever it is asked"


def test_the_choice_is_fair() -> None:
    drawn = [stand_in(np.array([0, 1]), [1, 2, 3, 4], seed=0, round=r)[0] for r in range(600)]
    assert np.bincount(drawn, minlength=5)[2:].min() > 150


@pytest.mark.parametrize("policy", ["fixed", "cyclic"])
def test_where_slots_have_their_clients_nobody_takes_their_place(policy: str) -> None:
    assert stand_in(np.array([0, 1, 2]), [0, 2, 3], 0, 0, policy).tolist() == [0, -1, 2]
