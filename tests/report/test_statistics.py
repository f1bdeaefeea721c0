"""Paired differences, intervals and ranks, on numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest

from fedskip.report.statistics import bootstrap_interval, difference, ranks, t_interval, t_quantile


@pytest.mark.parametrize(
    ("level", "df", "expected"),
    [  # from the table in any textbook
        (0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 4, 2.776), (0.95, 9, 2.262), (0.95, 30, 2.042),
        (0.95, 120, 1.980), (0.99, 1, 63.657), (0.99, 3, 5.841), (0.99, 10, 3.169), (0.5, 5, 0.727),
    ],
)  # fmt: skip
def test_quantiles_of_students_t(level: float, df: int, expected: float) -> None:
    assert t_quantile(level, df) == pytest.approx(expected, abs=5e-4)


def test_the_interval_of_a_mean() -> None:
    low, high = t_interval([1.0, 2.0, 4.0])
    assert low is not None
    assert high is not None
    half = 4.302653 * math.sqrt(7 / 3) / math.sqrt(3)  # the variance is (16 + 1 + 25) / 9 / 2 = 7 / 3
    assert (low, high) == (pytest.approx(7 / 3 - half, abs=1e-5), pytest.approx(7 / 3 + half, abs=1e-5))
    assert t_interval([2.0]) == (None, None)
    assert t_interval([]) == (None, None)


def test_the_bootstrap_repeats_itself_and_stays_within_the_values() -> None:
    values = [0.1, 0.2, 0.3, 0.4, 1.0]
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values)
    assert low is not None
    assert high is not None
    assert 0.1 <= low < 0.4 < high <= 1.0
    assert bootstrap_interval([3.0, 3.0]) == (3.0, 3.0)
    assert bootstrap_interval([3.0]) == (None, None)


def test_differences_are_paired_by_seed() -> None:
    """Scores that differ much between seeds, and little from each other."""
    one, other = {0: 0.51, 1: 0.72, 2: 0.90}, {2: 0.89, 1: 0.71, 0: 0.50, 7: 0.1}
    found = difference(one, other)
    assert (found.seeds, found.wins, found.losses, found.sign) == (3, 3, 0, 1)
    assert found.mean == pytest.approx(0.01)
    assert found.low == pytest.approx(0.01)
    back = difference(other, one)
    assert (back.wins, back.losses, back.sign) == (0, 3, -1)
    assert difference({0: 0.1, 1: 0.9}, {0: 0.2, 1: 0.5}).sign == 0


def test_a_run_without_a_score_has_lost() -> None:
    found = difference({0: 0.5, 1: None, 2: None}, {0: 0.4, 1: 0.3, 2: None})
    assert (found.seeds, found.wins, found.losses) == (1, 1, 1)
    assert (found.mean, found.low, found.sign) == (pytest.approx(0.1), None, 0)
    assert (found.missing, found.unmatched) == (2, 0), "where both have none, its own run is lost, too"
    assert difference({0: 0.5}, {0: None}).unmatched == 1
    nothing = difference({0: None}, {0: None})
    assert (nothing.seeds, nothing.mean, nothing.wins, nothing.losses) == (0, None, 0, 0)


def test_ranks_are_shared_by_equals() -> None:
    assert ranks({"a": 0.5, "b": 0.5, "c": 0.5}) == {"a": 2.0, "b": 2.0, "c": 2.0}
    assert ranks({"a": None, "b": 0.1, "c": None}) == {"a": 2.5, "b": 1.0, "c": 2.5}


def test_where_lower_is_better() -> None:
    found = difference({0: 0.1, 1: 0.2}, {0: 0.3, 1: 0.41}, higher=False)
    assert (found.sign, found.wins, found.losses) == (1, 2, 0)
    assert found.mean == pytest.approx(-0.205)  # as it is, with its own sign
    assert difference({0: 0.5, 1: 0.61}, {0: 0.3, 1: 0.4}, higher=False).sign == -1
    assert ranks({"a": 0.5, "b": 0.1, "c": None}, higher=False) == {"a": 2.0, "b": 1.0, "c": 3.0}
