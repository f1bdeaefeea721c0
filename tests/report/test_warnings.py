"""What to know before one relies on the numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedskip.report.findings import warnings
from fedskip.report.results import Metric, Results
from studies import by_metric, recorded, run


def made(folder: Path, scores: dict[str, tuple[float, ...]], **about: Any) -> Results:
    runs = [
        run(label, seed, score) for label, of in scores.items() for seed, score in enumerate(of)
    ]
    results = recorded(folder, runs)
    return replace(results, settings=[replace(one, **about) for one in results.settings])


def guess(*scores: float, always: str = "the commonest class") -> dict[str, Any]:
    return {"always": always, "scores": dict(enumerate(scores))}


def test_a_score_like_a_guess(tmp_path: Path) -> None:
    scores = {"FedAvg": (0.2, 0.3), "MOON": (0.7, 0.8), "FedNova": (0.1, 0.2)}
    [words] = warnings(made(tmp_path, scores, guessing=guess(0.2, 0.4)))
    assert words.startswith(
        "FedAvg (25.00) and FedNova (15.00) are no better than always answering "
    )
    assert words.endswith("the commonest class (on average 30.00 %).")
    [alone] = warnings(
        made(tmp_path, {"FedAvg": (0.3,)}, guessing=guess(0.3))
    )  # as good as one is none
    assert alone.startswith("FedAvg (30.00) is no better than")
    [one] = warnings(made(tmp_path, {"FedAvg": (0.1, 0.7, 0.6)}, guessing=guess(0.1, 0.1, 0.1)))
    assert one.startswith("FedAvg (10.00, 1 of 3 runs) is no better than")
    assert warnings(made(tmp_path, {"FedAvg": (0.31,)}, guessing=guess(0.3))) == []
    assert warnings(made(tmp_path, {"FedAvg": (0.1,)})) == []  # nobody knows


@pytest.mark.parametrize(("score", "said"), [(3.0, 1), (1.0, 0)])
def test_where_lower_is_better(tmp_path: Path, score: float, said: int) -> None:
    guessing = guess(2.0, always="the mean of the targets")
    results = made(tmp_path, {"FedAvg": (score,)}, guessing=guessing)
    found = warnings(by_metric(results, Metric("rmse", higher=False)))
    assert (
        found
        == ["FedAvg (3) is no better than always answering the mean of the targets (2)."][:said]
    )


def test_what_was_odd_is_said_of_its_setting(tmp_path: Path) -> None:
    runs = [run("FedAvg", 0, 0.5), run("FedAvg", 0, 0.5, setting="b")]
    results = recorded(tmp_path, runs, ["a", "b"])
    first, second = results.settings
    results = replace(results, settings=[first, replace(second, warnings=("features are far",))])
    assert warnings(results) == ["b: Features are far."]
