"""Partitions: every sample has one owner, every client has samples, and impossible wishes end in advice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedskip.data.partitions import (
    KINDS,
    Partition,
    _dirichlet_counts,
    class_counts,
    partition,
)
from fedskip.errors import InputError

CIFAR10 = np.repeat(np.arange(10), 5000)
CIFAR100 = np.repeat(np.arange(100), 500)


def draw(
    kind: str, labels: np.ndarray, clients: int | None, seed: int = 0, **options: Any
) -> Partition:
    return partition(kind, np.arange(len(labels)), labels, clients=clients, seed=seed, **options)


# ---- what holds for every partition ------------------------------------------------------------------


@st.composite
def requests(rand: st.DrawFn) -> dict[str, Any]:
    """Arguments of `partition` that can be met, over a pool of which a part is for training."""
    kind = rand(st.sampled_from(sorted(KINDS)))
    classes, clients = rand(st.integers(1, 6)), rand(st.integers(1, 12))
    labels = np.array(rand(st.lists(st.integers(0, classes - 1), min_size=150, max_size=300)))
    train = np.random.default_rng(rand(st.integers(0, 99))).permutation(len(labels))[
        : rand(st.integers(120, 150))
    ]
    options: dict[str, Any] = {}
    if kind in ("dirichlet", "dirichlet_plain", "quantity"):
        options = {"beta": rand(st.sampled_from([1, 50.0])), "min_size": rand(st.integers(1, 3))}
    if kind == "shards":
        present = np.bincount(labels[train])
        present = present[present > 0]
        k = rand(st.integers(1, len(present)))
        assume(clients * k >= len(present) and present.min() >= clients)
        options = {"classes_per_client": k}
    owner = np.arange(len(labels)) * 7 % 20
    if kind == "pooled":
        clients = 1
    return {
        "kind": kind,
        "train": train,
        "labels": labels,
        "clients": clients,
        "owner": owner,
        "seed": rand(st.integers(0, 2**40)),
        **options,
    }


def counts_of(p: Partition, labels: np.ndarray) -> np.ndarray:
    """(N, C)."""
    return class_counts(p, labels, labels.max() + 1).T


@settings(max_examples=150, deadline=None)
@given(requests())
def test_every_sample_has_one_owner_and_every_client_has_samples(request: dict[str, Any]) -> None:
    p = partition(**request)
    train, owner = request["train"], request["owner"]
    if request["kind"] == "natural":
        chosen = np.unique(owner[p.indices])
        train = train[np.isin(owner[train], chosen)]
    assert len(p) == request["clients"]
    assert sorted(p.indices) == sorted(train)
    assert p.sizes.sum() == len(p.indices) == len(train)
    assert p.sizes.min() >= request.get("min_size", 1)
    assert p.indices.dtype == p.offsets.dtype == np.int64
    np.testing.assert_array_equal(np.concatenate([p[i] for i in range(len(p))]), p.indices)
    assert partition(**request).hash == p.hash


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "dirichlet_plain", "quantity", "shards"])
def test_the_seed_matters_and_the_global_generator_does_not(kind: str) -> None:
    np.random.seed(1)  # noqa: NPY002
    one = draw(kind, CIFAR10, 10, seed=1)
    state = np.random.get_state()[1]  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    np.testing.assert_array_equal(state, np.random.get_state()[1])  # noqa: NPY002
    np.random.seed(2)  # noqa: NPY002
    assert draw(kind, CIFAR10, 10, seed=1).hash == one.hash
    assert draw(kind, CIFAR10, 10, seed=2).hash != one.hash


def test_draws_are_the_same_on_every_machine() -> None:
    """Golden: results in a repository are only as good as the partition behind them."""
    assert {kind: draw(kind, CIFAR10, 10).hash for kind in ("iid", "dirichlet", "shards")} == {
        "iid": "85f3efd00154fd03",
        "dirichlet": "a0ab5e140df7a7f3",
        "shards": "7ed60f27fb315ded",
    }


# ---- each kind ---------------------------------------------------------------------------------------


def test_iid_sizes_differ_by_one_at_most() -> None:
    assert draw("iid", np.zeros(11, int), 4).sizes.tolist() == [3, 3, 3, 2]


@pytest.mark.parametrize(
    (
        "labels",
        "clients",
        "smallest",
        "largest",
        "std",
    ),  # 1-99 % over 300 seeds of the reference code
    [
        (CIFAR10, 10, (1230, 4045), (5689, 8937), (515, 2013)),
        (CIFAR10, 50, (112, 527), (1439, 2501), (229, 391)),
        (CIFAR10, 100, (57, 216), (783, 1532), (125, 196)),
        (CIFAR100, 10, (3944, 4827), (5079, 5450), (76, 376)),
        (CIFAR100, 50, (658, 882), (1067, 1275), (40, 80)),
        (CIFAR100, 100, (318, 424), (541, 673), (24, 40)),
    ],
)
def test_dirichlet_has_the_sizes_of_the_reference(
    labels: np.ndarray, clients: int, smallest: tuple, largest: tuple, std: tuple
) -> None:
    drawn = [draw("dirichlet", labels, clients, seed, beta=0.5).sizes for seed in range(10)]
    for statistic, (low, high) in ((np.min, smallest), (np.max, largest), (np.std, std)):
        inside = sum(low <= statistic(sizes) <= high for sizes in drawn)
        assert inside >= 9  # of ten, when 98 % are expected


class FixedShares:
    """Stands in for a generator whose Dirichlet draws we know."""

    def dirichlet(self, alpha: np.ndarray, size: int) -> np.ndarray:
        return np.array([[0.5, 0.5, 0], [0.5, 0.25, 0.25], [0.5, 0.3, 0.2]])


def test_dirichlet_counts_by_hand() -> None:
    """Three classes of six for three clients: after two classes the first client has its six."""
    sizes, rng = np.array([6, 6, 6]), cast(np.random.Generator, FixedShares())
    first, second = [3, 3, 0], [3, 1, 2]  # cut at floor(3, 6) and at floor(3, 4.5)
    balanced = _dirichlet_counts(sizes, 3, rng, 1.0, balance=True)
    assert balanced.tolist() == [first, second, [0, 3, 3]]  # p = (0, .6, .4), cut at floor(0, 3.6)
    plain = _dirichlet_counts(sizes, 3, rng, 1.0, balance=False)
    assert plain.tolist() == [first, second, [3, 1, 2]]  # cut at floor(3, 4.8)


def test_plain_dirichlet_may_overfill_a_client() -> None:
    """p ~ Dir(beta) has variance (1/N)(1 - 1/N)/(N beta + 1) per class, and ten classes add up."""
    sizes = np.concatenate(
        [draw("dirichlet_plain", CIFAR10, 10, seed, beta=0.5).sizes for seed in range(40)]
    )
    std = np.sqrt(10) * 5000 * np.sqrt(0.1 * 0.9 / (10 * 0.5 + 1))
    assert sizes.std() == pytest.approx(std, rel=0.1)


def test_a_large_beta_is_close_to_iid() -> None:
    counts = counts_of(draw("dirichlet", CIFAR10, 10, beta=1e5), CIFAR10)
    assert abs(counts - 500).max() < 25


def test_quantity_skews_sizes_and_not_labels() -> None:
    p = draw("quantity", CIFAR10, 10, beta=0.5, seed=1)
    assert p.sizes.std() > 1000
    counts = counts_of(p, CIFAR10)
    big = p.sizes > 500
    assert abs(counts[big] / p.sizes[big, None] - 0.1).max() < 0.05


@pytest.mark.parametrize(("clients", "k"), [(10, 1), (10, 3), (7, 2), (100, 10), (33, 4), (4, 3)])
def test_shards_give_exactly_k_classes_to_each_client(clients: int, k: int) -> None:
    counts = counts_of(draw("shards", CIFAR10, clients, classes_per_client=k), CIFAR10)
    assert ((counts > 0).sum(axis=1) == k).all()
    owners = (counts > 0).sum(axis=0)
    assert owners.max() - owners.min() <= 1
    for column in counts.T:  # the owners of a class share it equally
        assert np.ptp(column[column > 0]) <= 1


def test_shards_use_many_pairs_of_classes() -> None:
    counts = counts_of(draw("shards", CIFAR10, 100), CIFAR10) > 0
    assert len(np.unique(counts, axis=0)) > 25  # of 45


def test_natural_by_hand() -> None:
    owner = np.array([9, 5, 9, 7, 5, 9])
    p = partition("natural", [0, 1, 2, 4, 5], np.zeros(6), clients=None, seed=0, owner=owner)
    assert [p[i].tolist() for i in range(len(p))] == [
        [1, 4],
        [0, 2, 5],
    ]  # 5 before 9; 7 has no training sample


def test_natural_chooses_owners_by_the_seed() -> None:
    owner = np.repeat(np.arange(30), 4)
    chosen = [
        tuple(
            owner[
                partition(
                    "natural", np.arange(120), owner, clients=9, seed=seed, owner=owner
                ).indices[::4]
            ]
        )
        for seed in (1, 1, 2)
    ]
    assert chosen[0] == chosen[1] != chosen[2]
    assert list(chosen[0]) == sorted(set(chosen[0]))
    assert len(chosen[0]) == 9


def test_pooled_is_one_client_with_everything() -> None:
    p = partition("pooled", [3, 1, 2], np.zeros(5), clients=None, seed=0)
    assert len(p) == 1
    assert p[0].tolist() == [3, 1, 2]


# ---- the object --------------------------------------------------------------------------------------


@pytest.fixture
def small() -> Partition:
    """Clients [5, 6], [7] and [1, 2, 3]."""
    return Partition(np.array([5, 6, 7, 1, 2, 3]), np.array([0, 2, 3, 6]))


def test_clients_are_views_into_one_array(small: Partition) -> None:
    assert len(small) == 3
    assert small.sizes.tolist() == [2, 1, 3]
    assert small[1].tolist() == [7]
    assert small[-1].tolist() == [1, 2, 3]
    assert np.shares_memory(small[2], small.indices)
    with pytest.raises(IndexError):
        small[3]


def test_select(small: Partition) -> None:
    chosen = small.select([2, 0])
    assert [chosen[0].tolist(), chosen[1].tolist()] == [[1, 2, 3], [5, 6]]
    assert small.select(small.sizes >= 2).hash == small.select([0, 2]).hash
    assert small.select([0, 1, 2]).hash == small.hash
    with pytest.raises(IndexError):
        small.select([3])


def test_the_hash_sees_both_arrays(small: Partition) -> None:
    assert Partition(small.indices[::-1], small.offsets).hash != small.hash
    assert Partition(small.indices, np.array([0, 1, 3, 6])).hash != small.hash


def test_save_and_load(small: Partition, tmp_path: Path) -> None:
    path = tmp_path / "partition-0.npz"
    small.save(path)
    small.save(path)  # over an old one
    loaded = Partition.load(path)
    np.testing.assert_array_equal(loaded.indices, small.indices)
    np.testing.assert_array_equal(loaded.offsets, small.offsets)
    assert list(tmp_path.iterdir()) == [path]  # no temporary file is left
    with pytest.raises(FileNotFoundError):
        Partition.load(tmp_path / "nothing.npz")


def test_a_failed_save_leaves_the_old_file(
    small: Partition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "partition-0.npz"
    small.save(path)

    def full_disk(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="no space"):
        small.select([0]).save(path)
    assert Partition.load(path).hash == small.hash


@pytest.mark.parametrize(
    "damage", ["empty", "text", "cut", "flipped", "npy", "other npz", "changed"]
)
def test_a_damaged_file_is_named(small: Partition, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "partition-0.npz"
    small.save(path)
    content = path.read_bytes()
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("hello")
    elif damage == "cut":
        path.write_bytes(content[:-40])
    elif damage == "flipped":
        at = content.index(small.indices.tobytes())
        path.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
    elif damage == "npy":
        with path.open("wb") as file:
            np.save(file, small.indices)
    elif damage == "other npz":
        np.savez(path, weights=np.zeros(3))
    else:
        np.savez(
            path, indices=small.indices[::-1], offsets=small.offsets, hash=np.array(small.hash)
        )
    with pytest.raises(InputError, match=r"partition-0\.npz .*Delete the file"):
        Partition.load(path)


# ---- requests that cannot be met ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "request_"),
    [
        (
            "partition.kind is not known, got 'dirichlett'. Did you mean 'dirichlet'?",
            {"kind": "dirichlett"},
        ),
        (
            "partition.betta is not an option of 'dirichlet', got 1. Did you mean 'beta'?",
            {"betta": 1},
        ),
        (
            "partition.shape is not an option of 'dirichlet', got 1. Known: beta, min_size.",
            {"shape": 1},
        ),
        ("partition.beta is not an option of 'iid', got 1. Remove it.", {"kind": "iid", "beta": 1}),
        (
            "clients must be given for this partition.kind. The paper uses 10, 50 and 100.",
            {"clients": None},
        ),
        ("clients must be >= 1, got 0.", {"clients": 0}),
        ("clients must be a whole number or null, got 2.5.", {"clients": 2.5, "kind": "iid"}),
        (
            "clients must be <= 100, the number of training samples, got 101.",
            {"clients": 101, "kind": "iid"},
        ),
        (
            "clients must be <= 20, the number of owners, got 21. Leave it out",
            {"clients": 21, "kind": "natural"},
        ),
        ("clients must be >= 1, got -1.", {"clients": -1, "kind": "natural"}),
        (
            "clients must be 1 when partition.kind is 'pooled', got 10. Leave it out.",
            {"kind": "pooled"},
        ),
        ("partition.beta must be > 0, got 0.0. Use 0.5 as the paper does", {"beta": 0}),
        (
            "partition.beta must be a number, got 'half'.",
            {"beta": "half"},
        ),
        (
            "partition.beta must be a number, got nan.",
            {"beta": float("nan")},
        ),
        (
            "partition.beta must be a number, got inf.",
            {"beta": float("inf"), "kind": "quantity"},
        ),
        (
            "partition.beta left one of 10 clients with < 10 samples in each of 1000 draws, got 1e-09. "
            "Use a larger beta, fewer clients or a smaller partition.min_size.",
            {"beta": 1e-9, "kind": "dirichlet_plain"},
        ),
        ("partition.min_size must be >= 1, got 0.", {"min_size": 0}),
        (
            "partition.min_size x 10 clients must be <= 100, the number of training samples, got 11. "
            "Use 10 or less, or fewer clients.",
            {"min_size": 11},
        ),
        (
            "partition.classes_per_client must be >= 1, got 0.",
            {"kind": "shards", "classes_per_client": 0},
        ),
        (
            "partition.classes_per_client must be <= 5, the number of classes, got 6.",
            {"kind": "shards", "classes_per_client": 6},
        ),
        (
            "partition.classes_per_client x 2 clients leaves some of the 5 classes without an owner, got 2. "
            "Use 3 or more, or more clients.",
            {"kind": "shards", "clients": 2},
        ),
        (
            "partition.classes_per_client x 60 clients gives a class of 20 samples 24 owners, got 2. "
            "Use a smaller number or fewer clients.",
            {"kind": "shards", "clients": 60},
        ),
        (
            "partition.kind needs a data set whose samples have owners, got 'natural'. Use 'iid' or",
            {"kind": "natural", "owner": None},
        ),
        (
            "partition.kind needs one class per sample, but the labels are float64 of shape (100, 3). "
            "Use 'iid', 'quantity' or 'natural'.",
            {"labels": np.zeros((100, 3))},
        ),
        ("partition has no training samples to assign. Check the data set", {"train": []}),
    ],
)
def test_impossible_requests_end_with_advice(message: str, request_: dict[str, Any]) -> None:
    default = {
        "kind": "dirichlet",
        "train": np.arange(100),
        "labels": np.arange(100) % 5,
        "clients": 10,
        "seed": 0,
        "owner": np.arange(100) % 20,
    }
    with pytest.raises(InputError) as error:
        partition(**{**default, **request_})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("kind", ["dirichlet", "dirichlet_plain", "quantity"])
def test_extreme_betas_neither_hang_nor_lose_samples(kind: str) -> None:
    labels = np.arange(2000) % 10
    assert sorted(draw(kind, labels, 10, beta=1e38).indices) == list(range(2000))
    with pytest.raises(InputError, match=r"partition\.beta left one of 10 clients"):
        draw(kind, labels, 10, beta=1e-300)


# ---- scale -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"pooled"}))
def test_a_hundred_thousand_clients_take_about_a_second(kind: str, tmp_path: Path) -> None:
    n, m = 100_000, 500_000
    owner = np.arange(m) % n
    options: dict[str, Any] = {}
    if kind in ("dirichlet", "dirichlet_plain", "quantity"):
        options = {"beta": 100.0, "min_size": 1}
    start = time.process_time()
    p = partition(kind, np.arange(m), np.arange(m) % 2, clients=n, seed=0, owner=owner, **options)
    p.select(p.sizes >= 5)
    p.save(tmp_path / "p.npz")
    assert Partition.load(tmp_path / "p.npz").hash == p.hash
    assert len(p) == n
    assert p.sizes.min() >= 1
    assert time.process_time() - start < 1.5  # seconds; measured: 0.2


def test_what_is_shown_is_short():
    made = Partition(np.arange(5), np.array([0, 2, 5]))
    assert repr(made) == "Partition(2 clients, 5 samples, 2 to 3 each)"
    nobody = Partition(np.arange(0), np.array([0]))
    assert repr(nobody) == "Partition(0 clients, 0 samples)"


def test_class_counts_by_hand():
    parts = Partition(np.array([0, 3, 1, 2, 4]), np.array([0, 2, 5]))
    counts = class_counts(parts, np.array([0, 2, 2, 1, 0], np.uint8), classes=4)
    assert counts.tolist() == [[1, 1], [1, 0], [0, 2], [0, 0]]
