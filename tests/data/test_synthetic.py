"""SYNTHETIC is LEAF's, sample by sample, and its split has the paper's 212 clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedskip.data import load, partition
from fedskip.data.dataset import Dataset
from fedskip.errors import InputError


@pytest.fixture(scope="module")
def synthetic() -> Dataset:
    return load("synthetic")


def test_the_pool_has_leafs_sizes(synthetic: Dataset) -> None:
    assert synthetic.owner is not None
    sizes = np.bincount(synthetic.owner)
    assert len(sizes) == 1000
    assert sizes.sum() == len(synthetic.samples) == 107_553
    assert np.median(sizes) == 25.5
    assert (sizes == 1000).sum() == 30
    assert sizes.max() == 1000
    assert synthetic.classes == 5
    assert np.unique(synthetic.samples.labels()).tolist() == [0, 1, 2, 3, 4]
    x, y = synthetic.samples.take(torch.arange(3))
    assert (x.shape, x.dtype, y.dtype) == ((3, 60), torch.float32, torch.int64)


def test_the_first_tasks_are_leafs_own(synthetic: Dataset) -> None:
    """LEAF's draws written out with the calls it makes (`choice`, `multivariate_normal`, softmax)."""
    assert synthetic.owner is not None
    sizes = np.bincount(synthetic.owner)[:20]
    draw = np.random.RandomState(931231)
    Q = draw.normal(loc=0.0, scale=1.0, size=(61, 5, 1))
    Sigma = np.diag([(i + 1) ** (-1.2) for i in range(60)])
    cluster_mean = draw.normal(loc=draw.normal(loc=0, scale=1.0), scale=1.0, size=1)
    xs, ys = [], []
    for n in sizes:
        draw.choice(range(1), size=None, replace=True, p=[1.0])
        loc = draw.normal(loc=draw.normal(loc=0.0, scale=1.0, size=None), scale=1.0, size=60)
        x = np.ones((n, 61))
        x[:, 1:] = draw.multivariate_normal(mean=loc, cov=Sigma, size=n)
        w = np.matmul(Q, draw.normal(loc=cluster_mean, scale=0.1, size=cluster_mean.shape))
        prob = np.exp(np.matmul(x, w) + draw.normal(loc=0.0, scale=0.1, size=(n, 5)))
        xs.append(x[:, 1:])
        ys.append(np.argmax(prob / prob.sum(axis=1, keepdims=True), axis=1))
    x, y = synthetic.samples.take(torch.arange(sizes.sum()))
    np.testing.assert_allclose(x.numpy(), np.concatenate(xs), rtol=1e-6)
    np.testing.assert_array_equal(y.numpy(), np.concatenate(ys))


def test_one_linear_model_fits_almost_all_samples(synthetic: Dataset) -> None:
    """All tasks share one direction; labels normalised over the wrong axis would stop near 46 %."""
    x, y = synthetic.samples.take(torch.arange(len(synthetic.samples)))
    inputs = torch.cat([x, torch.ones(len(x), 1)], dim=1).double()
    w = torch.linalg.lstsq(inputs, torch.nn.functional.one_hot(y, 5).double()).solution
    assert ((inputs @ w).argmax(dim=1) == y).double().mean() > 0.7


@pytest.mark.parametrize("seed", [0, 1])
def test_the_paper_has_212_clients(synthetic: Dataset, seed: int) -> None:
    assert synthetic.owner is not None
    train, test = synthetic.split(seed)
    assert (len(train), len(test)) == (51_650, 34_554)
    assert not set(train.tolist()) & set(test.tolist())
    clients = partition(
        "natural", train, synthetic.samples.labels(), clients=None, seed=0, owner=synthetic.owner
    )
    assert len(clients) == 212
    assert clients.sizes.min() == 64
    owners = np.unique(synthetic.owner[train])
    np.testing.assert_array_equal(owners, np.unique(synthetic.owner[test]))
    # train and test together are all the samples of the 212 tasks, and no others
    np.testing.assert_array_equal(
        np.sort(np.r_[train, test]), np.flatnonzero(np.isin(synthetic.owner, owners))
    )
    sizes = np.bincount(synthetic.owner)[owners]
    assert clients.sizes.tolist() == [int(0.6 * n) for n in sizes]


def test_the_split_follows_its_seed(synthetic: Dataset) -> None:
    np.testing.assert_array_equal(synthetic.split(3)[0], load("synthetic").split(3)[0])
    assert (synthetic.split(3)[0] != synthetic.split(4)[0]).any()


def test_every_sample_of_a_task_is_as_likely_to_be_trained_on(synthetic: Dataset) -> None:
    assert synthetic.owner is not None
    task = np.flatnonzero(np.bincount(synthetic.owner) == 1000)[0]
    members = np.flatnonzero(synthetic.owner == task)
    often = sum(np.isin(members, synthetic.split(seed)[0]) for seed in range(30)) / 30
    assert often.mean() == pytest.approx(0.6)
    assert 0.55 < often[:500].mean() < 0.65
    assert often.std() == pytest.approx(np.sqrt(0.6 * 0.4 / 30), rel=0.1)


@pytest.mark.parametrize(("fraction", "clients"), [(0.5, 182), (0.7, 239), (0.8, 264), (0.9, 283)])
def test_other_train_fractions(fraction: float, clients: int) -> None:
    data = load("synthetic", train_fraction=fraction)
    assert data.owner is not None
    assert len(np.unique(data.owner[data.split(0)[0]])) == clients


def test_the_global_generator_is_left_alone() -> None:
    from fedskip.data.synthetic import _generate

    np.random.seed(5)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    _generate.cache_clear()
    load("synthetic").split(0)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"train_fraction": 1.0},
            "data.train_fraction must be in (0, 1), got 1.0. The paper uses 0.6.",
        ),
        ({"train_fraction": "most"}, "data.train_fraction must be a number, got 'most'."),
        ({"min_train": 0}, "data.min_train must be >= 1, got 0."),
        ({"min_train": 601}, "data.min_train leaves no client, got 601. Use 600 or less."),
    ],
)
def test_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as error:
        load("synthetic", **options)
    assert str(error.value).startswith(message)
