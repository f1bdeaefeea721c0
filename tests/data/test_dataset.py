"""Data sets made in Python."""

import numpy as np
import pytest
import torch

from fedskip.data import Arrays, Dataset
from fedskip.errors import InputError

X = np.random.default_rng(0).normal(size=(20, 3))


Y = np.arange(20) % 4


def dataset(**keys):
    arrays = {"samples": Arrays(X, Y), "split": lambda seed: (np.arange(15), np.arange(15, 20))}
    return Dataset("own", **arrays | keys)


@pytest.mark.parametrize(
    ("keys", "sizes"),
    [
        ({"classes": 4}, {"inputs": 3, "classes": 4}),
        ({}, {"inputs": 3}),  # whole numbers: nobody said how many classes
        ({"samples": Arrays(X, X[:, 0])}, {"inputs": 3, "classes": 1}),
        ({"samples": Arrays(X[:, 0], X[:, :2])}, {"inputs": 1, "classes": 2}),
        (
            {"samples": Arrays(X.reshape(20, 1, 3), (X > 0).astype(int))},
            {"inputs": 3, "classes": 3},
        ),
    ],
)
def test_sizes(keys, sizes):
    assert dataset(**keys).sizes == sizes


def test_arrays_of_numpy_will_do():
    data = dataset(classes=Y.max() + 1, owner=[0] * 20)
    assert type(data.classes) is int
    assert data.owner.dtype.kind == "i"
    assert torch.is_tensor(data.samples.x)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"classes": 2.5}, "data.classes must be a whole number, got 2.5"),
        (
            {"owner": ["ann"] * 20},
            "data.owner must be 20 whole numbers.*np.unique",
        ),
        ({"owner": np.zeros(19, int)}, r"data.owner must be 20 whole numbers, .* \(19,\)"),
        ({"owner": np.full(20, -2)}, "data.owner must be numbered from 0 on"),
        (
            {"owner": np.arange(20), "owner_names": ("a",)},
            "data.owner_names must have a name for each of 20",
        ),
    ],
)
def test_bad_datasets(keys, message):
    with pytest.raises(InputError, match=message):
        dataset(**keys)


def test_bad_arrays():
    with pytest.raises(
        InputError, match=r"data.y must have 20 entries, one for each sample of x, got 19"
    ):
        Arrays(X, Y[1:])
    with pytest.raises(
        InputError, match=r"data.x must be a tensor or an array of numbers, got 'ndarray'"
    ):
        Arrays(np.array(["a"] * 20), Y)


def test_what_is_shown_is_short():
    assert repr(dataset(classes=4, owner=Y)) == "Dataset('own': 20 samples, 4 classes, 4 clients)"
    assert repr(dataset()) == "Dataset('own': 20 samples)"
    assert repr(Arrays(X, Y)) == "Arrays(x: 20×3 float64, y: 20 int64)"
