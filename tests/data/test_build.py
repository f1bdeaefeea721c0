"""Arrays of one's own, put together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedskip import InputError
from fedskip.data.build import build_dataset, count_classes

X, Y = np.zeros((6, 2), np.float32), np.array([0, 1, 0, 1, 0, 1])
TEST = np.array([0, 1, 0, 0, 1, 1], bool)


def test_test_samples_of_clients_that_train() -> None:
    client = np.array(["b", "b", "a", "b", "c", "a"])
    data = build_dataset("own", X, Y, client=client, test=TEST, classes=2)
    assert data.owner is not None
    assert data.owner.tolist() == [1, 1, 0, 1, -1, 0]  # c does not train: its sample is everyone's
    assert data.owner_names == ("a", "b")
    assert [half.tolist() for half in data.split(3)] == [[0, 2, 3], [1, 4, 5]]


def test_clients_of_training_samples_alone() -> None:
    data = build_dataset("own", X, Y, client=np.array([7, 5, 7]), test=np.arange(6) > 2)
    assert data.owner is not None
    assert (data.owner.tolist(), data.owner_names) == ([1, 0, 1, -1, -1, -1], ("5", "7"))


def test_every_client_trains() -> None:
    data = build_dataset("own", X, Y, client=np.array([0, 1, 1, 1, 1, 1]), test_fraction=0.4)
    for seed in range(5):
        train, test = data.split(seed)
        assert 0 in train
        assert sorted([*train, *test]) == list(range(6))
    with pytest.raises(InputError, match=r"data.test_fraction must lie between 0 and 1, got 1"):
        build_dataset("own", X, Y, test_fraction=1)


def test_bytes_are_divided() -> None:
    data = build_dataset("own", np.full((6, 2), 255, np.uint8), Y)
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
