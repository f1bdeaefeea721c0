"""Numbers of a history as figures need them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedskip.records.history import HISTORY
from fedskip.records.table import Table
from fedskip.report.series import band, limits, point, skipping
from studies import curve, run


def test_a_band_is_over_the_rounds_that_all_seeds_have() -> None:
    curves = curve("A", 0, {1: 0.1, 2: 0.3}), curve("A", 1, {1: 0.2, 2: 0.5, 3: 1})
    runs = [Table(HISTORY, rows) for rows in curves]
    across, low, mean, high = band(runs, "test_accuracy", 0)
    assert across["round"].tolist() == across["merges"].tolist() == [1, 2]
    assert (low.tolist(), high.tolist()) == ([0.1, 0.3], [0.2, 0.5])
    assert mean.tolist() == pytest.approx([0.15, 0.4])
    assert across["bytes"].tolist() == pytest.approx([110e-6, 220e-6])  # MB
    assert band(runs, "test_accuracy", 2).mean.tolist() == pytest.approx([0.15, (0.2 + 0.35) / 2])


def test_what_is_not_finite_is_left_out() -> None:
    rows = Table(HISTORY, curve("A", 0, {1: 0.1, 2: math.inf, 3: 0.3}))
    across, _, mean, _ = band([rows], "test_accuracy", 0)
    assert (across["round"].tolist(), mean.tolist()) == ([1, 3], [0.1, 0.3])
    assert len(band([], "test_accuracy", 0).mean) == 0
    assert len(band([rows], "slot_accuracy", 0).mean) == 0, "which was not measured"


def test_a_thinned_band_keeps_its_ends() -> None:
    whole = band([Table(HISTORY, curve("A", 0, {r: r / 10 for r in range(1, 11)}))], "test_accuracy", 0)
    few = whole.thinned(4)
    assert few.across["round"].tolist() == [1, 4, 7, 10]
    assert few.mean.tolist() == few.low.tolist() == few.high.tolist() == [0.1, 0.4, 0.7, 1.0]
    assert whole.thinned(10) is whole
    assert whole.times(100).mean.tolist() == pytest.approx([10.0 * r for r in range(1, 11)])


@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_diverging_run_leaves_the_picture(logarithmic: bool) -> None:
    lines = {"A": np.array([1.0, 2.0]), "B": np.array([1.0, 3.0]), "C": np.array([1.0, 1e30])}
    bottom = 0.8 if logarithmic else 0.0
    assert limits(lines, logarithmic) == (["C"], (bottom, pytest.approx(3.3)))
    assert limits({"A": lines["A"], "B": lines["B"]}, logarithmic) == ([], None)
    assert limits({}, logarithmic) == ([], None)


def test_points_of_a_sweep() -> None:
    def row(label: str, period: object = 1) -> dict[str, object]:
        return run(label, 0, 0.5) | {"period": period}

    assert point(row("FedAvg"), "period") == ("FedSkip", 1.0)
    assert point(row("FedSkip-5", "5"), "period") == ("FedSkip", 5.0)
    assert point(row("FedSkip-1x2,3", "1x2,3"), "period") is None
    assert point(row("SCAFFOLD+skip-3", 3), "period") is None
    assert point(row("MOON(mu=5.0, temperature=0.1)"), "temperature") == ("MOON(mu=5.0)", 0.1)
    assert point(row("MOON(mu=5.0, temperature=0.1)"), "mu") == ("MOON(temperature=0.1)", 5.0)
    assert point(row("MOON(mu=5.0)"), "mu") == ("MOON", 5.0)
    assert point(row("FedProx(mu=1e-05)"), "mu") == ("FedProx", 1e-5)
    assert point(row("MOON"), "mu") is None
    assert skipping([row("FedAvg"), row("FedSkip-3", 3)]) == "FedSkip-3"
    assert skipping([row("FedAvg")]) == "FedAvg"
