"""Merge rounds and learning rates, counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskip.errors import InputError
from fedskip.schedule import Decay, Period


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


def test_a_parsed_period_parses() -> None:
    assert Period.parse(Period.parse("1x10,5")) == Period.parse("1x10,5")


@pytest.mark.parametrize("rule", [0, -1, 1.5, True, None, "", "0", "1x0", "1x00,5", "x3", "5,", "often", [3]])
def test_bad_periods(rule: Any) -> None:
    with pytest.raises(InputError, match="period must be a number of rounds >= 1"):
        Period.parse(rule)


def test_only_the_last_part_goes_on_for_ever() -> None:
    with pytest.raises(InputError, match="needs a count for every part but the last"):
        Period.parse("1,5")


@pytest.mark.parametrize(
    ("rule", "position", "expected"),
    [
        ("constant", 70.0, 1.0),
        ("cosine", 0.0, 1.0),
        ("cosine", 50.0, 0.5),
        ("cosine", 100.0, 0.0),
        ("cosine(floor=0.2)", 50.0, 0.6),
        ("cosine(floor=0.2)", 100.0, 0.2),
        ("step", 49.9, 1.0),
        ("step", 50.0, 0.1),
        ("step(every=10, factor=0.5)", 29.5, 0.25),
        ("step(factor=0.5,every=10)", 29.5, 0.25),
        ("inverse", 0.0, 1.0),
        ("inverse", 50.0, 0.5),
        ("inverse(half=10)", 30.0, 0.25),
    ],
)
def test_decay(rule: str, position: float, expected: float) -> None:
    [found] = Decay.parse(rule).at(np.array([position]), rounds=100)
    assert found == pytest.approx(expected, abs=1e-15)


@given(
    st.sampled_from(["constant", "cosine", "cosine(floor=0.1)", "step(every=7)", "inverse(half=3)"]),
    st.integers(1, 300),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
)
def test_rates_never_rise_and_never_reach_zero(rule: str, rounds: int, one: float, other: float) -> None:
    positions = np.array([*sorted((one, other)), 1.0]) * rounds
    positions[-1] -= 0.01  # a last step of the last round
    early, late, last = Decay.parse(rule).at(positions, rounds)
    assert 0 <= late <= early <= 1
    assert last > 0


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("linear", "must be constant, cosine, step"),
        ("step(", "must be constant, cosine, step"),
        ("step(50)", "must be constant, cosine, step"),
        (3, "must be constant, cosine, step"),
        ("step(evry=5)", "has no option 'evry'; step takes every, factor"),
        ("constant(a=1)", "has no option 'a'; constant takes no options"),
        ("step(every=soon)", "needs a number for 'every'"),
        ("step(every=0)", "needs 'every' to be positive"),
        ("step(factor=0)", "needs 'factor' to be positive"),
        ("inverse(half=-1)", "needs 'half' to be positive"),
        ("cosine(floor=-0.1)", "needs 'floor' to be positive"),
        ("cosine(floor=inf)", "needs 'floor' to be positive"),
        ("cosine(floor=nan)", "needs 'floor' to be positive"),
    ],
)
def test_bad_decays(rule: Any, message: str) -> None:
    with pytest.raises(InputError, match=r"local\.decay") as caught:
        Decay.parse(rule)
    assert message in str(caught.value)
