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
from fedskip.data.from_pytorch import image_array
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
