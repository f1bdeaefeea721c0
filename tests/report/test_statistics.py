"""Paired differences, intervals and ranks, on numbers that can be checked by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from fedskip.report.statistics import bootstrap_interval, paired_differences, t_interval

LOST = -math.inf  # the score of a run that has none


def compared(one: dict[int, float], other: dict[int, float], better: int = 1) -> pd.Series:
    scores = pd.DataFrame(
        {"one": pd.Series(one, dtype=float), "other": pd.Series(other, dtype=float)}
    )
    scores.attrs["better"] = better
    return paired_differences(scores, "other").loc["one"]


@pytest.mark.parametrize(
    ("level", "n", "expected"),
    [  # quantiles of Student's t from the table in any textbook
        (0.95, 2, 12.706), (0.95, 3, 4.303), (0.95, 5, 2.776), (0.95, 10, 2.262), (0.99, 4, 5.841),
    ],
)  # fmt: skip
def test_students_interval(level: float, n: int, expected: float) -> None:
    values = [0.0, 1.0, *[0.5] * (n - 2)]  # whose variance is 0.5 / (n - 1)
    low, high = t_interval(values, level)
    half = expected * math.sqrt(0.5 / (n - 1) / n)
    assert (low, high) == (pytest.approx(0.5 - half, abs=5e-4), pytest.approx(0.5 + half, abs=5e-4))


@pytest.mark.parametrize("interval", [t_interval, bootstrap_interval])
def test_one_value_has_no_interval(interval) -> None:
    assert all(map(math.isnan, (*interval([2.0]), *interval([]))))


def test_the_bootstrap_repeats_itself_and_stays_within_the_values() -> None:
    values = [0.1, 0.2, 0.3, 0.4, 1.0]
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values)
    assert 0.1 <= low < 0.4 < high <= 1.0
    assert bootstrap_interval([3.0, 3.0]) == (3.0, 3.0)


def test_differences_are_paired_by_seed() -> None:
    """Scores that differ much between seeds, and little from each other."""
    one, other = {0: 0.51, 1: 0.72, 2: 0.90}, {2: 0.89, 1: 0.71, 0: 0.50, 7: 0.1}
    found = compared(one, other)
    assert (found.n, found.wins, found.losses, found["sign"]) == (3, 3, 0, 1)
    assert found["difference"] == pytest.approx(0.01)
    assert found.low == pytest.approx(0.01)
    back = compared(other, one)
    assert (back.wins, back.losses, back.sign) == (0, 3, -1)
    assert compared({0: 0.1, 1: 0.9}, {0: 0.2, 1: 0.5}).sign == 0


def test_a_run_without_a_score_has_lost() -> None:
    found = compared({0: 0.5, 1: LOST, 2: LOST}, {0: 0.4, 1: 0.3, 2: LOST})
    assert (found.n, found.wins, found.losses) == (1, 1, 1)
    assert (found["difference"], found["sign"]) == (pytest.approx(0.1), 0)
    assert math.isnan(found.low)
    assert (found.missing, found.unmatched) == (2, 0), "also where the other has none"
    assert compared({0: 0.5}, {0: LOST}).unmatched == 1
    nothing = compared({0: LOST}, {0: LOST})
    assert (nothing.n, nothing.wins, nothing.losses) == (0, 0, 0)


def test_where_lower_is_better() -> None:
    found = compared({0: 0.1, 1: 0.2}, {0: 0.3, 1: 0.41}, better=-1)
    assert (found["sign"], found.wins, found.losses) == (1, 2, 0)
    assert found["difference"] == pytest.approx(-0.205)  # with its own sign
    assert compared({0: 0.5, 1: 0.61}, {0: 0.3, 1: 0.4}, better=-1).sign == -1
