"""Losses and metrics, by name and of your own."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedskip
from fedskip.config.setting import SHARES
from fedskip.errors import InputError
from fedskip.models.metrics import (
    METRICS,
    Metric,
    MetricFailed,
    accuracy,
    cross_entropy,
    loss,
    metrics,
)


def outputs(n: int = 200, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Scores that say something, and uneven classes."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, classes, (n,), generator=generator) * torch.randint(
        0, 2, (n,), generator=generator
    )
    score = torch.randn(n, classes, generator=generator)
    score[range(n), target] += 1.0
    return score, target


def by_name(name: str) -> Metric:
    return metrics(name)[0]


def of(name: str, output: Tensor, target: Tensor) -> float:
    """What a metric says, as an evaluator finds it."""
    metric = by_name(name)
    if metric.whole:
        return metric.of_all(output, target)
    mean = float(metric.of_each(output, target).double().mean())
    return mean if metric.after is None else metric.after(mean)


# --- by name ---------------------------------------------------------------------------------------------


def test_names_shares_and_directions() -> None:
    assert by_name("accuracy").function is accuracy
    assert {name for name, metric in METRICS.items() if metric.percent} == set(SHARES)
    lower = {name for name, metric in METRICS.items() if not metric.higher_is_better}
    assert lower == {"perplexity", "mae", "rmse"}


def test_macro_f1_and_balanced_accuracy_by_hand() -> None:
    score, target = outputs()
    given = score.argmax(1)
    f1, recall = [], []
    for one in range(4):
        hit = float(((given == one) & (target == one)).sum())
        f1.append(2 * hit / float((given == one).sum() + (target == one).sum()))
        recall.append(hit / float((target == one).sum()))
    assert of("macro_f1", score, target) == pytest.approx(np.mean(f1))
    assert of("balanced_accuracy", score, target) == pytest.approx(np.mean(recall))


def test_auroc_is_how_often_the_right_one_is_higher() -> None:
    score, target = outputs(60, 2)
    apart = (score[:, 1] - score[:, 0]).double()
    ones, zeros = apart[target == 1], apart[target == 0]
    by_hand = float((ones[:, None] > zeros[None]).double().mean())
    assert of("auroc", score, target) == pytest.approx(by_hand)
    assert of("auroc", apart[:, None], target.float()) == pytest.approx(
        by_hand
    )  # one logit for a label
    several, classes = outputs()
    chance = several.double().softmax(1)
    each = [
        float((chance[classes == c, c][:, None] > chance[classes != c, c][None]).double().mean())
        for c in range(4)
    ]
    assert of("auroc", several, classes) == pytest.approx(np.mean(each))


def test_labels() -> None:
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(0, 2, (100, 3), generator=generator)
    score = torch.randn(100, 3, generator=generator) + target
    assert 0.5 < of("macro_f1", score, target) < 1
    assert 0.5 < of("auroc", score, target.float()) < 1
    perfect = target.float() - 0.5
    assert of("macro_f1", perfect, target) == of("auroc", perfect, target) == 1


def test_regression() -> None:
    generator = torch.Generator().manual_seed(2)
    target = torch.randn(50, 2, generator=generator)
    output = target + 0.5 * torch.randn(50, 2, generator=generator)
    error = (output - target).double()
    assert of("rmse", output, target) == pytest.approx(
        float(error.square().mean().sqrt()), rel=1e-6
    )
    assert of("mae", output, target) == pytest.approx(float(error.abs().mean()), rel=1e-6)
    spread = (target - target.mean(0)).double().square().sum(0)
    by_hand = float((1 - error.square().sum(0) / spread).mean())
    assert of("r2", output, target) == pytest.approx(by_hand)
    assert of("r2", target.mean(0).expand(50, 2), target) == pytest.approx(0, abs=1e-6)
    assert of("r2", output[:, :1], target[:, 0]) == pytest.approx(
        of("r2", output[:, 0], target[:, 0])
    )


def test_perplexity_of_even_chances_is_the_number_of_classes() -> None:
    _, target = outputs()
    assert of("perplexity", torch.zeros(200, 4), target) == pytest.approx(4)
    assert (
        of("perplexity", 5000.0 * torch.eye(4)[(target + 1) % 4], target) == math.inf
    )  # never an error


@pytest.mark.parametrize(
    ("name", "output", "target"),
    [
        ("auroc", torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])),  # class 2 does not occur
        ("auroc", torch.randn(6, 2), torch.ones(6, dtype=torch.int64)),
        ("auroc", torch.randn(6, 2), torch.tensor([[0.0, 1.0]] * 6)),
        ("auroc", torch.full((4, 2), math.nan), torch.tensor([0, 1, 0, 1])),
        ("r2", torch.randn(4, 1), torch.ones(4)),
    ],
)
def test_undefined_is_nan_and_no_error(name: str, output: Tensor, target: Tensor) -> None:
    assert math.isnan(of(name, output, target))


def test_without_scikit_learn_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r'auroc needs scikit-learn.*pip install "fedskip\[metrics\]"'
    ):
        by_name("auroc")
    assert by_name("r2").whole  # which needs nothing
    assert by_name("perplexity").after is not None


# --- one's own -------------------------------------------------------------------------------------------


@fedskip.metric(whole=True, higher_is_better=False, percent=True)
def own(output: Tensor, target: Tensor) -> float:
    return float((output.argmax(1) != target).double().mean())


def plain(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).float()


def test_ones_own_is_marked_or_as_by_default() -> None:
    marked, unmarked = metrics((own, plain))
    assert (marked.name, marked.whole, marked.higher_is_better, marked.percent) == (
        "own",
        True,
        False,
        True,
    )
    assert marked.column == "x_own"
    assert (unmarked.whole, unmarked.higher_is_better, unmarked.percent) == (False, True, False)


def test_by_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import fedskip\n@fedskip.metric(whole=True)\ndef mine(output, target):\n    return 0.5\n"
    )
    (tmp_path / "my_own_metrics.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = by_name("my_own_metrics:mine")
    assert found.name == "mine"
    assert found.of_all(torch.zeros(2, 2), torch.zeros(2)) == 0.5


def test_an_object_of_torchmetrics() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    score, target = outputs()
    kappa = metrics(torchmetrics.CohenKappa(task="multiclass", num_classes=4))[0]
    assert (kappa.name, kappa.whole, kappa.higher_is_better) == ("MulticlassCohenKappa", True, True)
    first = kappa.of_all(score, target)
    assert first == kappa.of_all(score, target)  # it starts anew for each model
    assert 0 < first < 1
    error = metrics(torchmetrics.MeanSquaredError())[0]
    assert not error.higher_is_better


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (torch.zeros(3), r"metric f must give one number for all samples, got 'the shape \(3,\)'"),
        ("much", r"must give one number for all samples, got 'str'.*leave out whole"),
        (None, r"got 'NoneType'"),
    ],
)
def test_what_is_not_one_number(found: Any, said: str) -> None:
    with pytest.raises(InputError, match=f"(?i){said}"):
        Metric("f", lambda output, target: found, whole=True).of_all(
            torch.zeros(3, 2), torch.zeros(3)
        )


@pytest.mark.parametrize(
    "found", [0.25, np.float32(0.25), torch.tensor(0.25), torch.tensor([0.25]), np.array(0.25)]
)
def test_what_is_one_number(found: Any) -> None:
    metric = Metric("f", lambda output, target: found, whole=True)
    assert metric.of_all(torch.zeros(3, 2), torch.zeros(3)) == 0.25


@pytest.mark.parametrize("whole", [True, False])
def test_one_that_fails_says_what(whole: bool) -> None:
    def broken(output: Tensor, target: Tensor) -> Tensor:
        raise KeyError("no such class")

    metric = Metric("broken", broken, whole=whole)
    score: Callable[..., Any] = metric.of_all if whole else metric.of_each
    with pytest.raises(
        MetricFailed, match="metric broken fails on 3 samples: KeyError: 'no such class'"
    ):
        score(torch.zeros(3, 2), torch.zeros(3))


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ("acuracy", r"^metric is not known, .*Did you mean 'accuracy'\?"),
        (
            "accuracy, macro_f1",
            r"^metric must be a name or a list of names.*\[accuracy, macro_f1\]",
        ),
        ("torch.nn:top5", r"^metric torch.nn:top5: torch.nn has no 'top5'"),
        ("torch:pi", r"^metric torch:pi must be a function \(output, target\), got 3\.14"),
        ("torch.nn:MSELoss", r"^metric torch\.nn:MSELoss must be a function.*whole=True"),
        (("accuracy", "fedskip.models.metrics:accuracy"), "must have different names"),
        (("accuracy", lambda output, target: output), "must have a name.*not a lambda"),
    ],
)
def test_what_is_no_metric(chosen: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        metrics(chosen)


def test_marks_are_true_or_false() -> None:
    with pytest.raises(InputError, match=r"metric\.whole must be true or false"):
        fedskip.metric(whole="yes")(plain)  # type: ignore[arg-type]


def test_by_name_and_by_import() -> None:
    assert loss("cross_entropy") is cross_entropy
    assert loss("fedskip.models.metrics:cross_entropy") is cross_entropy
    assert loss(torch.dist) is torch.dist


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cross_entrpy", r"^loss is not known, .*Did you mean 'cross_entropy'\?"),
        ("nowhere:focal", r"^loss nowhere:focal: nowhere cannot be imported"),
        ("torch.nn:MSELoss", r"^loss torch\.nn:MSELoss must be a function"),
    ],
)
def test_what_is_no_loss(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        loss(name)
