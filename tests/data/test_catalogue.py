"""What a study holds of a data set, and the trial of a pool of one's own."""

import numpy as np
import pytest
import torch

from fedskip import Arrays, Dataset
from fedskip.data.catalogue import LoadedDatasets
from fedskip.errors import InputError

X, Y = torch.arange(20.0).reshape(10, 2), torch.arange(10) % 2


class Pool:
    """Gives what it is asked for."""

    def __len__(self):
        return 10

    def take(self, index):
        return X[index], Y[index]

    def labels(self):
        return Y.numpy()

    def to(self, device, dtype):
        return self


class Short(Pool):
    def take(self, index):
        return X[index][:-1], Y[index][:-1]


class Noisy(Pool):
    def take(self, index):
        return X[index] + torch.rand(()), Y[index]


class Unlabelled(Pool):
    def labels(self):
        return Y.numpy()[:3]


def dataset(samples, **more):
    return Dataset("own", samples, lambda seed: (np.arange(8), np.arange(8, 10)), **more)


def test_a_pool_of_ones_own_is_tried():
    LoadedDatasets().get(dataset(Pool()))
    for samples, message in (
        (Short(), "data.samples.take must give as many samples as it is asked for"),
        (Noisy(), "data.samples.take must give the same inputs whenever it is asked"),
        (
            Unlabelled(),
            r"data.samples.labels must give 10 targets, one for each sample, got \(3,\)",
        ),
    ):
        with pytest.raises(InputError, match=message):
            LoadedDatasets().get(dataset(samples))


def test_digests_tell_who_owns_what():
    first, other = (
        LoadedDatasets().get(dataset(Arrays(X, Y), owner=np.arange(10) % n)).digests for n in (2, 5)
    )
    assert first.keys() == {"x", "y", "owner"}
    assert (first["x"], first["y"]) == (other["x"], other["y"])
    assert first["owner"] != other["owner"]
    assert "owner" not in LoadedDatasets().get(dataset(Arrays(X, Y))).digests
