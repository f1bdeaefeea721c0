"""A table as a data set."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedskip import Dataset, InputError, from_frame
from fedskip.data import load
from fedskip.data.tables import MOST_TEXTS, inputs, labels


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
        InputError, match=r"column 'test' must be train or test.*row 2 is not, got 'dev'"
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
        ({}, {"label": []}, r"data.label must name the column"),
        ({}, {"label": "y", "client": "whom"}, r"data.client must be a column.*Did you mean 'who'"),
        ({}, {"label": "y", "client": "y"}, r"data.client must not be a column of label or test"),
        ({}, {"label": "y", "features": ["y"]}, r"data.features must not be a column of label or test"),
        ({}, {"label": "y", "drop": ["y"]}, r"data.drop must not be a column of label or test"),
        ({}, {"label": "y", "drop": ["old"], "features": ["who"]}, r"data.drop cannot stand beside features"),
        ({}, {"label": "y", "drop": ["who", "size", "old"]}, r"data.features must leave a column"),
        ({}, {"label": "y", "gaps": "fill"}, r"data.gaps must be 'refuse' or 'drop'"),
        ({}, {"label": "y", "task": "ranking"}, r"data.task must be 'classification' or 'regression'"),
        ({"who": ["a"] * 6}, {"label": "y", "client": "who"}, r"at least two clients, got .a.. Leave"),
        ({"who": [0.5] * 6}, {"label": "y", "client": "who"}, r"whole numbers or names, and row 1 is not"),
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
    test = pd.DataFrame({"a": [11.0, 12.0], "y": pd.Categorical(["high", "low"])})
    data = from_frame(train, label="y", test=test)
    assert data.class_names == tuple(levels)
    assert data.samples.y.tolist() == [0, 2] * 3 + [2, 0]  # type: ignore[attr-defined]


# --- What becomes of one column of a table --------------------


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
    with pytest.raises(InputError, match=r"must be classes from 0 to 2, and row 2 is not, got 3"):
        labels("t", [column([0, 3])], None, 3)
    with pytest.raises(InputError, match=r"data.classes is for one column of whole numbers"):
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
        InputError,
        match=r"column 'a' must be 0 or 1, as one of several labels, and row 2 is not, got 2",
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
            range(MOST_TEXTS + 1),
            None,
            r"has 51 different values.*data.task=regression if they are numbers",
        ),
        (
            [f"n{i}" for i in range(MOST_TEXTS + 1)],
            None,
            r"has 51 different values.*data.task=classification if",
        ),
        (["a", "a"], None, r"must not be the same in every row, got 'a'"),
        ([2.5, 2.5], None, r"must not be the same in every row, got 2.5"),
        (["a", "b"], "regression", r"must hold numbers for regression, got 'a'"),
        ([0.5, 1.5], "classification", r"must be classes, and row 1 is not, got 0.5"),
        (["3", "4", "?"], None, r"all must be plain numbers, and row 3 is not, got '\?'"),
        ([1.5, np.inf], None, r"must be finite, and row 2 is not"),
        ([1.5, 1e300], None, r"must fit into float32, and row 2 is not"),
    ],
)
def test_bad_labels(values: Any, task: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        labels("t", [column(list(values))], task)


def test_texts_become_zeros_and_ones() -> None:
    names, x = inputs("t", column(["b", "a", "b"]))
    assert (names, x.tolist(), x.dtype) == (["c=a", "c=b"], [[0, 1], [1, 0], [0, 1]], np.float32)
    assert inputs("t", column([1, 2]))[1].tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["1", "2", "12 kg"], r"all must be plain numbers, and row 3 is not, got '12 kg'"),
        (
            ["1,234", "5,678"],
            r"all must be plain numbers, and row 1 is not.*Write numbers plainly, as 1234.5",
        ),
        (["1", "2"], r"all must be plain numbers, .* got '1'.*pd.to_numeric"),
        (
            [f"n{i}" for i in range(MOST_TEXTS + 1)],
            r"at most 50 different texts.*got 51.*data.drop",
        ),
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
        inputs("t", column(values))


# --- Files --------------------

TABLE = """\
hospital,age,sex,outcome
north,61,F,ill
north,34,M,well
south,45,F,well
south,70,F,ill
south,52,M,well
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("patients.csv").write_text(TABLE)
    return tmp_path


