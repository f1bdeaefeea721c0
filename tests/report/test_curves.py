"""The lines of figures: means over seeds, smoothed and thinned."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedskip.records.history import HISTORY
from fedskip.records.table import Row, Table
from fedskip.report.curves import Line, mean_line, without_outliers
from fedskip.report.figures import first_skipping, hyper_parameter
from studies import curve, run


def line(*runs: list[Row], y: str = "test_accuracy", window: int = 0, factor: float = 1.0) -> Line:
    rows = [row for rows in runs for row in rows]
    return mean_line(Table(HISTORY, rows).frame(), y, window, factor)


def test_a_line_is_over_the_rounds_that_all_seeds_have() -> None:
    runs = curve("A", 0, {1: 0.1, 2: 0.3}), curve("A", 1, {1: 0.2, 2: 0.5, 3: 1})
    found = line(*runs)
    assert found.across["round"].tolist() == found.across["merges"].tolist() == [1, 2]
    assert (found.low.tolist(), found.high.tolist()) == ([0.1, 0.3], [0.2, 0.5])
    assert found.mean.tolist() == pytest.approx([0.15, 0.4])
    assert found.across["bytes"].tolist() == pytest.approx([110e-6, 220e-6])  # MB
    smooth = line(*runs, window=2, factor=100).mean.tolist()
    assert smooth == pytest.approx([15, 100 * (0.2 + 0.35) / 2])


def test_what_is_not_finite_is_left_out() -> None:
    rows = curve("A", 0, {1: 0.1, 2: math.inf, 3: 0.3})
    found = line(rows)
    assert (found.across["round"].tolist(), found.mean.tolist()) == ([1, 3], [0.1, 0.3])
    assert len(line().mean) == 0
    assert len(line(rows, y="slot_accuracy").mean) == 0, "it was not measured"
    assert len(line(rows, curve("A", 1, {1: math.nan})).mean) == 0, "a seed has no number at all"


def test_a_thinned_line_keeps_its_ends() -> None:
    whole = line(curve("A", 0, {r: r / 10 for r in range(1, 11)}))
    few = whole.thinned(4)
    assert few.across["round"].tolist() == [1, 4, 7, 10]
    assert few.mean.tolist() == few.low.tolist() == few.high.tolist() == [0.1, 0.4, 0.7, 1.0]
    assert whole.thinned(10) is whole


@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_diverging_run_leaves_the_picture(logarithmic: bool) -> None:
    def of(*values: float) -> Line:
        return Line({}, *[np.array(values)] * 3)

    lines = {"A": of(1.0, 2.0), "B": of(1.0, 3.0), "C": of(1.0, 1e30)}
    bottom = 0.8 if logarithmic else 0.0
    assert without_outliers(lines, logarithmic) == (["C"], (bottom, pytest.approx(3.3)))
    assert without_outliers({"A": lines["A"], "B": lines["B"]}, logarithmic) == ([], None)
    assert without_outliers({}, logarithmic) == ([], None)


@pytest.mark.parametrize(
    ("label", "period", "parameter", "expected"),
    [
        ("FedAvg", "1", "period", ("FedSkip", 1.0)),
        ("FedSkip-5", "5", "period", ("FedSkip", 5.0)),
        ("FedSkip-1x2,3", "1x2,3", "period", None),
        ("SCAFFOLD+skip-3", "3", "period", None),
        ("MOON(mu=5.0, temperature=0.1)", "1", "temperature", ("MOON(mu=5.0)", 0.1)),
        ("MOON(mu=5.0, temperature=0.1)", "1", "mu", ("MOON(temperature=0.1)", 5.0)),
        ("FedProx(mu=1e-05)", "1", "mu", ("FedProx", 1e-5)),
        ("MOON", "1", "mu", None),
    ],
)
def test_hyper_parameters_of_labels(label, period, parameter, expected) -> None:
    assert hyper_parameter(label, period, parameter) == expected


def test_the_first_method_that_skips() -> None:
    runs = [run("FedAvg", 0, 0.5), run("FedSkip-3", 0, 0.5) | {"period": 3}]
    assert first_skipping(Table(runs[0], runs).frame()) == "FedSkip-3"
    assert first_skipping(Table(runs[0], runs[:1]).frame()) == "FedAvg"
