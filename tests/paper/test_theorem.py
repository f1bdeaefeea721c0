"""The whole check at a tiny size: files, columns, and bounds that hold."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedskip.paper.problem import constant_clients, rates
from fedskip.paper.theorem import DISTANCE, SUMMARY, converging, falling, ten_clients, theorem1
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


def test_every_round_is_held_against_its_own_bound() -> None:
    """Clients at +1 and -1 of curvature 1, from 0.5: rates are 2 / (8 + tau), five steps a round."""
    problem = constant_clients(np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]), np.array([0.5]), [16, 16])
    lines, [summary] = converging(problem, [1], 1, 2)
    assert lines.column("step") == [5, 10]
    C = 6 * 0.5 + 8 * 25 * 1.5**2
    assert summary["G2"] == pytest.approx(1.5**2)
    r = [0.25]
    for tau in range(10):
        eta = 2 / (8 + tau)
        r.append((1 - eta) * r[-1] + eta**2 * C)
    assert lines.column("recursion") == pytest.approx([r[5], r[10]])
    printed = [32 * 0.25 * np.exp(-T / 2) + 36 * C / T for T in (4, 9)]  # of the distance after T + 1 steps
    corrected = [32 * 4 * 0.25 * np.exp(-T / 8) + 36 * C / T for T in (4, 9)]
    assert lines.column("printed_bound") == pytest.approx(printed)
    assert lines.column("corrected_bound") == pytest.approx(corrected)
    for name, what in (
        ("printed", "printed_bound"), ("corrected", "corrected_bound"), ("recursion", "recursion"),
        ("lemma_printed", "printed_lemma"), ("lemma_corrected", "corrected_lemma"),
    ):  # fmt: skip
        measured = lines.column("divergence" if "lemma" in name else "distance")
        shares = [one / other for one, other in zip(measured, lines.column(what), strict=True)]
        assert shares[0] != pytest.approx(shares[1])
        assert summary[f"share_{name}"] == pytest.approx(max(shares))