def same(one: Dataset, other: Dataset) -> bool:
    arrays = [(d.samples.x.tolist(), d.samples.y.tolist(), d.owner.tolist()) for d in (one, other)]  # type: ignore
    return arrays[0] == arrays[1] and one.class_names == other.class_names


ROLES = {"label": "outcome", "client": "hospital"}


def test_a_csv() -> None:
    data = load("patients.csv", **ROLES)
    assert data.samples.x.tolist() == [[61, 1, 0], [34, 0, 1], [45, 1, 0], [70, 1, 0], [52, 0, 1]]  # type: ignore
    assert data.samples.labels().tolist() == [0, 1, 1, 0, 1]
    assert (data.class_names, data.owner_names) == (("ill", "well"), ("north", "south"))
    assert data.input_names == ("age", "sex=F", "sex=M")
    assert data.defaults == {"partition.kind": "natural"}
    assert data.name == "patients"


def test_the_other_formats() -> None:
    data = load("patients.csv", **ROLES)
    Path("patients.tsv").write_text(TABLE.replace(",", "\t"))
    Path("patients.csv.gz").write_bytes(gzip.compress(TABLE.encode()))
    Path("semi.csv").write_text(TABLE.replace(",", ";"))
    Path("marked.csv").write_bytes(b"\xef\xbb\xbf" + TABLE.encode())
    for name in ("patients.tsv", "patients.csv.gz", "marked.csv"):
        assert same(load(name, **ROLES), data), name
    assert same(load("semi.csv", separator=";", **ROLES), data)


def test_parquet() -> None:
    pytest.importorskip("pyarrow")
    frame = pd.read_csv("patients.csv")
    frame.set_index(frame.index + 7).to_parquet("patients.parquet")  # row numbers are not an input
    assert same(load("patients.parquet", **ROLES), load("patients.csv", **ROLES))


def test_a_test_file() -> None:
    Path("late.csv").write_text("outcome,age,sex\nwell,20,M\nill,90,F\n")
    data = load("patients.csv", test="late.csv", **ROLES)
    train, test = data.split(0)
    assert (train.tolist(), test.tolist()) == ([0, 1, 2, 3, 4], [5, 6])
    assert data.owner is not None
    assert data.owner[test].tolist() == [-1, -1]  # everyone's
    assert data.samples.x[5:, 0].tolist() == [20, 90]  # type: ignore[attr-defined]
    Path("named.csv").write_text("outcome,age,sex,hospital\nwell,20,M,south\nill,90,F,west\n")
    owner = load("patients.csv", test="named.csv", **ROLES).owner
    assert owner is not None
    assert owner[5:].tolist() == [1, -1]


