"""What does not fit is refused before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedskip import Arrays, Dataset, FedAvg, InputError
from fedskip.config import Draft
from fedskip.data.catalogue import LoadedDatasets
from fedskip.engine.arithmetic import EXACT
from fedskip.methods.base import State
from fedskip.records.folder import Folder
from fedskip.study.prepare import Prepared, prepare
from fedskip.study.rehearsal import sanity_checks, score_of_guessing
from studies import Halved, numbered, study, toy
from tiny import Assigns, Looks


@dataclass(frozen=True, kw_only=True)
class Careless(FedAvg):
    """A merge that gives the model alone."""

    title: ClassVar[str] = "Careless"

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Any:
        return p @ w


@dataclass(frozen=True, kw_only=True)
class Absent(FedAvg):
    """Declares a row that it never gives."""

    title: ClassVar[str] = "Absent"
    remembers: ClassVar[dict[str, Any]] = {"h": "trainable"}


def labelled(label: int) -> Dataset:
    """With one wrong label, which is not among the first samples."""
    full = toy()
    y = full.samples.y.clone()  # type: ignore[attr-defined]
    y[100] = label
    return replace(full, samples=Arrays(full.samples.x, y))  # type: ignore[attr-defined]


class Pair(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


NORMED = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


STACKED = {"methods": "fedavg", "engine": "stacked"}


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "a transform that loses samples": (
        {"data": replace(toy(), train_transform=lambda x, draws: x[:1])},
        r"train_transform must give a tensor with a row for each of the 2 samples",
    ),
    "a test transform that loses samples": (
        {"data": replace(toy(), test_transform=lambda x: x[:1])},
        r"test_transform must give a tensor with a row for each of the 2 samples",
    ),
    "inputs": (
        {"model": nn.Linear(3, 2), "methods": "fedavg"},
        r"model cannot take the samples of 'toy', .* shape \(2,\), got 'Linear'\. Torch says: mat1 and mat2",
    ),
    "outputs": (
        {"model": nn.Linear(2, 1), "methods": "fedavg"},
        r"model must give a score for each of the 2 classes of 'toy', got 'Linear'\. .* gives \(1,\)",
    ),
    "class": (
        {"model": nn.Linear, "methods": "fedavg"},
        r"model cannot be made \(missing a required argument: 'in_features'\), got 'Linear'\. Give an",
    ),
    "maker": (
        {"model": lambda: 5},
        "model must be an nn.Module, got 'int'. Give an nn.Module",
    ),
    "features": ({"model": nn.Linear(2, 2)}, r"model must have a method features\(x\)"),
    "loss": ({"loss": torch.nn.functional.cross_entropy}, "loss must give one number per sample"),
    "metric": (
        {"metric": lambda output, target: output.mean()},
        "metric must give one number per sample",
    ),
    "numpy": (
        {"metric": lambda output, target: output[:, 0].numpy()},
        "metric must give one .* got 'ndarray'",
    ),
    "tuple": (
        {"model": Pair, "methods": "fedavg"},
        "model must give a tensor, got 'tuple'. Return the scores",
    ),
    "spread": (
        {
            "data": numbered(),
            "model": nn.Linear(2, 1),
            "methods": "fedavg",
            "metric": "minus_squared_error",
        }
        | {"loss": lambda output, target: (output - target).square().mean(1)},
        r"loss must give every sample a number that does not .* Compare the shapes \(2, 1\) of the model",
    ),
    "target": (
        {"loss": "binary_cross_entropy"},
        r"loss cannot compare the \(2, 2\) of the model and \(2,\)",
    ),
    "memory": (
        {"methods": [Absent()]},
        "Absent breaks the rule .`end` returns as memory .* Here: 'h' was not returned",
    ),
    "merge": (
        {"methods": [Careless()]},
        "Careless breaks the rule .A merge gives .* write return Merged",
    ),
    "labels": (
        {"data": labelled(7)},
        r"data.y must hold classes from 0 to 1, for which the model has scores, got 7",
    ),
    "ignored": ({"data": labelled(-100)}, "data.y must hold classes from 0 to 1, .* got -100"),
    "accuracy": (
        {"model": nn.Linear(2, 1), "methods": "fedavg", "loss": "squared_error"},
        r"metric cannot be accuracy.* gives \(1,\) for a sample'\. Set metric=minus_squared_error",
    ),
    "lonely": (
        {"model": NORMED, "methods": "fedavg", "local": {"batch": 5, "last_batch": "keep"}},
        "local.batch leaves a batch of one sample, .* got 5. Torch says: Expected more than 1 value",
    ),
    "validation": (
        {"validation": 0.001},
        "validation must leave something on both sides of 128 training",
    ),
    "method": (
        STACKED | {"methods": [Halved()]},
        "cannot be 'stacked' for a method with its own objective",
    ),
    "short": (
        STACKED | {"model": NORMED, "local": {"batch": 6, "last_batch": "keep"}},
        "cannot be 'stacked' for BatchNorm with short batches",
    ),
    "state": (
        STACKED | {"model": Assigns},
        "cannot be 'stacked' for this model, got 'Assigns'. 'mean' comes out differently than in the loop",
    ),
    "vmap": (
        STACKED | {"model": Looks(2, 2)},
        "engine cannot be 'stacked' for this model, loss and metric.*data-dependent control flow",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path, case: str) -> None:
    keys, message = UNFIT[case]
    with pytest.raises(InputError, match=message):
        study(tmp_path / "s", **keys).run()
    assert not (tmp_path / "s").exists()


def test_numbers_are_no_classes(tmp_path: Path) -> None:
    full = toy()
    samples = Arrays(full.samples.x, full.samples.y + 0.5)  # type: ignore[attr-defined]
    numbers = Dataset("toy", samples, full.split, owner=full.owner)
    with pytest.raises(InputError, match="loss cannot be cross_entropy: 'toy' has no classes"):
        study(tmp_path / "s", data=numbers).run()


def test_batch_norm_is_stacked_where_no_client_is_too_small_for_a_batch(tmp_path: Path) -> None:
    """As the paper's studies are, which allow short batches for clients that most of them do not have."""
    local = {"batch": 6, "small_clients": "short"}
    keys = STACKED | {"model": NORMED, "local": local, "rounds": 1, "seeds": 1}
    study(tmp_path / "s", **keys).run()
    [noted] = Folder(tmp_path / "s").record()["settings"].values()
    assert (noted["machine"]["engine"], noted["short"]) == ("stacked", {0: 0})
    with pytest.raises(InputError, match="cannot be 'stacked' for BatchNorm with short batches"):
        study(tmp_path / "t", **keys | {"local": local | {"batch": 64}}).run()


