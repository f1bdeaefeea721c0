"""Data sets of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from fedskip import InputError, Study, from_torch
from fedskip.data import load
from fedskip.data.arrays import build_dataset, count_classes, image_array
from fedskip.data.division import pooled_test
from fedskip.data.partitions import partition
from studies import study

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


class Items(TorchDataset):
    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> Any:
        return self.item(i)


def test_tensors() -> None:
    data = from_torch(TensorDataset(X, Y), test=TensorDataset(X[:2], Y[:2]), standardize=True)
    assert (data.samples.x.shape, data.classes, data.standardize) == ((14, 3), 3, True)  # type: ignore
    assert [half.tolist() for half in data.split(0)] == [list(range(12)), [12, 13]]
    assert from_torch(TensorDataset(X, Y), classes=7).classes == 7
    measured = from_torch(TensorDataset(X, X.sum(1)))
    assert (measured.classes, measured.samples.y.dtype) == (None, torch.float32)  # type: ignore


def test_clients() -> None:
    data = from_torch(Items(lambda i: (X[i], int(Y[i]), "ab"[i % 2])))
    assert data.owner is not None
    assert (data.owner.tolist(), data.owner_names) == ([0, 1] * 6, ("a", "b"))
    assert data.defaults == {"partition.kind": "natural"}
    both = from_torch(TensorDataset(X, Y, Y + 5), test=TensorDataset(X, Y, Y + 6))
    assert both.owner is not None
    assert both.owner[12:].tolist() == [1, 2, -1] * 4


def test_pictures() -> None:
    pictures = pytest.importorskip("PIL.Image")
    data = from_torch(Items(lambda i: (pictures.fromarray(np.full((4, 5, 3), i, np.uint8)), i % 2)))
    assert (data.samples.x.shape, data.samples.x.dtype) == ((12, 3, 4, 5), torch.uint8)  # type: ignore
    assert data.test_transform is not None


def test_a_study_of_it(tmp_path: Path) -> None:
    data = from_torch(TensorDataset(X, Y, torch.arange(12) % 4), test_fraction=0.4)
    keys = {
        "data": data,
        "model": "linear",
        "methods": "fedavg",
        "rounds": 2,
        "seeds": 1,
        "cohort": 2,
    }
    study(tmp_path / "s", local={"batch": 1, "epochs": 1}, **keys).run()
    other = from_torch(TensorDataset(X + 1, Y, torch.arange(12) % 4), test_fraction=0.4)
    with pytest.raises(InputError, match=r"would not repeat the same numbers: data.x was"):
        study(tmp_path / "s", local={"batch": 1, "epochs": 1}, **keys | {"data": other}).resume(
            rounds=3
        )


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter([(X[0], Y[0])])


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Stream(), r"data must have a length and give samples by number, got 'Stream'"),
        (
            Items(lambda i: X[i]),
            r"must give \(x, y\) or \(x, y, client\), and sample 0 is not, got 'Tensor'",
        ),
        (
            Items(lambda i: (X[i, : 1 + i % 2], 0)),
            r"data x must be alike in all samples; sample 0.*sample 1",
        ),
        (
            Items(lambda i: (torch.rand(2), 0)),
            r"must give the same sample whenever.*random transforms",
        ),
        (Items(lambda i: (X[i] / 0, 0)), r"data x must be finite, and sample 0 is not"),
        (Items(lambda i: (X[i], "cat")), r"data y must hold numbers"),
        (Items(lambda i: (X[i], -1)), r"data: y must hold labels from 0 on"),
        (Items(lambda i: {}[i]), r"data cannot be had \(KeyError"),
        (
            Items(lambda i: (X[i], 0, 0.5)),
            r"data client must name clients by whole numbers or texts",
        ),
    ],
)
def test_bad_ones(dataset: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_torch(dataset)


def test_tests_of_another_kind() -> None:
    with pytest.raises(
        InputError, match=r"data.test x must be like those for training, float32 \(3,\)"
    ):
        from_torch(TensorDataset(X, Y), test=TensorDataset(X[:, :2], Y))


def test_what_is_given_as_it_is() -> None:
    with pytest.raises(
        InputError, match=r"got 'TensorDataset'. Write data=fedskip.from_torch\(dataset\)"
    ):
        Study(data=TensorDataset(X, Y))
    pd = pytest.importorskip("pandas")
    with pytest.raises(
        InputError, match=r"got 'DataFrame'. Write data=fedskip.from_frame\(df, label='COLUMN'"
    ):
        Study(data=pd.DataFrame())


def test_pictures_of_more_than_eight_bits_keep_their_numbers() -> None:
    image = pytest.importorskip("PIL.Image")
    values = np.array([[0, 300], [40000, 65535]], np.uint16)
    found = image_array(image.fromarray(values))
    assert (found.dtype, found.tolist()) == (np.float32, values.tolist())
    assert image_array(image.new("L", (3, 2))).shape == (2, 3)
    assert image_array(image.new("RGBA", (3, 2))).shape == (3, 2, 3)


# --- Arrays of one's own, put together --------------------

FEW_X, FEW_Y = np.zeros((6, 2), np.float32), np.array([0, 1, 0, 1, 0, 1])
TEST = np.array([0, 1, 0, 0, 1, 1], bool)


def test_test_samples_of_clients_that_train() -> None:
    client = np.array(["b", "b", "a", "b", "c", "a"])
    data = build_dataset("own", FEW_X, FEW_Y, client=client, test=TEST, classes=2)
    assert data.owner is not None
    assert data.owner.tolist() == [1, 1, 0, 1, -1, 0]  # c does not train: its sample is everyone's
    assert data.owner_names == ("a", "b")
    assert [half.tolist() for half in data.split(3)] == [[0, 2, 3], [1, 4, 5]]


def test_clients_of_training_samples_alone() -> None:
    data = build_dataset("own", FEW_X, FEW_Y, client=np.array([7, 5, 7]), test=np.arange(6) > 2)
    assert data.owner is not None
    assert (data.owner.tolist(), data.owner_names) == ([1, 0, 1, -1, -1, -1], ("5", "7"))


def test_every_client_trains() -> None:
    data = build_dataset(
        "own", FEW_X, FEW_Y, client=np.array([0, 1, 1, 1, 1, 1]), test_fraction=0.4
    )
    for seed in range(5):
        train, test = data.split(seed)
        assert 0 in train
        assert sorted([*train, *test]) == list(range(6))
    with pytest.raises(InputError, match=r"data.test_fraction must lie between 0 and 1, got 1"):
        build_dataset("own", FEW_X, FEW_Y, test_fraction=1)


def test_bytes_are_divided() -> None:
    data = build_dataset("own", np.full((6, 2), 255, np.uint8), FEW_Y)
    x, _ = data.samples.take(torch.arange(2))
    assert data.test_transform is not None
    assert data.test_transform(x).tolist() == [[1, 1], [1, 1]]
    assert data.owner is None


def test_counting_classes() -> None:
    assert count_classes("own", np.array([0, 4]), None) == 5
    assert count_classes("own", np.array([0.5, 4]), None) is None
    assert count_classes("own", np.array([0, 4]), 9) == 9
    with pytest.raises(InputError, match=r"own: y must hold labels from 0 on"):
        count_classes("own", np.array([-1, 4]), None)


# --- Of an .npz file --------------------

OWN_X = np.random.default_rng(0).normal(size=(20, 3))
OWN_Y = np.arange(20) % 4
WITH_NAN = OWN_X + np.where(np.arange(20) == 7, np.nan, 0)[:, None]
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
    data = load(saved(x=OWN_X, y=OWN_Y), test_fraction=0.25)
    assert data.name == "own"
    assert data.classes == 4
    assert data.owner is None
    train, test = data.split(0)
    assert (len(train), len(test)) == (15, 5)
    assert sorted([*train, *test]) == list(range(20))
    assert data.split(1)[1].tolist() != test.tolist() == data.split(0)[1].tolist()
    x, y = data.samples.take(torch.tensor([3]))
    np.testing.assert_allclose(x[0], OWN_X[3], rtol=1e-6)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert data.train_transform is None


def test_split_inside_every_client(saved):
    data = load(saved(x=OWN_X, y=OWN_Y, client=CLIENT), test_fraction=0.25)
    train, test = data.split(0)
    assert np.bincount(data.owner[train]).tolist() == [9, 6]
    assert np.bincount(data.owner[test]).tolist() == [3, 2]
    assert data.owner_names == ("ann", "bob")
    clients = partition("natural", train, OWN_Y, clients=1, seed=0, owner=data.owner)
    kept = pooled_test(data, test, clients)
    assert set(data.owner[kept]) == set(data.owner[clients[0]])
    mixed = partition("iid", train, OWN_Y, clients=3, seed=0)
    assert (
        pooled_test(data, test, mixed).tolist() == test.tolist()
    )  # both owners' samples are in it


def test_own_test_set(saved):
    data = load(saved(x=OWN_X, y=OWN_Y, client=CLIENT, test_x=OWN_X[:5] + 1, test_y=OWN_Y[:5]))
    train, test = data.split(7)
    assert train.tolist() == list(range(20))
    assert test.tolist() == list(range(20, 25))
    np.testing.assert_allclose(
        data.samples.take(torch.from_numpy(test))[0], OWN_X[:5] + 1, rtol=1e-6
    )
    clients = partition(
        "natural", train, data.samples.labels(), clients=1, seed=0, owner=data.owner
    )
    assert pooled_test(data, test, clients).tolist() == test.tolist()  # it is everyone's


def test_kinds_of_numbers(saved):
    data = load(saved(x=np.full((4, 2, 2), 255, np.uint8), y=OWN_Y[:4]))
    assert data.samples.x.dtype == torch.uint8
    assert (
        data.test_transform(data.samples.x).max()
        == data.train_transform(data.samples.x, None).max()
        == 1
    )
    assert load(saved(x=np.ones((4, 2), np.int32), y=OWN_Y[:4])).samples.x.dtype == torch.int64
    regression = load(saved(x=OWN_X, y=OWN_X[:, :2]))
    assert regression.classes is None
    assert regression.samples.y.dtype == torch.float32
    assert load(saved(x=OWN_X, y=OWN_Y), classes=10).classes == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": WITH_NAN}, r"own.npz: x must be finite, and sample 7 is not"),
        ({"y": OWN_Y[:19]}, r"own.npz: y must have 20 entries, one per sample, got 19"),
        ({"client": CLIENT[:3]}, r"own.npz: client must have 20 entries"),
        ({"y": OWN_Y - 1}, r"own.npz: y must hold labels from 0 on, got '-1 to 2'"),
        ({"y": None}, r"lacks y"),
        ({"test_x": OWN_X}, r"lacks test_y"),
        (
            {"test_x": OWN_X[:, :2], "test_y": OWN_Y},
            r"test_x must have samples of float \(3,\).*got 'float \(2,\)'",
        ),
        (
            {"test_x": OWN_X.astype(np.uint8), "test_y": OWN_Y},
            r"test_x must have samples of float .*got 'uint8",
        ),
        ({"test_x": OWN_X[:4], "test_y": OWN_Y[:3]}, r"test_y must have 4 entries"),
        ({"clients": CLIENT}, r"an array is not known, got 'clients'\. Did you mean 'client'"),
        ({"x": OWN_X[:0]}, r"x must hold at least one sample"),
        ({"x": np.array(["a"] * 20)}, r"x must hold numbers"),
        ({"x": np.array([{}] * 20)}, r"cannot be read as an .npz file"),
    ],
)
def test_bad_files(saved, change, message):
    with pytest.raises(InputError, match=message):
        load(saved(**({"x": OWN_X, "y": OWN_Y} | change)))


def test_bad_options(saved, tmp_path):
    path = saved(x=OWN_X, y=OWN_Y)
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
    data = load(saved(x=OWN_X, y=OWN_Y, client=np.repeat(range(4), sizes)), test_fraction=0.7)
    train, test = data.split(0)
    assert np.bincount(data.owner[train]).tolist() == [1, 1, 1, 3]
    assert sorted([*train, *test]) == list(range(20))


def test_fractions_are_not_cut_by_rounding(saved):
    train, test = load(saved(x=OWN_X[:10], y=OWN_Y[:10]), test_fraction=0.8).split(0)
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
        load(saved(x=OWN_X, y=OWN_Y), **options)


def test_names_in_bytes_and_numbers_of_any_width(saved):
    client = np.repeat(np.array(["J\xfcrg".encode("latin-1"), b"ann"]), 10)
    data = load(
        saved(x=OWN_X.astype(np.float32), y=OWN_Y, client=client, test_x=OWN_X, test_y=OWN_Y)
    )
    assert set(data.owner_names) == {"J\ufffdrg", "ann"}
    with pytest.raises(InputError, match="client must be whole numbers or names, one per sample"):
        load(saved(x=OWN_X, y=OWN_Y, client=client[:, None]))
