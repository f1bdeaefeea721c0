"""Tables in files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedskip import Dataset, InputError
from fedskip.data.catalogue import load

pd = pytest.importorskip("pandas")

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
        ("", r"bad.csv is empty. Its first line names the columns"),
        ("a,outcome\n", r"bad.csv has no rows"),
        (
            "a,b,outcome\n1,2,x\n1,2,3,4\n",
            r"cannot be read as a table \(Expected 3 fields in line 3, saw 4\)",
        ),
        ("a,outcome\n1,2,3\n1,2,3\n", r"bad.csv cannot be read as a table \(Length of header"),
        ("a,a,outcome\n1,2,x\n", r"bad.csv has 2 columns called 'a'"),
        ("a;outcome\n1;x\n", r"one column, 'a;outcome', when it is split at ','. Set data.separator=';'"),
        (",a,outcome\n0,1,x\n1,2,y\n", r"column without a name, 'Unnamed: 0'.*data.drop=\['Unnamed: 0'\]"),
    ],
)
def test_what_is_no_table(text: str, message: str) -> None:
    Path("bad.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        load("bad.csv", label="outcome")


def test_encodings() -> None:
    Path("old.csv").write_bytes("a,outcome\n1,müde\n2,wach\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"old.csv is not text in utf-8.*set data.encoding, such as latin-1"):
        load("old.csv", label="outcome")
    assert load("old.csv", label="outcome", encoding="latin-1").class_names == ("müde", "wach")
    with pytest.raises(InputError, match=r"is not text in klingon"):
        load("old.csv", label="outcome", encoding="klingon")


def test_broken_files() -> None:
    Path("cut.csv.gz").write_bytes(gzip.compress(TABLE.encode())[:-9])
    with pytest.raises(InputError, match=r"cut.csv.gz cannot be read as a gzip file"):
        load("cut.csv.gz", **ROLES)
    Path("bad.parquet").write_text("no")
    with pytest.raises(InputError, match=r"bad.parquet (cannot be read as parquet|needs pyarrow)"):
        load("bad.parquet", **ROLES)
    with pytest.raises(InputError, match=r"data.test must be an existing file, got 'none.csv'"):
        load("patients.csv", test="none.csv", **ROLES)
    with pytest.raises(InputError, match=r"data.lable is not an option of 'csv'.*Did you mean 'label'"):
        load("patients.csv", lable="outcome")