# --- what the numbers will mean ------------------------------------------------------------------------


def prepared(**keys: Any) -> Prepared:
    known = {
        "data": toy(),
        "model": "linear",
        "partition": "natural",
        "cohort": 4,
        "methods": "fedavg",
    }
    draft = Draft(known | {"rounds": 1, "local": {"batch": 4}} | keys)
    return prepare(draft, LoadedDatasets(), torch.device("cpu"), EXACT)


# --- features --------------------------------------------------------------------------------------------


def scaled(factor: float, shift: float = 0.0, **keys: Any) -> Dataset:
    x = toy().samples.x.clone()  # type: ignore[attr-defined]
    x[:, 1] = x[:, 1] * factor + shift
    return Dataset("scaled", Arrays(x, toy().samples.y), toy().split, 2, toy().owner, **keys)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("factor", "shift"), [(100.0, 0.0), (1.0, 50.0), (0.001, 3000.0)])
def test_features_far_from_unit_scale(factor: float, shift: float) -> None:
    [words] = sanity_checks(prepared(data=scaled(factor, shift)))
    assert "far from unit scale (column 1 has mean" in words
    assert words.endswith("set data.standardize: true")


def test_features_that_hardly_differ() -> None:
    x = 0.01 * toy().samples.x  # type: ignore[attr-defined]
    small = Dataset("small", Arrays(x, toy().samples.y), toy().split, 2, toy().owner)  # type: ignore[attr-defined]
    assert "far from unit scale" in sanity_checks(prepared(data=small))[0]


def test_features_that_are_fine_or_not_to_be_scaled() -> None:
    assert sanity_checks(prepared(data=scaled(0.01))) == []  # another column is as it should be
    assert sanity_checks(prepared(data=scaled(100.0, test_transform=lambda x: x / 100))) == []
    ids = Dataset(
        "ids",
        Arrays((toy().samples.x > 0).long() * 99, toy().samples.y),
        toy().split,
        2,
        toy().owner,
    )  # type: ignore[attr-defined]
    known = prepared(
        data=ids, model=lambda: nn.Sequential(nn.Embedding(100, 2), nn.Flatten(), nn.Linear(4, 2))
    )
    assert sanity_checks(known) == []


# --- guessing --------------------------------------------------------------------------------------------


def test_guesses_by_hand() -> None:
    known = prepared(metric=("accuracy",))
    labels, division = toy().samples.labels(), known.division(0)
    common = np.bincount(labels[division.clients.indices]).argmax()
    right = float((labels[division.evaluated] == common).mean())
    assert score_of_guessing(known) == {
        "always": "the commonest class",
        "scores": {0: pytest.approx(right)},
    }
    for metric, score in (("auroc", 0.5), ("balanced_accuracy", 0.5)):
        assert score_of_guessing(prepared(metric=metric))["scores"][0] == pytest.approx(score)
    shares = np.bincount(labels[division.clients.indices]) / len(division.clients.indices)
    entropy = -np.log(shares[labels[division.evaluated]]).mean()
    found = score_of_guessing(prepared(metric="perplexity"))
    assert found["scores"][0] == pytest.approx(np.exp(entropy), rel=1e-4)
    assert found["always"] == "how common each class is"


def test_guesses_of_numbers_and_labels() -> None:
    known = prepared(data=numbered(), loss="squared_error", metric="r2")
    assert score_of_guessing(known)["always"] == "the mean of the targets"
    assert score_of_guessing(known)["scores"][0] == pytest.approx(0, abs=0.2)
    x = toy().samples.x  # type: ignore[attr-defined]
    tags = Dataset("tags", Arrays(x, (x > 0.3).long()), toy().split, owner=toy().owner)
    found = score_of_guessing(
        prepared(data=tags, loss="binary_cross_entropy", metric="label_accuracy")
    )
    assert 0.4 < found["scores"][0] < 1


def test_no_guess_where_the_metric_fails() -> None:
    def broken(output: Tensor, target: Tensor) -> Tensor:
        raise ValueError

    assert score_of_guessing(prepared(metric=broken)) == {}


@pytest.mark.usefixtures("with_page")
def test_a_study_says_it_when_it_begins_and_in_its_results(tmp_path: Path) -> None:
    keys = {
        "methods": "fedavg",
        "rounds": 1,
        "seeds": 1,
        "local": {"batch": 4, "epochs": 1, "lr": 1e-9},
    }
    results = study(tmp_path / "s", data=scaled(100.0), **keys).run()
    assert len(results.settings[0].warnings) == 1
    assert "set data.standardize: true." in (tmp_path / "s" / "report.html").read_text()
