"""What a worker on another machine makes of what it is sent."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskip.data.catalogue import LoadedDatasets
from fedskip.data.dataset import Arrays, Dataset

pytest.importorskip("ray")

import ray

from fedskip.study.device_worker import DeviceWorker, SettingToTrain, file_digest, pack_dataset


class Own:
    """Samples that are no tensors: nothing of them is digested."""

    def __init__(self, value: float) -> None:
        self.values = np.full((20, 2), value, np.float32)

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.values)[index], torch.zeros(index.shape, dtype=torch.long)

    def labels(self) -> np.ndarray:
        return np.zeros(20, int)

    def to(self, *_: object) -> Own:
        return self


def split(_: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(10), np.arange(10, 20)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceWorker]:
    """In this process, where a reference is a function."""
    monkeypatch.setattr(ray, "get", lambda reference, timeout: reference())
    before = signal.getsignal(signal.SIGINT), list(sys.path)
    yield DeviceWorker([], "CPU", "/")
    signal.signal(signal.SIGINT, before[0])
    sys.path[:] = before[1]


def setting(dataset: Dataset, sent: Any, data: dict[str, Any] | None = None) -> SettingToTrain:
    nothing: Any = None
    return SettingToTrain(
        spec=nothing, prepared=nothing, data=data, digests=dataset.digests, sent=sent,
        weights=None, steps=1, devices=1.0,
    )  # fmt: skip


def test_data_sets_that_look_alike_are_not_confused(worker: DeviceWorker) -> None:
    """The same arrays with another transform; and custom samples."""
    x, y = torch.randn(20, 2), torch.zeros(20, dtype=torch.long)
    plain = Dataset("plain", Arrays(x, y), split, 2)
    turned = Dataset("turned", Arrays(x, y), split, 2, train_transform=lambda x, _: -x)
    mine = [Dataset(f"mine{value}", Own(value), split, 2) for value in (1.0, 2.0)]
    references = {data.name: partial(pack_dataset, data) for data in (plain, turned, *mine)}
    for _ in range(2):
        for dataset in (plain, turned, *mine):
            loaded = worker._dataset(setting(dataset, references[dataset.name]))
            assert loaded.name == dataset.name
            assert loaded.train_transform is dataset.train_transform


def test_what_a_node_has_is_not_fetched(tmp_path: Path, worker: DeviceWorker) -> None:
    file = tmp_path / "mine.npz"
    np.savez(file, x=np.ones((20, 2), np.float32), y=np.arange(20) % 2)
    data = {"name": str(file)}
    dataset = LoadedDatasets().get(data)
    fetched: list[str] = []

    def sent() -> dict[str, Any]:
        fetched.append(dataset.name)
        return pack_dataset(dataset)

    worker._dataset(setting(dataset, sent, data))
    assert not fetched
    worker._dataset(setting(dataset, sent, {"name": str(tmp_path / "other.npz")}))
    assert len(fetched) == 1
    np.savez(file, x=np.zeros((20, 2), np.float32), y=np.arange(20) % 2)
    other = DeviceWorker([], "CPU", "/")
    found = other._dataset(setting(dataset, sent, data))
    assert len(fetched) == 2, "it is another"
    assert torch.equal(found.samples.x, dataset.samples.x)  # type: ignore[attr-defined]


def test_digests_of_files(tmp_path: Path) -> None:
    file = tmp_path / "w.pt"
    assert file_digest(str(file)) is None
    file.write_bytes(b"one")
    one = file_digest(str(file))
    file.write_bytes(b"two")
    assert file_digest(str(file)) != one
