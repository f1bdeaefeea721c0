"""The score of each client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedskip import Dataset, InputError, Partition
from fedskip.data.client_scores import by_client, grouped, refuse_unmixed, worst_decile
from fedskip.data.division import Division
from fedskip.records.table import Table
from studies import as_table, numbered, study, toy


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
