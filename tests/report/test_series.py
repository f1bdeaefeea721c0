"""Numbers of a history as figures need them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedskip.records.history import HISTORY
from fedskip.records.table import Table
from fedskip.report.series import band, point, skipping
from studies import curve, run


def test_a_band_is_over_the_rounds_that_all_seeds_have() -> None:
    curves = curve("A", 0, {1: 0.1, 2: 0.3}), curve("A", 1, {1: 0.2, 2: 0.5, 3: 1})
    runs = [Table(HISTORY, rows) for rows in curves]
    xs, low, mean, high = band(runs, "round", "test_accuracy", 0)
    assert xs.tolist() == [1, 2]
    assert (low.tolist(), high.tolist()) == ([0.1, 0.3], [0.2, 0.5])
    assert mean.tolist() == pytest.approx([0.15, 0.4])
    sent = band(runs, "bytes", "test_accuracy", 0)[0]
    assert sent.tolist() == pytest.approx([110e-6, 220e-6])  # MB
    assert band(runs, "round", "test_accuracy", 2)[2].tolist() == pytest.approx([0.15, (0.2 + 0.35) / 2])


def test_what_is_not_finite_is_left_out() -> None:
    rows = Table(HISTORY, curve("A", 0, {1: 0.1, 2: math.inf, 3: 0.3}))
    xs, _, mean, _ = band([rows], "round", "test_accuracy", 0)
    assert (xs.tolist(), mean.tolist()) == ([1, 3], [0.1, 0.3])
    assert all(not len(part) for part in band([], "round", "test_accuracy", 0))
    assert np.isfinite(mean).all()


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
