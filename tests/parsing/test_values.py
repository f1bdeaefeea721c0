"""What users write, made to fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedskip.errors import InputError
from fedskip.parsing.values import fit


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, float, 1.0),
        ("1e-5", float, 1e-5),
        (np.float64(0.5), float, 0.5),
        (5.0, int, 5),
        ("1e3", int, 1000),
        (np.int64(7), int, 7),
        (2**70, int, 2**70),
        ("true", bool, True),
        (None, int | None, None),
        ("5", int | str, "5"),
        (0.5, float | None, 0.5),
        ([1], list[int], [1]),
    ],
)
def test_fit(value: Any, hint: Any, expected: Any) -> None:
    found = fit("field", value, hint)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        ("a", float, "a number"),
        (float("nan"), float, "a number"),
        ("inf", float, "a number"),
        (True, int, "a whole number"),
        (1.5, int | None, "a whole number or null"),
        (1, bool, "true or false"),
        (3, str, "text"),
        (None, str, "text"),
    ],
)
def test_misfits(value: Any, hint: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"^local.lr must be {words}, got"):
        fit("local.lr", value, hint)
