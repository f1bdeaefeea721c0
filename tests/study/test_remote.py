"""What a worker on another machine makes of what it is sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskip.data.base import Arrays, Dataset
from fedskip.data.pools import Pool
from fedskip.study.remote import Order, Remote, digest_of, sent


@dataclass
class Box:
    """A parcel that is already there."""

    content: Any

    def open(self) -> Any:
        return self.content


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


def order(number: int, dataset: Dataset, data: dict[str, Any] | None = None) -> Order:
    nothing: Any = None
    return Order(
        spec=nothing, setting=nothing, divisions={}, scales={}, pool=number, data=data,
        digests=Pool(dataset).digests, weights=None, steps=1, devices=1.0,
    )  # fmt: skip


def test_data_sets_that_look_alike_are_not_taken_for_each_other() -> None:
    """The same arrays with another transform; and samples of one's own."""
    x, y = torch.randn(20, 2), torch.zeros(20, dtype=torch.long)
    plain = Dataset("plain", Arrays(x, y), split, 2)
    turned = Dataset("turned", Arrays(x, y), split, 2, train_transform=lambda x, _: -x)
    mine = [Dataset(f"mine{value}", Own(value), split, 2) for value in (1.0, 2.0)]
    worker, all_ = Remote(), [plain, turned, *mine]
    for _ in range(2):
        for number, dataset in enumerate(all_):
            pool = worker._pool(order(number, dataset), Box(sent(dataset)))
            assert pool is not None
            assert pool.dataset.name == dataset.name
            assert pool.dataset.train_transform is dataset.train_transform


def test_what_a_node_has_is_not_fetched(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    np.savez(file, x=np.ones((20, 2), np.float32), y=np.arange(20) % 2)
    data = {"name": str(file)}
    there = Remote()._pools.get(data).dataset

    class Closed:
        def open(self) -> Any:
            pytest.fail("it was fetched")

    assert Remote()._pool(order(0, there, data), Closed()) is not None
    assert Remote()._pool(order(0, there, {"name": str(tmp_path / "other.npz")}), None) is None
    np.savez(file, x=np.zeros((20, 2), np.float32), y=np.arange(20) % 2)
    assert Remote()._pool(order(0, there, data), None) is None, "it is another"


def test_digests_of_files(tmp_path: Path) -> None:
    file = tmp_path / "w.pt"
    assert digest_of(str(file)) is None
    file.write_bytes(b"one")
    one = digest_of(str(file))
    file.write_bytes(b"two")
    assert digest_of(str(file)) != one
