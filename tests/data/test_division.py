"""Who has which samples, and what no division may do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedskip import Dataset, InputError, Partition
from fedskip.data.division import (
    Division,
    by_client,
    divide,
    evaluation_subset,
    grouped,
    refuse_unmixed,
    sample_counts,
    split_by_owner,
    worst_decile,
)
from fedskip.records.table import Table
from studies import as_table, numbered, study, toy

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
        (
            np.arange(100),
            np.arange(97, N),
            r"data.split .* once.*3 are given twice; the first of them is 97",
        ),
        (np.array([1, 2, 2]), np.array([3]), r"data.split .* once.*1 are given twice.*is 2"),
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


# --- The score of each client --------------------


def division(test: list[int]) -> Division:
    """Client 0 has samples 0 to 3, client 1 has 4 and 5."""
    clients = Partition(np.arange(6), np.array([0, 4, 6]))
    return Division(clients, np.array(test), np.array(test), np.array([], int))


def pool(labels: list[int], **about: object) -> Dataset:
    full = toy()
    samples = type(full.samples)(full.samples.x[: len(labels)], np.array(labels))  # type: ignore
    return Dataset("pool", samples, full.split, 3, **about)  # type: ignore[arg-type]


def test_by_its_own_mix_of_classes() -> None:
    """A client with three quarters of class 0 is scored by as much of it, however the test set looks."""
    data, parts = pool([0, 0, 0, 1, 1, 1, 0, 1, 1, 1]), division([6, 7, 8, 9])
    places, group = grouped(data, parts)
    assert (places.tolist(), group.tolist()) == ([0, 1, 2, 3], [0, 1, 1, 1])
    right = np.array([1.0, 0.0, 1.0, 1.0])  # of the test samples
    by_class = np.array([right[group == c].mean() for c in (0, 1)])
    assert by_client(data, parts, by_class) == pytest.approx(
        {0: 3 / 4 * 1 + 1 / 4 * 2 / 3, 1: 2 / 3}
    )


def test_the_mean_of_many_draws() -> None:
    """The number is what test samples drawn by the client's mix give on average."""
    rng = np.random.default_rng(0)
    data, parts = pool([0, 0, 1, 2, 2, 2, *[0] * 9, *[1] * 5, *[2] * 3]), division([*range(6, 23)])
    labels, right = data.samples.labels(), rng.random(23)
    by_class = np.array([right[6:][labels[6:] == c].mean() for c in range(3)])
    mix = np.bincount(labels[:4], minlength=3) / 4
    drawn = [
        right[rng.choice(np.flatnonzero(labels[6:] == rng.choice(3, p=mix)) + 6)]
        for _ in range(20_000)
    ]
    assert by_client(data, parts, by_class)[0] == pytest.approx(np.mean(drawn), abs=0.01)


def test_a_class_without_test_samples_is_left_out() -> None:
    data, parts = pool([0, 0, 0, 1, 1, 1, 0, 0]), division([6, 7])
    assert by_client(data, parts, np.array([0.5])) == {0: 0.5}  # client 1 has nothing but class 1
    assert by_client(data, parts, np.array([0.5, np.nan])) == {0: 0.5}


def test_clients_with_test_samples_of_their_own() -> None:
    owner = np.array([0, 0, 0, 0, 1, 1, 0, 1, -1])
    data, parts = (
        pool([0, 0, 0, 1, 1, 1, 0, 1, 1], owner=owner, owner_names=("a", "b")),
        division([6, 7, 8]),
    )
    places, group = grouped(data, parts)
    assert (places.tolist(), group.tolist()) == ([0, 1], [0, 1])
    assert by_client(data, parts, np.array([0.25, np.nan])) == {"a": 0.25}


def test_where_it_is_not_defined(tmp_path: Path) -> None:
    nobody = Dataset("sums", numbered().samples, numbered().split)
    with pytest.raises(
        InputError, match=r"client_accuracy is not defined for 'sums', which has no classes"
    ):
        refuse_unmixed(nobody, [division([6, 7])])
    keys = {
        "loss": "squared_error",
        "metric": "minus_squared_error",
        "model": "linear",
        "clients": 4,
    }
    with pytest.raises(InputError, match=r"client_accuracy is not defined"):
        study(tmp_path / "s", data=nobody, partition="iid", client_accuracy=True, **keys).run()
    assert not (tmp_path / "s").exists()
    nobody = Dataset("toy", toy().samples, toy().split, 2)
    with pytest.raises(InputError, match=r"client_accuracy cannot be had with this metric"):
        refuse_unmixed(nobody, [division([6, 7])], mean=False)


def test_the_worst_tenth() -> None:
    assert worst_decile(np.arange(20) / 20) == 0.025
    assert worst_decile(np.arange(20) / 20, higher=False) == 0.925
    assert worst_decile([0.5]) == 0.5
    assert worst_decile([]) is None


def test_a_study_with_a_drawn_partition(tmp_path: Path) -> None:
    full = toy()
    data = Dataset("toy", full.samples, full.split, 2)
    keys = {
        "partition": {"kind": "dirichlet", "beta": 0.3, "min_size": 4},
        "clients": 12,
        "rounds": 2,
    }
    results = study(
        tmp_path / "s", data=data, methods="fedavg", seeds=1, client_accuracy=True, **keys
    ).run()
    rows = Table.read(tmp_path / "s" / "clients.csv")
    for run in as_table(results.summary):
        scores = sorted(rows.where(run=run["run"]).column("test_accuracy"))
        assert len(scores) == 12
        assert run["worst_clients"] == pytest.approx(np.mean(scores[:2]))
        assert scores[0] <= run["last"] <= scores[-1]


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_a_tenth_is_rounded_up(clients: int, worst: int) -> None:
    assert worst_decile(float(i) for i in range(clients)) == (worst - 1) / 2  # mean of 0, 1, ...


def test_a_table_of_samples_by_hand(monkeypatch):
    parts = Partition(np.array([0, 3, 1, 2, 4]), np.array([0, 2, 5]))
    samples = SimpleNamespace(labels=lambda: np.array([0, 1, 1, 1, 0]))
    data = SimpleNamespace(classes=2, class_names=("a, b", "c"), samples=samples)
    assert sample_counts(parts, data) == 'class,0,1\n"a, b",1,1\nc,1,2\n'
    monkeypatch.setattr("fedskip.data.division.MOST_CLIENTS", 1)
    assert sample_counts(parts, data) == "class,0,1\nall,2,3\n", "many clients"
