"""Ranges declared with a field's type."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from fedskip.errors import InputError
from fedskip.parsing.ranges import MOST, SMALLEST, Above, AtLeast, AtMost, Count, In, Positive
from fedskip.parsing.values import fit


@pytest.mark.parametrize(
    ("hint", "inside", "outside", "rule"),
    [
        (Annotated[int, AtLeast(1)], [1, 7], 0, "must be >= 1"),
        (Annotated[float, AtMost(2)], [2, -7], 2.5, "must be at most 2"),
        (Annotated[float, Above(0)], [1e-9, 5], 0, "must be > 0"),
        (Annotated[float, In("[0, 1)")], [0, 0.5], 1, r"must be in \[0, 1\)"),
        (Annotated[float, In("[0, 1)")], [], -0.1, r"must be in \[0, 1\)"),
        (Annotated[float, In("(0, 1]")], [1], 0, r"must be in \(0, 1\]"),
        (Count, [1, MOST], MOST + 1, "must be at most 1,000,000,000"),
        (Count | None, [None, 3], 0, "must be >= 1"),
        (Annotated[int | None, AtLeast(1)], [None, 3], 0, "must be >= 1"),
        (Positive, [SMALLEST], -1, "must be > 0, got -1.0"),
        (Positive, [], 1e-39, "must be >= 1.2e-38"),
    ],
)
def test_ranges(hint: Any, inside: list[Any], outside: Any, rule: str) -> None:
    for value in inside:
        assert fit("field", value, hint) == value
    with pytest.raises(InputError, match=f"^field {rule}"):
        fit("field", outside, hint)


def test_an_error_gives_the_advice_of_the_range() -> None:
    with pytest.raises(InputError, match=r"mu must be >= 0, got -1.0. 0 is FedAvg"):
        fit("mu", -1, Annotated[float, AtLeast(0, "0 is FedAvg")])


def test_ranges_are_for_numbers_and_other_metadata_is_ignored() -> None:
    assert fit("period", "never", Annotated[int, AtLeast(1)] | str) == "never"
    assert fit("mu", 1, Annotated[float, "of the pull"]) == 1.0
