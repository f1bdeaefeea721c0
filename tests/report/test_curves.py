"""The lines of figures: means over seeds, smoothed and thinned."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedskip.records.history import HISTORY
from fedskip.records.table import Row, Table
from fedskip.report.figures import curves, hyper_parameter, mean_line, without_outliers
from studies import curve, recorded, run


def line(
    *runs: list[Row], y: str = "test_accuracy", window: int = 0, factor: float = 1.0
) -> pd.DataFrame:
    rows = [row for rows in runs for row in rows]
    return mean_line(Table(HISTORY, rows).frame(), y, window, factor)


def test_a_line_is_over_the_rounds_that_all_seeds_have() -> None:
    runs = curve("A", 0, {1: 0.1, 2: 0.3}), curve("A", 1, {1: 0.2, 2: 0.5, 3: 1})
    found = line(*runs)
    assert found["round"].tolist() == found["merges"].tolist() == [1, 2]
    assert (found["low"].tolist(), found["high"].tolist()) == ([0.1, 0.3], [0.2, 0.5])
    assert found["mean"].tolist() == pytest.approx([0.15, 0.4])
    assert found["bytes"].tolist() == pytest.approx([110e-6, 220e-6])  # MB
    smooth = line(*runs, window=2, factor=100)["mean"].tolist()
    assert smooth == pytest.approx([15, 100 * (0.2 + 0.35) / 2])


def test_what_is_not_finite_is_left_out() -> None:
    rows = curve("A", 0, {1: 0.1, 2: math.inf, 3: 0.3})
    found = line(rows)
    assert (found["round"].tolist(), found["mean"].tolist()) == ([1, 3], [0.1, 0.3])
    assert len(line()) == 0
    assert len(line(rows, y="slot_accuracy")) == 0, "it was not measured"
    assert len(line(rows, curve("A", 1, {1: math.nan}))) == 0, "a seed has no number at all"


def test_a_smoothed_line_is_thinned_and_keeps_its_ends(tmp_path: Path) -> None:
    rows = curve("A", 0, {r: r / 1000 for r in range(1, 1001)})
    results = recorded(tmp_path, [run("A", 0, 0.5)], rows=rows, rounds=1000)
    [setting] = results.settings
    few = curves(results, setting, "test_accuracy").lines["A"]["round"].tolist()
    assert (len(few), few[0], few[-1]) == (150, 1, 1000)
    assert len(curves(results, setting, "test_accuracy", smooth=0).lines["A"]) == 1000


@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_diverging_run_leaves_the_picture(logarithmic: bool) -> None:
    def of(*values: float) -> pd.DataFrame:
        return pd.DataFrame({"mean": np.array(values)})

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
