"""A table as a data set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedskip import InputError, from_frame

pd = pytest.importorskip("pandas")


def frame(**changes: Any) -> Any:
    columns = {
        "who": ["a", "a", "b", "b", "b", "b"], "size": [1.5, 2, 3, 4, 5, 6], "old": [True, False] * 3,
        "y": ["no", "yes", "no", "yes", "no", "no"],
    }  # fmt: skip
    return pd.DataFrame({k: v for k, v in (columns | changes).items() if v is not None})


def x(data: Any) -> list[list[float]]:
    return data.samples.x.tolist()


def test_columns_and_their_roles() -> None:
    data = from_frame(frame(), label="y", client="who")
    assert x(data)[:2] == [[1.5, 1], [2, 0]]
    assert data.input_names == ("size", "old")
    assert data.notes == ("y: 2 classes (no, yes); 2 inputs",)
    assert from_frame(frame(), label="y", drop=["who", "old"]).input_names == ("size",)
    assert from_frame(frame(), label="y", features=["old", "size"]).input_names == ("old", "size")
    texts = from_frame(frame(), label="y")
    assert texts.input_names == ("who=a", "who=b", "size", "old")
    assert texts.owner is None


def test_a_column_of_tests() -> None:
    for values in (
        [0, 0, 0, 1, 1, 0],
        ["train"] * 3 + ["test", "TEST", "train"],
        [False] * 3 + [True] * 2 + [False],
    ):
        data = from_frame(frame(test=values), label="y", client="who", test="test")
        assert [half.tolist() for half in data.split(5)] == [[0, 1, 2, 5], [3, 4]]
        assert data.input_names == ("size", "old")
    with pytest.raises(
        InputError, match=r"column 'test' must hold train and test.*row 2 does not, got 'dev'"
    ):
        from_frame(frame(test=["train", "dev"] * 3), label="y", test="test")
    with pytest.raises(
        InputError, match=r"column 'test' must have rows for training and rows for testing"
    ):
        from_frame(frame(test=[0] * 6), label="y", test="test")


def test_gaps() -> None:
    broken = frame(size=[1, None, 3, 4, None, 6])
    with pytest.raises(
        InputError, match=r"column 'size' has 2 gaps \(empty or NA\), the first in row 2.*gaps=drop"
    ):
        from_frame(broken, label="y", client="who")
    data = from_frame(broken, label="y", client="who", gaps="drop")
    assert len(data.samples) == 4
    assert "2 of 6 rows have gaps and are left out" in data.notes
    assert len(from_frame(broken, label="y", drop=["size"]).samples) == 6  # of no matter there
    with pytest.raises(InputError, match=r"column 'y' has 1 gaps.*row 3 of the test table"):
        from_frame(frame(), label="y", test=frame(y=["no", "no", None, "no", "no", "no"]))


def test_a_constant_column_is_said() -> None:
    assert (
        "the same in every row, so of no use: size"
        in from_frame(frame(size=[1] * 6), label="y").notes
    )


@pytest.mark.parametrize(
    ("changes", "roles", "message"),
    [
        ({}, {}, r"data.label must name the column of the frame to predict. Name one"),
        ({}, {"label": "z"}, r"data.label must be a column of the frame, got 'z'"),
        ({}, {"label": 5}, r"data.label must be the name of a column, or a list of them, got 5"),
        ({}, {"label": []}, r"data.label must name a column"),
        ({}, {"label": "y", "client": "whom"}, r"data.client must be a column.*Did you mean 'who'"),
        ({}, {"label": "y", "client": "y"}, r"data.client must not be a column of label or test"),
        ({}, {"label": "y", "features": ["y"]}, r"data.features must not be a column of label or test"),
        ({}, {"label": "y", "drop": ["y"]}, r"data.drop must not be a column of label or test"),
        ({}, {"label": "y", "drop": ["old"], "features": ["who"]}, r"data.drop cannot stand beside features"),
        ({}, {"label": "y", "drop": ["who", "size", "old"]}, r"data.features must leave a column"),
        ({}, {"label": "y", "gaps": "fill"}, r"data.gaps must be refuse or drop"),
        ({}, {"label": "y", "task": "ranking"}, r"data.task must be classification or regression"),
        ({"who": ["a"] * 6}, {"label": "y", "client": "who"}, r"at least two clients, got .a.. Leave"),
        ({"who": [0.5] * 6}, {"label": "y", "client": "who"}, r"whole numbers or names, and row 1 does not"),
    ],
)  # fmt: skip
def test_bad_roles(changes: dict[str, Any], roles: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_frame(frame(**changes), **roles)


def test_no_frame() -> None:
    with pytest.raises(InputError, match=r"must be a table, got 'list'"):
        from_frame([1, 2], label="y")  # type: ignore[arg-type]
    twice = pd.DataFrame(np.zeros((2, 2)), columns=["a", "a"])
    with pytest.raises(InputError, match=r"has 2 columns called 'a'"):
        from_frame(twice, label="a")
    with pytest.raises(
        InputError,
        match=r"data.test must be a column of the test table of the frame, too, got 'old'",
    ):
        from_frame(frame(), label="y", test=frame(old=None))


def test_categories_of_a_test_table_keep_the_order_of_the_table() -> None:
    levels = ["low", "middle", "high"]
    train = pd.DataFrame({"a": np.arange(6.0), "y": pd.Categorical(["low", "high"] * 3, levels)})
    test = pd.DataFrame({"a": [1.0, 2.0], "y": pd.Categorical(["high", "low"])})
    data = from_frame(train, label="y", test=test)
    assert data.class_names == tuple(levels)
    assert data.samples.y.tolist() == [0, 2] * 3 + [2, 0]  # type: ignore[attr-defined]