def test_drawn_tests_follow_the_seed() -> None:
    frame = pd.DataFrame({"a": range(100), "y": [0, 1] * 50, "who": np.repeat([3, 1], 50)})
    frame.to_csv("many.csv", index=False)
    data = load("many.csv", label="y", client="who", test_fraction=0.2)
    assert [len(half) for half in data.split(0)] == [80, 20]
    assert data.split(0)[1].tolist() == data.split(0)[1].tolist() != data.split(1)[1].tolist()
    assert data.owner_names == ("1", "3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"bad.csv cannot be read as a table .*The first line names the columns"),
        ("a,outcome\n", r"bad.csv has no rows"),
        (
            "a,b,outcome\n1,2,x\n1,2,3,4\n",
            r"cannot be read as a table \(Expected 3 fields in line 3, saw 4\)",
        ),
        ("a,outcome\n1,2,3\n1,2,3\n", r"bad.csv cannot be read as a table \(Length of header"),
        ("a,a,outcome\n1,2,x\n", r"bad.csv has 2 columns called 'a'"),
        (
            "a;outcome\n1;x\n",
            r"one column, 'a;outcome', when it is split at ','. Set data.separator=';'",
        ),
        (
            ",a,outcome\n0,1,x\n1,2,y\n",
            r"column without a name, 'Unnamed: 0'.*data.drop=\['Unnamed: 0'\]",
        ),
    ],
)
def test_what_is_no_table(text: str, message: str) -> None:
    Path("bad.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        load("bad.csv", label="outcome")


def test_encodings() -> None:
    Path("old.csv").write_bytes("a,outcome\n1,müde\n2,wach\n".encode("latin-1"))
    with pytest.raises(
        InputError,
        match=r"old.csv cannot be read as a table .*utf-8.*set data.encoding, such as latin-1",
    ):
        load("old.csv", label="outcome")
    assert load("old.csv", label="outcome", encoding="latin-1").class_names == ("müde", "wach")
    with pytest.raises(InputError, match=r"unknown encoding: klingon"):
        load("old.csv", label="outcome", encoding="klingon")


def test_broken_files() -> None:
    Path("cut.csv.gz").write_bytes(gzip.compress(TABLE.encode())[:-9])
    with pytest.raises(InputError, match=r"cut.csv.gz cannot be read as a table"):
        load("cut.csv.gz", **ROLES)
    Path("bad.parquet").write_text("no")
    with pytest.raises(InputError, match=r"bad.parquet (cannot be read as parquet|needs pyarrow)"):
        load("bad.parquet", **ROLES)
    with pytest.raises(InputError, match=r"data.test must be an existing file, got 'none.csv'"):
        load("patients.csv", test="none.csv", **ROLES)
    with pytest.raises(
        InputError, match=r"data.lable is not an option of 'csv'.*Did you mean 'label'"
    ):
        load("patients.csv", lable="outcome")


# --- what is written ------------------------------------------------------------------------------


def saved(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def test_clients_are_who_they_are_called() -> None:
    rows = "who,x,y\n01,1,a\n1,2,b\n001,3,a\n01,4,b\n1e3,5,a\n1000,6,b\n"
    data = load(saved("a.csv", rows), label="y", client="who")
    assert data.owner_names == ("001", "01", "1", "1000", "1e3")
    plain = load(saved("b.csv", "who,x,y\n10,1,a\n9,2,b\n10,3,a\n"), label="y", client="who")
    assert plain.owner_names == ("9", "10"), "numbers are in their order"


def test_large_numbers_of_clients_keep_their_digits() -> None:
    rows = "".join(f"{2**53 + i},{i},{'ab'[i % 2]}\n" for i in range(6))
    data = load(saved("a.csv", f"who,x,y\n{rows},9,b\n"), label="y", client="who", gaps="drop")
    assert data.owner_names == tuple(str(2**53 + i) for i in range(6))
    frame = pd.DataFrame({"who": [2**60, 2**60 + 1], "x": [1, 2], "y": [0, 1]})
    test = pd.DataFrame({"x": [5], "y": [1]})  # without clients
    assert from_frame(frame, label="y", client="who", test=test).owner_names == (
        str(2**60), str(2**60 + 1),
    )  # fmt: skip


def test_labels_as_written() -> None:
    for values, names in {
        "01 1 10": ("01", "1", "10"), "10 9 9": ("9", "10"), "true false true": ("False", "True"),
        "0.5 0.50 1e3": None,
    }.items():  # fmt: skip
        rows = "".join(f"{i},{value}\n" for i, value in enumerate(values.split()))
        assert load(saved("a.csv", f"x,y\n{rows}"), label="y").class_names == names


def test_na_may_be_a_name() -> None:
    rows = saved("a.csv", "who,x,y\nNA,1,None\nnull,2,null\nNA,3,null\n,4,null\n")
    with pytest.raises(InputError, match=r"column 'y' has 4 gaps"):
        load(rows, label="y", client="who")
    data = load(rows, label="y", client="who", keep_na=True, gaps="drop")
    assert (data.owner_names, data.class_names) == (("NA", "null"), ("None", "null"))
    assert len(data.samples) == 3, "an empty cell is a gap"


def test_test_rows_are_not_for_training() -> None:
    train = saved("a.csv", "x,y\n1,a\n2,b\n3,a\n")
    with pytest.raises(InputError, match=r"data.test must have rows that are not for training"):
        load(train, label="y", test="a.csv")
    data = load(train, label="y", test=saved("b.csv", "x,y\n1,a\n7,b\n"))
    assert "1 of 2 test rows are also rows for training" in data.notes


def test_lost_digits_are_said() -> None:
    rows = "at,x,y\n1700000001,16777216,a\n1700000002,2,b\n"
    [note] = [n for n in load(saved("a.csv", rows), label="y").notes if "digits" in n]
    assert note == "more digits than 32-bit numbers have, so rounded: at"
