"""Warnings about a setting that is unlikely to be meant, and what guessing scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedskip import Arrays, Dataset
from fedskip.config import Draft
from fedskip.data.catalogue import LoadedDatasets
from fedskip.engine.arithmetic import EXACT
from fedskip.study.prepare import Prepared, prepare
from fedskip.study.sanity_checks import sanity_checks, score_of_guessing
from studies import numbered, study, toy


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
