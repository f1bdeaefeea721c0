"""Inputs with mean 0 and standard deviation 1, by the training samples alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedskip import Arrays, Dataset, InputError
from fedskip.data import load, standardize
from fedskip.data.arrays import as_input, as_train_input
from fedskip.data.cifar import cifar10_test, cifar10_train
from fedskip.data.standardize import Standardized, measure_scale, refuse_unfit
from fedskip.records.table import Table
from fedskip.report.progress import Progress
from studies import numbers, study, toy, weights

TRAIN = np.array([4, 0, 2])


def pool(x: torch.Tensor, **about: object) -> Dataset:
    return Dataset(
        "pool", Arrays(x, torch.zeros(len(x))), lambda seed: (TRAIN, np.array([1])), **about
    )  # type: ignore


def test_vectors_number_by_number() -> None:
    x = torch.tensor([[1.0, 5, 0], [99, 98, 97], [2, 5, 0], [96, 95, 94], [6, 5, 3]])
    scale = measure_scale(pool(x), TRAIN)
    assert scale.mean.tolist() == [3, 0, 1]  # the second is the same in all
    assert scale.std == pytest.approx([np.std([1, 2, 6]), 1, np.std([0, 0, 3])])
    found, _ = Standardized.of(pool(x), [scale]).take(torch.tensor(TRAIN))
    assert found.mean(0).tolist() == pytest.approx([0, 5, 0])
    assert found.std(0, correction=0).tolist() == pytest.approx([1, 0, 1])


@pytest.mark.parametrize(
    ("shape", "like"), [((3, 4, 4), (3, 1, 1)), ((6, 7), (1, 1)), ((2, 5), (1, 1))]
)
def test_images_channel_by_channel(
    shape: tuple[int, ...], like: tuple[int, ...], monkeypatch
) -> None:
    monkeypatch.setattr(standardize, "SUMMED", 20)  # in several parts
    x = torch.randint(
        0, 256, (5, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    data = pool(x, train_transform=as_train_input, test_transform=as_input)
    refuse_unfit(data)
    scale = measure_scale(data, TRAIN)
    assert scale.mean.shape == scale.std.shape == like
    trained = x[TRAIN].double().numpy() / 255
    axes = (0, 2, 3) if len(shape) == 3 else (0, 1, 2)
    assert scale.mean.ravel() == pytest.approx(trained.mean(axes).ravel(), rel=1e-6)
    assert scale.std.ravel() == pytest.approx(trained.std(axes).ravel(), rel=1e-6)


def test_several_scales_share_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    data = toy()
    scales = [measure_scale(data, train) for train in (np.arange(9), np.arange(50, 99))]
    both = Standardized.of(data, scales)
    n = len(data.samples)
    assert len(both) == len(both.labels()) == 2 * n
    index = torch.tensor([[3, n + 3], [5, n + 7]])
    x, y = both.to(torch.device("cpu"), torch.float32).take(index)
    for row, column in np.ndindex(2, 2):
        slot, i = divmod(int(index[row, column]), n)
        alone, label = Standardized.of(data, [scales[slot]]).take(torch.tensor([i]))
        assert x[row, column].tolist() == pytest.approx(alone[0].tolist(), rel=1e-5)
        assert y[row, column] == label[0]
    kept = both.to(torch.device("cpu"), torch.float32)
    monkeypatch.setattr(standardize, "KEPT", 0)
    taken = both.to(torch.device("cpu"), torch.float32)
    assert (type(kept), type(taken)) == (Arrays, Standardized)
    everything = torch.arange(2 * n)
    assert all(map(torch.equal, kept.take(everything), taken.take(everything)))


def test_equal_samples_are_one_scale() -> None:
    x = torch.randn(5, 2)
    one, other = measure_scale(pool(x), TRAIN), measure_scale(pool(x), TRAIN[::-1])
    assert (one, hash(one)) == (other, hash(other))


def test_what_has_no_scale() -> None:
    with pytest.raises(
        InputError, match=r"data.standardize cannot be had for 'pool': its inputs are ids"
    ):
        refuse_unfit(pool(torch.zeros(5, 2, dtype=torch.long)))
    images = torch.arange(5 * 3 * 32 * 32, dtype=torch.uint8).reshape(5, 3, 32, 32)
    drawn = pool(images, train_transform=cifar10_train, test_transform=cifar10_test)
    with pytest.raises(InputError, match=r"its training transform draws, and scales by itself"):
        refuse_unfit(drawn)
    with pytest.raises(InputError, match=r"data.standardize must be true or false, got 3"):
        pool(images, standardize=3)


def test_for_every_data_set() -> None:
    assert load("synthetic", standardize=True).standardize
    with pytest.raises(InputError, match=r"data.standardize must be true or false, got 'maybe'"):
        load("synthetic", standardize="maybe")  # type: ignore[arg-type]


def shifted(**about: object) -> Dataset:
    """Far from unit scale, and with a split that follows the seed."""
    full = toy()

    def split(seed: int) -> tuple[np.ndarray, np.ndarray]:
        tests = (np.arange(len(full.samples)) + seed) % 3 == 0
        return np.flatnonzero(~tests), np.flatnonzero(tests)

    samples = Arrays(full.samples.x * torch.tensor([1000.0, 0.01]) + 7, full.samples.y)  # type: ignore
    return replace(full, samples=samples, split=split, **about)  # type: ignore[arg-type]


def by_hand(seed: int) -> Dataset:
    data = shifted()
    x = data.samples.x.double()  # type: ignore[attr-defined]
    train = x[data.split(seed)[0]]
    done = (x - train.mean(0)) / train.std(0, correction=0)
    return replace(data, samples=Arrays(done.float(), data.samples.labels()))


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_study_trains_on_it(engine: str, tmp_path: Path) -> None:
    """Every seed by its own training samples: as if each had been standardised by hand."""
    keys = {
        "engine": engine,
        "methods": "fedavg",
        "rounds": 2,
        "processes": 1,
        "client_accuracy": True,
    }
    study(tmp_path / "all", data=shifted(standardize=True), seeds=2, **keys).run()
    rows = Table.read(tmp_path / "all" / "history.csv")
    clients = Table.read(tmp_path / "all" / "clients.csv")
    seed = 1
    study(tmp_path / "one", data=by_hand(seed), seeds=[seed], **keys).run()
    expected = Table.read(tmp_path / "one" / "history.csv").column("test_loss")
    assert rows.where(seed=seed).column("test_loss") == pytest.approx(expected, rel=1e-4)
    alone = Table.read(tmp_path / "one" / "clients.csv").column("test_accuracy")
    assert clients.where(seed=seed).column("test_accuracy") == pytest.approx(alone)
    scale = np.load(tmp_path / "all" / f"scale-toy-{seed}.npz")
    assert scale["mean"] == pytest.approx(measure_scale(shifted(), shifted().split(seed)[0]).mean)


class Stop(Progress):
    def checkpoint(self, round: int) -> None:
        raise KeyboardInterrupt


def test_resume_is_exact(tmp_path: Path) -> None:
    def one(name: str):
        keys = {
            "methods": "fedavg",
            "rounds": 4,
            "checkpoint_every": 2,
            "validation": 0.2,
            "processes": 1,
        }
        return study(tmp_path / name, data=shifted(standardize=True), **keys)

    one("whole").run()
    with pytest.raises(KeyboardInterrupt):
        one("cut").run(Stop())
    one("cut").resume()
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "whole")
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
