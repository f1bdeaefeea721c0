"""What becomes of one column of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedskip import InputError
from fedskip.data.table_columns import MOST, inputs, labels

pd = pytest.importorskip("pandas")


def column(values: Any, name: str = "c") -> Any:
    found = pd.Series(values, name=name)
    return found.set_axis(pd.RangeIndex(1, len(found) + 1))


@pytest.mark.parametrize(
    ("values", "y", "names"),
    [
        (["b", "a", "b"], [1, 0, 1], ("a", "b")),
        ([7, 3, 7], [1, 0, 1], ("3", "7")),
        ([True, False, True], [1, 0, 1], ("False", "True")),
        (pd.Categorical(["lo", "hi", "lo"], ["lo", "mid", "hi"]), [0, 2, 0], ("lo", "mid", "hi")),
    ],
)
def test_classes(values: Any, y: list[int], names: tuple[str, ...]) -> None:
    found = labels("t", [column(values)])
    assert (found.y.tolist(), found.names, found.classes) == (y, names, len(names))
    assert found.y.dtype == np.int64
    assert not found.defaults


def test_numbers_for_regression() -> None:
    found = labels("t", [column([0.5, 1.5, 3])])
    assert (found.y.tolist(), found.classes) == ([0.5, 1.5, 3], None)
    assert found.defaults == {"loss": "squared_error", "metric": "minus_squared_error"}
    assert labels("t", [column([3, 4, 5])], "regression").y.tolist() == [3, 4, 5]
    assert labels("t", [column([1.0, 0.0])], "classification").names == ("0", "1")


def test_counted_classes() -> None:
    found = labels("t", [column([0, 3])], None, 5)
    assert (found.y.tolist(), found.classes, found.names) == ([0, 3], 5, None)
    with pytest.raises(
        InputError, match=r"must hold classes from 0 to 2, and row 2 does not, got 3"
    ):
        labels("t", [column([0, 3])], None, 3)
    with pytest.raises(
        InputError, match=r"data.classes is for numbers, and t: column 'c' has names"
    ):
        labels("t", [column(["a", "b"])], None, 3)


def test_several() -> None:
    two = labels("t", [column([0, 1], "a"), column([True, True], "b")])
    assert two.y.tolist() == [[0, 1], [1, 1]]
    assert two.defaults == {"loss": "binary_cross_entropy", "metric": "label_accuracy"}
    assert (
        labels("t", [column([0, 2], "a"), column([1.5, 1], "b")]).defaults["loss"]
        == "squared_error"
    )
    with pytest.raises(
        InputError, match=r"column 'a' must hold 0 and 1, as one of several labels, got 2"
    ):
        labels("t", [column([0, 2], "a"), column([1, 1], "b")], "classification")
    with pytest.raises(InputError, match=r"column 'b' must hold numbers, got 'x'"):
        labels("t", [column([0, 2], "a"), column(["x", "z"], "b")])


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        (
            [1.0, 0.0, 1.0],
            None,
            r"whole numbers written as floats.*data.task=classification or data.task=regr",
        ),
        (
            range(MOST + 1),
            None,
            r"has 51 different values.*data.task=regression if they are numbers",
        ),
        (
            [f"n{i}" for i in range(MOST + 1)],
            None,
            r"has 51 different values.*data.task=classification if",
        ),
        (["a", "a"], None, r"must not be the same in every row, got 'a'"),
        ([2.5, 2.5], None, r"must not be the same in every row, got 2.5"),
        (["a", "b"], "regression", r"must hold numbers for task: regression, got 'a'"),
        ([0.5, 1.5], "classification", r"must hold classes, and row 1 does not, got 0.5"),
        (["3", "4", "?"], None, r"holds numbers, but row 3 has none that can be read, got '\?'"),
        ([1.5, np.inf], None, r"must be finite, and row 2 is not"),
        ([1.5, 1e300], None, r"must fit into float32, and row 2 is not"),
    ],
)
def test_bad_labels(values: Any, task: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        labels("t", [column(list(values))], task)


def test_texts_become_zeros_and_ones() -> None:
    names, x = inputs("t", "c", column(["b", "a", "b"]))
    assert (names, x.tolist(), x.dtype) == (["c=a", "c=b"], [[0, 1], [1, 0], [0, 1]], np.float32)
    assert inputs("t", "c", column([1, 2]))[1].tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["1", "2", "12 kg"], r"holds numbers, but row 3 has none that can be read, got '12 kg'"),
        (
            ["1,234", "5,678"],
            r"holds numbers, but row 1 has none.*Write numbers plainly, as 1234.5",
        ),
        (["1", "2"], r"holds numbers as texts, got '1'. Convert it with pd.to_numeric"),
        ([f"n{i}" for i in range(MOST + 1)], r"at most 50 different texts.*got 51.*data.drop"),
        (
            pd.to_datetime(["2020-01-01", "2021-01-01"]),
            r"must hold numbers or texts, got 'datetime64",
        ),
        ([[1], [2]], r"must hold numbers or texts, got 'list'"),
        ([1 + 2j], r"must hold numbers or texts, got 'complex128'"),
    ],
)
def test_bad_inputs(values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        inputs("t", "c", column(values))
