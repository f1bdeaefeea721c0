"""Who has which samples, and what no division may do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedskip import Dataset, InputError
from fedskip.data.division import Division, divide, evaluation_subset, split_by_owner
from studies import study, toy

FULL = toy()
N = len(FULL.samples)


def divided(dataset: Dataset, seed: int = 0, **options: Any) -> Division:
    defaults: dict[str, Any] = {
        "partition": {"kind": "iid"}, "clients": 5, "cohort": 2, "batch": 1, "drop_small": False,
        "validation": 0.0, "eval_samples": None,
    }  # fmt: skip
    return divide(dataset, seed, **defaults | options)


def with_split(train: Any, test: Any) -> Dataset:
    return Dataset("toy", FULL.samples, lambda seed: (train, test), 2, FULL.owner)


def by_seed() -> Dataset:
    def split(seed: int) -> tuple[np.ndarray, np.ndarray]:
        tests = (np.arange(N) + seed) % 3 == 0
        return np.flatnonzero(~tests), np.flatnonzero(tests)

    return Dataset("toy", FULL.samples, split, 2)


def test_a_partition_file_never_assigns_test_samples(tmp_path: Path) -> None:
    data, file = by_seed(), str(tmp_path / "p.npz")
    divided(data).clients.save(file)
    assert (
        divided(data, partition={"file": file}, clients=None).clients.hash
        == divided(data).clients.hash
    )
    with pytest.raises(InputError, match=r"partition.file assigns \d+ test samples of seed 1"):
        divided(data, 1, partition={"file": file}, clients=None)
    with pytest.raises(InputError, match=r"clients must be 5, as in partition.file, got 6"):
        divided(data, partition={"file": file}, clients=6)


def test_validation_samples_leave_the_training_samples() -> None:
    whole, parts = divided(FULL), divided(FULL, validation=0.25)
    held, clients = set(parts.validation), set(parts.clients.indices)
    assert held | clients == set(whole.clients.indices)
    assert not held & clients
    assert len(held) == round(0.25 * len(whole.clients.indices))
    assert parts.test.tolist() == whole.test.tolist()
    with pytest.raises(InputError, match=r"validation must leave something on both sides"):
        divided(FULL, validation=0.0001)


def test_clients_that_are_too_small() -> None:
    sizes = {"partition": {"kind": "quantity", "min_size": 1}, "clients": 8}
    spread = divided(FULL, **sizes).clients.sizes
    batch = int(np.sort(spread)[3])
    kept = divided(FULL, **sizes, batch=batch, drop_small=True)
    assert kept.clients.sizes.tolist() == spread[spread >= batch].tolist()
    assert kept.dropped == (spread < batch).sum() > 0
    with pytest.raises(InputError, match=r"local.batch must fit every client"):
        divided(FULL, **sizes, batch=batch)
    with pytest.raises(InputError, match=r"cohort must be <= 5, the number of clients, got 6"):
        divided(FULL, cohort=6)


def test_pooled_data_have_one_client(tmp_path: Path) -> None:
    """Whatever the default of the data set is; but a number that was written is refused."""
    alone = {"partition": "pooled", "cohort": 1, "methods": "fedavg", "rounds": 1, "seeds": 1}
    data = replace(FULL, defaults={"clients": 8})
    [setting] = study(tmp_path / "s", data=data, **alone).run().settings
    assert "clients" not in setting.keys
    with pytest.raises(InputError, match=r"clients must be 1 when partition.kind is 'pooled'"):
        divided(FULL, partition={"kind": "pooled"})


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (np.arange(N), np.arange(0), r"data has no test samples"),
        (np.arange(N) % 3 > 0, np.arange(N) % 3 == 0, r"data.split .* from 0 to 191"),
        (np.arange(9), np.array([N]), r"data.split .* from 0 to 191"),
        (np.arange(100), np.arange(97, N), r"data.split .* with 3\. The first of them is 97"),
        (np.array([1, 2, 2]), np.array([3]), r"data.split .* twice for training.*is 2"),
        (np.arange(9), None, r"data.split"),
    ],
)
def test_splits_that_cannot_be(train: Any, test: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        divided(with_split(train, test), partition={"kind": "natural"}, clients=None)


def test_a_partition_file_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros(3))
    for file in ("missing.npz", "own.npz"):
        with pytest.raises(
            InputError, match=r"partition.file must be a partition file, got .*OUT/"
        ):
            divided(FULL, partition={"file": str(tmp_path / file)}, clients=None)
    assert (tmp_path / "own.npz").exists()


def test_split_by_owner() -> None:
    owner = np.array([2, 0, 2, 2, 0, 2, 2])
    train, test = split_by_owner(owner, 0.6, seed=0)
    assert np.bincount(owner[train], minlength=3).tolist() == [1, 0, 3]
    assert sorted([*train, *test]) == list(range(7))
    choices = {tuple(split_by_owner(owner, 0.6, seed)[0]) for seed in range(300)}
    assert len(choices) == 2 * 10  # all of them


def test_evaluation_subset() -> None:
    test = np.arange(100, 200)
    chosen = evaluation_subset(test, 30)
    assert len(set(chosen)) == 30
    assert set(chosen) <= set(test)
    assert chosen.tolist() == sorted(chosen) == evaluation_subset(test, 30).tolist()
    assert evaluation_subset(test, None) is evaluation_subset(test, 100) is test
