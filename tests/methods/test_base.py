"""When slots merge."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskip.errors import InputError
from fedskip.methods.base import Period


def merge_rounds(rule: int | str, rounds: int) -> list[int]:
    period = Period.parse(rule)
    return [done for done in range(rounds + 1) if period.merges(done)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (3, [3, 6, 9, 12]),
        ("3", [3, 6, 9, 12]),
        ("1x4,5", [1, 2, 3, 4, 9]),
        ("1x2, 3x2, 2", [1, 2, 5, 8, 10, 12]),
        ("2x1,1", [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        ("never", []),
    ],
)
def test_merge_rounds(rule: int | str, expected: list[int]) -> None:
    assert merge_rounds(rule, 12) == expected


def test_the_rule_of_the_paper_s_remark() -> None:
    """Every round for ten rounds, then every five."""
    assert merge_rounds("1x10,5", 30) == [*range(1, 11), 15, 20, 25, 30]


@given(st.integers(1, 20), st.integers(0, 200))
def test_a_plain_period_divides(period: int, done: int) -> None:
    assert Period.parse(period).merges(done) == (done > 0 and done % period == 0)


@pytest.mark.parametrize(
    "rule", [0, -1, 1.5, True, None, "", "0", "1x0", "1x00,5", "x3", "5,", "often", [3]]
)
def test_bad_periods(rule: Any) -> None:
    with pytest.raises(InputError, match="period must be a number of rounds >= 1"):
        Period.parse(rule)


def test_only_the_last_part_goes_on_for_ever() -> None:
    with pytest.raises(InputError, match="needs a count for every part but the last"):
        Period.parse("1,5")


@pytest.mark.parametrize("rule", ["5x3", "1x10,5x3"])
def test_a_count_in_the_last_part_would_mean_nothing(rule: str) -> None:
    with pytest.raises(InputError, match=r"no count in its last part.*write '(1x10,)?5'"):
        Period.parse(rule)
