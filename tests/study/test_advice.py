"""What is said out loud of a setting that is unlikely to be meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedskip import Arrays, Dataset
from fedskip.data.pools import Pools
from fedskip.engine.arithmetic import EXACT
from fedskip.spec import Draft
from fedskip.study.advice import advice, guessing
from fedskip.study.prepare import Prepared, prepare
from studies import numbered, study, toy

REGRESSION = {"loss": "squared_error", "metric": "rmse"}


def prepared(**keys: Any) -> Prepared:
    known = {"data": toy(), "model": "linear", "partition": "natural", "cohort": 4, "methods": "fedavg"}
    draft = Draft(known | {"rounds": 1, "local": {"batch": 4}} | keys)
    return prepare(draft, Pools(), torch.device("cpu"), EXACT)


def ending(last: Callable[[Tensor], Tensor], outputs: int) -> Callable[[], nn.Module]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, outputs))

        def forward(self, x: Tensor) -> Tensor:
            return last(self.layers(x))

    return Net


def same(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (torch.sigmoid, "stay from 0 to 1, but targets are from -"),
        (torch.tanh, "stay from -1 to 1, but targets are"),
        (torch.relu, "stay from 0 to .*, but targets are"),
    ],
)
def test_outputs_that_cannot_reach_the_targets(last: Callable[[Tensor], Tensor], said: str) -> None:
    [words] = advice(prepared(data=numbered(), model=ending(last, 1), **REGRESSION))
    assert re.search(said, words), words
    assert "leave out its last sigmoid, softmax, tanh or ReLU" in words


def test_outputs_that_can_are_not_mentioned() -> None:
    assert advice(prepared(data=numbered(), model=ending(same, 1), **REGRESSION)) == []
    within = Dataset("shares", Arrays(toy().samples.x, torch.rand(192)), toy().split, owner=toy().owner)  # type: ignore[attr-defined]
    assert advice(prepared(data=within, model=ending(torch.sigmoid, 1), **REGRESSION)) == []


def test_normed_layers_before_the_last_are_no_bound() -> None:
    net = lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 1))  # noqa: E731
    assert advice(prepared(data=numbered(), model=net, **REGRESSION)) == []


@pytest.mark.parametrize("last", [torch.sigmoid, lambda x: x.softmax(1)])
def test_scores_that_are_probabilities_already(last: Callable[[Tensor], Tensor]) -> None:
    [words] = advice(prepared(model=ending(last, 2)))
    assert "never more than 1 apart, so no class gets more than 73%" in words
    assert "cross_entropy takes scores as they are" in words


@pytest.mark.parametrize("last", [same, lambda x: x.log_softmax(1)])
def test_scores_of_classes_that_are_none(last: Callable[[Tensor], Tensor]) -> None:
    assert advice(prepared(model=ending(last, 2))) == []


def test_logits_of_labels() -> None:
    x = toy().samples.x  # type: ignore[attr-defined]
    tags = Dataset("tags", Arrays(x, (x > 0).long()), toy().split, owner=toy().owner)
    keys = {"data": tags, "loss": "binary_cross_entropy", "metric": "label_accuracy"}
    [words] = advice(prepared(model=ending(torch.sigmoid, 2), **keys))
    assert "stay from 0 to 1, but binary_cross_entropy takes logits" in words
    assert advice(prepared(model="linear", **keys)) == []
    assert len(advice(prepared(model="perceptron", **keys))) == 1


def test_the_papers_perceptron_is_as_documented() -> None:
    keys = {"data": {"name": "synthetic"}, "partition": "natural", "cohort": 10}
    assert advice(prepared(model={"name": "perceptron", "inputs": 60}, **keys)) == []
    assert advice(prepared(model={"name": "linear"}, **keys)) == []
    [words] = advice(prepared(data=numbered(), model="perceptron", **REGRESSION))
    assert "perceptron stay from 0 to 1" in words


def test_a_model_that_wild_weights_break_is_left_alone() -> None:
    class Touchy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.weight.abs().max() > 1:
                raise RuntimeError("too wild")
            return super().forward(x).sigmoid()

    assert advice(prepared(data=numbered(), model=lambda: Touchy(2, 1), **REGRESSION)) == []


# --- features --------------------------------------------------------------------------------------------


def scaled(factor: float, shift: float = 0.0, **keys: Any) -> Dataset:
    x = toy().samples.x.clone()  # type: ignore[attr-defined]
    x[:, 1] = x[:, 1] * factor + shift
    return Dataset("scaled", Arrays(x, toy().samples.y), toy().split, 2, toy().owner, **keys)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("factor", "shift"), [(100.0, 0.0), (1.0, 50.0), (0.001, 3000.0)])
def test_features_far_from_unit_scale(factor: float, shift: float) -> None:
    [words] = advice(prepared(data=scaled(factor, shift)))
    assert "far from unit scale (column 1 has mean" in words
    assert words.endswith("set data.standardize: true")


def test_features_that_hardly_differ() -> None:
    x = 0.01 * toy().samples.x  # type: ignore[attr-defined]
    small = Dataset("small", Arrays(x, toy().samples.y), toy().split, 2, toy().owner)  # type: ignore[attr-defined]
    assert "far from unit scale" in advice(prepared(data=small))[0]


def test_features_that_are_fine_or_not_to_be_scaled() -> None:
    assert advice(prepared(data=scaled(0.01))) == []  # another column is as it should be
    assert advice(prepared(data=scaled(100.0, test_transform=lambda x: x / 100))) == []
    ids = Dataset(
        "ids", Arrays((toy().samples.x > 0).long() * 99, toy().samples.y), toy().split, 2, toy().owner
    )  # type: ignore[attr-defined]
    known = prepared(
        data=ids, model=lambda: nn.Sequential(nn.Embedding(100, 2), nn.Flatten(), nn.Linear(4, 2))
    )
    assert advice(known) == []


# --- guessing --------------------------------------------------------------------------------------------


def test_guesses_by_hand() -> None:
    known = prepared(metric=("accuracy",))
    labels, division = toy().samples.labels(), known.division(0)
    common = np.bincount(labels[division.clients.indices]).argmax()
    right = float((labels[division.evaluated] == common).mean())
    assert guessing(known) == {"always": "the commonest class", "scores": {0: pytest.approx(right)}}
    for metric, score in (("auroc", 0.5), ("balanced_accuracy", 0.5)):
        assert guessing(prepared(metric=metric))["scores"][0] == pytest.approx(score)
    shares = np.bincount(labels[division.clients.indices]) / len(division.clients.indices)
    entropy = -np.log(shares[labels[division.evaluated]]).mean()
    found = guessing(prepared(metric="perplexity"))
    assert found["scores"][0] == pytest.approx(np.exp(entropy), rel=1e-4)
    assert found["always"] == "how common each class is"


def test_guesses_of_numbers_and_labels() -> None:
    known = prepared(data=numbered(), loss="squared_error", metric="r2")
    assert guessing(known)["always"] == "the mean of the targets"
    assert guessing(known)["scores"][0] == pytest.approx(0, abs=0.2)
    x = toy().samples.x  # type: ignore[attr-defined]
    tags = Dataset("tags", Arrays(x, (x > 0.3).long()), toy().split, owner=toy().owner)
    found = guessing(prepared(data=tags, loss="binary_cross_entropy", metric="label_accuracy"))
    assert 0.4 < found["scores"][0] < 1


def test_no_guess_where_the_metric_fails() -> None:
    def broken(output: Tensor, target: Tensor) -> Tensor:
        raise ValueError

    assert guessing(prepared(metric=broken)) == {}


def test_a_study_says_it_when_it_begins_and_in_its_results(tmp_path: Path) -> None:
    keys = {"methods": "fedavg", "rounds": 1, "seeds": 1, "local": {"batch": 4, "epochs": 1, "lr": 1e-9}}
    results = study(tmp_path / "s", data=scaled(100.0), model=ending(torch.sigmoid, 2), **keys).run()
    assert len(results.settings[0].warned) == 2
    page = (tmp_path / "s" / "report.html").read_text()
    assert "set data.standardize: true." in page
    assert "never more than 1 apart" in page
