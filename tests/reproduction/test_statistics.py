"""Differences by hand, Holm's correction, and the rules of the verdicts."""

from __future__ import annotations

import csv
from math import isnan, nan
from statistics import fmean, stdev

import pandas as pd
import pytest

from reproduction.columns import Studies, columns
from reproduction.runs import RUNS
from reproduction.statistics import (
    CONFIRMED,
    OPEN,
    REFUTED,
    SMALLER,
    UNTESTED,
    Difference,
    compare,
    difference,
    holm,
    primary_tests,
    verdict,
)  # fmt: skip


def test_a_difference_is_paired_by_seed() -> None:
    """Of 1, 2 and 3: Student's t is 4.303 with two degrees of freedom."""
    found = difference(
        pd.Series({0: 5.0, 2: 9.0, 1: 7.0, 5: 1.0}), pd.Series({0: 4.0, 1: 5.0, 2: 6.0})
    )
    assert (found.seeds, found.mean) == (3, 2)
    half = 4.302653 / 3**0.5
    assert (found.low, found.high) == (pytest.approx(2 - half), pytest.approx(2 + half))
    assert found.p == pytest.approx(0.0742, abs=1e-4)


def test_no_mean_where_a_run_failed() -> None:
    found = difference(pd.Series({0: 5.0, 1: nan}), pd.Series({0: 4.0, 1: 5.0}))
    assert (found.seeds, isnan(found.mean), isnan(found.p)) == (2, True, True)
    assert difference(pd.Series({0: 5.0}), pd.Series({1: 4.0})).seeds == 0


def test_equal_runs_are_no_gain() -> None:
    same = pd.Series({0: 1.0, 1: 2.0})
    assert difference(same, same) == Difference(2, 0, 0, 0, 1)


def test_holm() -> None:
    """By rank: 4 × .01, 3 × .02, then no less than what came before."""
    assert holm([0.02, 0.5, nan, 0.01, 0.021]) == pytest.approx(
        [0.06, 0.5, nan, 0.04, 0.06], nan_ok=True
    )
    assert holm([0.6, 0.7]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("low", "high", "reported", "p", "expected"),
    [
        (-2.0, -0.1, -5.0, 0.01, REFUTED),  # below 0, whatever the paper reports
        (-0.2, 0.5, 0.9, 0.5, REFUTED),  # includes 0 and is below the paper's gain
        (0.5, 2.4, 2.9, 0.01, SMALLER),
        (0.5, 2.4, 2.9, 0.07, OPEN),  # not significant after correction
        (1.0, 1.8, -0.2, 0.01, CONFIRMED),
        (0.5, 3.0, 2.9, None, CONFIRMED),
        (-3.4, 5.1, 3.4, 1.0, OPEN),
        (nan, nan, 0.5, nan, OPEN),  # one seed
    ],
)  # fmt: skip
def test_verdicts(low: float, high: float, reported: float, p: float | None, expected: str) -> None:
    assert verdict(Difference(3, (low + high) / 2, low, high, 0.01), reported, p) == expected


def test_one_seed_is_always_open_and_none_is_untested() -> None:
    assert verdict(Difference(1, 5.0), 1.0) == OPEN
    assert verdict(Difference(), 1.0) == UNTESTED


def scores_by_hand(method: str, column: str) -> dict[int, float]:
    """From the files of Table II at β = 0.5, without pandas."""
    found = {}
    for folder in RUNS.glob("cifar10-p10-beta0.5-seed*"):
        with (folder / "summary.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["method"] == method:
                    found[int(row["seed"])] = 100 * float(row[column])
    return found


@pytest.mark.parametrize(("name", "score"), [("best", "best"), ("tail", "mean_tail")])
def test_a_column_by_hand(ours: Studies, name: str, score: str) -> None:
    found = compare(columns()["table2/cifar10-beta0.5"], ours).loc["FedSkip-5"]
    mine, base = (scores_by_hand(method, score) for method in ("FedSkip-5", "FedAvg"))
    assert found[name] == pytest.approx(fmean(mine.values()))
    assert found[f"{name}_sd"] == pytest.approx(stdev(mine.values()))
    gaps = [mine[seed] - base[seed] for seed in range(10)]
    half = 2.2621572 * stdev(gaps) / 10**0.5
    gain = found[f"{name}_gain"]
    assert gain.mean == pytest.approx(fmean(gaps))
    assert (gain.low, gain.high) == pytest.approx(
        (fmean(gaps) - half, fmean(gaps) + half), abs=1e-6
    )
    assert found["paper_gain"] == pytest.approx(71.77 - 68.83)


def test_primary_tests(ours: Studies) -> None:
    """13 columns, of which those with several seeds are tested together."""
    found = primary_tests(ours)
    assert len(found) == 13
    tested = [gain.p for gain in found["best_gain"] if not isnan(gain.p)]
    assert found["p"].count() == len(tested)
    assert found["p"].min() == pytest.approx(len(tested) * min(tested))
    seeds = found["seeds"]
    assert set(found["verdict"][seeds == 0]) == {UNTESTED}
    assert set(found["verdict"][seeds == 1]) <= {OPEN}


def test_failed_runs_have_no_mean(ours: Studies) -> None:
    found = compare(columns()["table3/cifar10-p50"], ours)
    assert (
        found["failed"].to_dict() | {"FedDyn": 3, "FedSkip-3": 1, "FedSkip-5": 0}
        == found["failed"].to_dict()
    )
    assert isnan(found["best"]["FedSkip-3"])
    assert isnan(found["best_gain"]["FedSkip-3"].mean)
    assert not isnan(found["best"]["FedSkip-5"])
