"""The whole check at a tiny size: files, columns, and bounds that hold."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedskip.paper.problem import rates
from fedskip.paper.theorem import DISTANCE, SUMMARY, falling, ten_clients, theorem1
from fedskip.records.table import Table


@pytest.mark.parametrize("longest", [1, 10, 40])
def test_rates_are_those_that_the_proof_allows(longest: int) -> None:
    problem = ten_clients()
    local = falling(problem, longest)
    eta = rates(local, np.arange(2000))
    ahead = longest * local.epochs
    assert eta[0] <= 1 / (4 * problem.curvature[1]) + 1e-12
    assert (np.diff(eta) < 0).all()
    assert (eta[:-ahead] <= 2 * eta[ahead:] * (1 + 1e-12)).all()
    assert all(local.steps_per_epoch(n) == 1 for n in problem.sizes)  # every step draws a fresh batch


def test_everything_at_a_tiny_size(tmp_path: Path) -> None:
    shown = theorem1(tmp_path, periods=[1, 2], seeds=3, rounds=12, shuffles=3)
    names = {"distance", "summary", "lemma", "rates", "weighting"}
    assert {file.stem for file in tmp_path.glob("*.csv")} == names
    assert {file.stem for file in tmp_path.glob("*.svg")} == {"distance", "divergence", "lemma", "weighting"}
    lines, summary = (Table.read(tmp_path / f"{name}.csv") for name in ("distance", "summary"))
    assert (lines.columns, summary.columns) == (DISTANCE, SUMMARY)
    for row in lines:
        assert row["distance"] < row["recursion"] < row["printed_bound"] <= row["corrected_bound"]
        assert 0 < row["divergence"] < row["printed_lemma"] <= row["corrected_lemma"]
        assert row["step"] == 5 * row["round"]
    for row in summary:
        assert row["share_printed"] < 1
        assert row["share_lemma_printed"] < 1
    console = Console(width=100)
    with console.capture() as capture:
        console.print(shown)
    assert "Lemma 3" in capture.get()
