"""Who has what, and what no division may do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedskip import Dataset, InputError
from studies import Net, study, toy


def test_a_partition_file_never_deals_test_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 2)).astype(np.float32), np.arange(90) % 2
    np.savez(tmp_path / "own.npz", x=x, y=y)
    keys: dict[str, Any] = {"data": str(tmp_path / "own.npz"), "model": Net, "clients": 5, "rounds": 1}
    study(tmp_path / "one", **keys, partition="iid", seeds=1).run()
    file = str(tmp_path / "one" / "partition-own-0.npz")
    with pytest.raises(InputError, match=r"partition.file deals \d+ samples that are for testing at seed 1"):
        study(tmp_path / "two", **keys, partition={"file": file}, seeds=2).run()
    study(tmp_path / "three", **keys, partition={"file": file}, seeds=2, partition_seed=0).run()
    with pytest.raises(InputError, match=r"clients must be 5, as in partition.file, got 6. Leave it out"):
        study(tmp_path / "four", **keys | {"clients": 6}, partition={"file": file}, seeds=1).run()


def test_pooled_data_have_one_client(tmp_path: Path) -> None:
    """Whatever the default of the data set is; but a number that was written is refused."""
    alone = {"partition": "pooled", "cohort": 1, "methods": "fedavg", "rounds": 1, "seeds": 1}
    data = replace(toy(), defaults={"clients": 8})
    [setting] = study(tmp_path / "s", data=data, **alone).run().settings
    assert "clients" not in setting.keys
    with pytest.raises(
        InputError, match=r"clients must be 1 when partition.kind is 'pooled', got 5\. Leave it"
    ):
        study(tmp_path / "t", data=data, **alone, clients=5).run()
    assert not (tmp_path / "t").exists()


def test_an_empty_test_set_is_no_divergence(tmp_path: Path) -> None:
    full = toy()
    everyone = np.arange(len(full.samples))
    empty = Dataset("toy", full.samples, lambda seed: (everyone, everyone[:0]), 2, full.owner)
    with pytest.raises(InputError, match="data has no test samples for the clients that take part"):
        study(tmp_path / "s", data=empty).run()


def test_masks_are_no_indices(tmp_path: Path) -> None:
    full = toy()
    mask = np.arange(len(full.samples)) % 3 > 0
    masked = Dataset("toy", full.samples, lambda seed: (mask, ~mask), 2, full.owner)
    with pytest.raises(InputError, match=r"data.split must give the numbers of samples, from 0 to 191"):
        study(tmp_path / "s", data=masked).run()


def test_a_sample_does_not_train_and_test(tmp_path: Path) -> None:
    full = toy()
    halves = np.arange(100), np.arange(97, 192)
    leaking = Dataset("toy", full.samples, lambda seed: halves, 2, full.owner)
    with pytest.raises(InputError, match=r"data.split must not give .* with 3\. The first of them is 97"):
        study(tmp_path / "s", data=leaking).run()


def test_a_partition_file_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros(3))
    for file in ("missing.npz", "own.npz"):
        with pytest.raises(InputError, match=r"partition.file must be a partition file, got .*OUT/part"):
            study(tmp_path / "s", partition={"file": str(tmp_path / file)}).run()
    assert (tmp_path / "own.npz").exists()
