"""Data in files of your own: tables and npz arrays."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedskip import Dataset, InputError
from fedskip.data import load
from fedskip.data.division import pooled_test
from fedskip.data.partitions import partition

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
        InputError, match=r"old.csv is not text in utf-8.*set data.encoding, such as latin-1"
    ):
        load("old.csv", label="outcome")
    assert load("old.csv", label="outcome", encoding="latin-1").class_names == ("müde", "wach")
    with pytest.raises(InputError, match=r"is not text in klingon"):
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


# --- arrays ---------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(20, 3))
Y = np.arange(20) % 4
WITH_NAN = X + np.where(np.arange(20) == 7, np.nan, 0)[:, None]
CLIENT = np.repeat(["ann", "bob"], [12, 8])


@pytest.fixture
def saved(tmp_path):
    def save(**arrays):
        np.savez(
            tmp_path / "own.npz",
            **{key: value for key, value in arrays.items() if value is not None},
        )
        return str(tmp_path / "own.npz")

    return save


def test_split_by_seed(saved):
    data = load(saved(x=X, y=Y), test_fraction=0.25)
    assert data.name == "own"
    assert data.classes == 4
    assert data.owner is None
    train, test = data.split(0)
    assert (len(train), len(test)) == (15, 5)
    assert sorted([*train, *test]) == list(range(20))
    assert data.split(1)[1].tolist() != test.tolist() == data.split(0)[1].tolist()
    x, y = data.samples.take(torch.tensor([3]))
    np.testing.assert_allclose(x[0], X[3], rtol=1e-6)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert data.train_transform is None


def test_split_inside_every_client(saved):
    data = load(saved(x=X, y=Y, client=CLIENT), test_fraction=0.25)
    train, test = data.split(0)
    assert np.bincount(data.owner[train]).tolist() == [9, 6]
    assert np.bincount(data.owner[test]).tolist() == [3, 2]
    assert data.owner_names == ("ann", "bob")
    clients = partition("natural", train, Y, clients=1, seed=0, owner=data.owner)
    kept = pooled_test(data, test, clients)
    assert set(data.owner[kept]) == set(data.owner[clients[0]])
    mixed = partition("iid", train, Y, clients=3, seed=0)
    assert (
        pooled_test(data, test, mixed).tolist() == test.tolist()
    )  # both owners' samples are in it


def test_own_test_set(saved):
    data = load(saved(x=X, y=Y, client=CLIENT, test_x=X[:5] + 1, test_y=Y[:5]))
    train, test = data.split(7)
    assert train.tolist() == list(range(20))
    assert test.tolist() == list(range(20, 25))
    np.testing.assert_allclose(data.samples.take(torch.from_numpy(test))[0], X[:5] + 1, rtol=1e-6)
    clients = partition(
        "natural", train, data.samples.labels(), clients=1, seed=0, owner=data.owner
    )
    assert pooled_test(data, test, clients).tolist() == test.tolist()  # it is everyone's


def test_kinds_of_numbers(saved):
    data = load(saved(x=np.full((4, 2, 2), 255, np.uint8), y=Y[:4]))
    assert data.samples.x.dtype == torch.uint8
    assert (
        data.test_transform(data.samples.x).max()
        == data.train_transform(data.samples.x, None).max()
        == 1
    )
    assert load(saved(x=np.ones((4, 2), np.int32), y=Y[:4])).samples.x.dtype == torch.int64
    regression = load(saved(x=X, y=X[:, :2]))
    assert regression.classes is None
    assert regression.samples.y.dtype == torch.float32
    assert load(saved(x=X, y=Y), classes=10).classes == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": WITH_NAN}, r"own.npz: x must be finite, and sample 7 is not"),
        ({"y": Y[:19]}, r"own.npz: y must have 20 entries, one per sample, got 19"),
        ({"client": CLIENT[:3]}, r"own.npz: client must have 20 entries"),
        ({"y": Y - 1}, r"own.npz: y must hold labels from 0 on, got '-1 to 2'"),
        ({"y": None}, r"lacks y"),
        ({"test_x": X}, r"lacks test_y"),
        (
            {"test_x": X[:, :2], "test_y": Y},
            r"test_x must have samples of float \(3,\).*got 'float \(2,\)'",
        ),
        (
            {"test_x": X.astype(np.uint8), "test_y": Y},
            r"test_x must have samples of float .*got 'uint8",
        ),
        ({"test_x": X[:4], "test_y": Y[:3]}, r"test_y must have 4 entries"),
        ({"clients": CLIENT}, r"an array is not known, got 'clients'\. Did you mean 'client'"),
        ({"x": X[:0]}, r"x must hold at least one sample"),
        ({"x": np.array(["a"] * 20)}, r"x must hold numbers"),
        ({"x": np.array([{}] * 20)}, r"cannot be read as an .npz file"),
    ],
)
def test_bad_files(saved, change, message):
    with pytest.raises(InputError, match=message):
        load(saved(**({"x": X, "y": Y} | change)))


def test_bad_options(saved, tmp_path):
    path = saved(x=X, y=Y)
    with pytest.raises(
        InputError, match=r"data.classes must be >= 4, for the labels in .*own.npz, got 3"
    ):
        load(path, classes=3)
    with pytest.raises(InputError, match=r"data.test_fraction must lie between 0 and 1, got 1"):
        load(path, test_fraction=1)
    with pytest.raises(
        InputError, match=r"data.test_fracton is not an option of 'npz'.*Did you mean"
    ):
        load(path, test_fracton=0.1)
    with pytest.raises(InputError, match=r"data.name must be an existing file"):
        load(str(tmp_path / "other.npz"))
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(InputError, match=r"text.npz cannot be read as an .npz file"):
        load(str(tmp_path / "text.npz"))


def test_every_client_trains_however_few_samples_it_has(saved):
    sizes = [1, 3, 3, 13]
    data = load(saved(x=X, y=Y, client=np.repeat(range(4), sizes)), test_fraction=0.7)
    train, test = data.split(0)
    assert np.bincount(data.owner[train]).tolist() == [1, 1, 1, 3]
    assert sorted([*train, *test]) == list(range(20))


def test_fractions_are_not_cut_by_rounding(saved):
    train, test = load(saved(x=X[:10], y=Y[:10]), test_fraction=0.8).split(0)
    assert (len(train), len(test)) == (2, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": "abc"}, "data.classes must be a whole number or null, got 'abc'"),
        ({"classes": 2.5}, "data.classes must be a whole number or null, got 2.5"),
        ({"classes": 0}, "data.classes must be >= 4, for the labels in .*own.npz, got 0"),
        ({"test_fraction": "abc"}, "data.test_fraction must be a number, got 'abc'"),
        ({"path": "other.npz"}, "data.path is not an option of 'npz'"),
    ],
)
def test_options_of_the_wrong_kind(saved, options, message):
    with pytest.raises(InputError, match=message):
        load(saved(x=X, y=Y), **options)


def test_names_in_bytes_and_numbers_of_any_width(saved):
    client = np.repeat(np.array(["J\xfcrg".encode("latin-1"), b"ann"]), 10)
    data = load(saved(x=X.astype(np.float32), y=Y, client=client, test_x=X, test_y=Y))
    assert set(data.owner_names) == {"J\ufffdrg", "ann"}
    with pytest.raises(InputError, match="client must hold one number or name per sample"):
        load(saved(x=X, y=Y, client=client[:, None]))
