"""Theorem 1: bounds in numbers, what is measured beside them, and where the printed forms fail."""

from __future__ import annotations

import numpy as np
import pytest

from fedskip.engine import Local
from reproduction import theorem
from reproduction.quadratic import Problem, Round, constant_clients, rates
from reproduction.theorem import (
    Constants,
    coherent,
    converging,
    falling,
    follow,
    slow_rates,
    ten_clients,
)

KNOWN = Constants(mu=2.0, L=3.0, noise=1.0, heterogeneity=0.5, G2=4.0, start=7.0, period=3, steps=2)


def test_constant_C() -> None:
    assert KNOWN.C(corrected=False) == 1 + 9 + 8 * 3 * 4 * 4
    assert KNOWN.C(corrected=True) == 1 + 9 + 8 * 9 * 4 * 4


def test_bounds() -> None:
    T = np.array([10.0])
    printed = 32 / 2 * 7 * np.exp(-10) + 36 * 394 / (4 * 10)
    corrected = 32 * 12 / 2 * 7 * np.exp(-20 / 24) + 36 * 1162 / (4 * 10)
    assert KNOWN.bound(T, corrected=False) == pytest.approx(printed)
    assert KNOWN.bound(T, corrected=True) == pytest.approx(corrected)
    assert KNOWN.lemma(np.array(0.1), corrected=False) == pytest.approx(4 * 3 * 0.01 * 4 * 4)
    assert KNOWN.lemma(np.array(0.1), corrected=True) == pytest.approx(4 * 9 * 0.01 * 4 * 4)


def test_recursion() -> None:
    r1 = (1 - 0.2) * 7 + 0.01 * 394
    r2 = (1 - 0.1) * r1 + 0.0025 * 394
    assert KNOWN.recursion(np.array([0.1, 0.05])) == pytest.approx([7, r1, r2])


def test_what_is_measured() -> None:
    """Clients at +1 and -1 from 0.5: gradients, distance and divergence worked out by hand."""
    problem = constant_clients(np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]), np.array([0.5]))
    local = Local(lr=0.25, momentum=0.0, weight_decay=0.0, batch=1, epochs=1)
    track = follow(problem, local, [2], 3, 1)[2]
    assert track.distance == [0.375**2]  # slots at 0.625 and 0.125
    assert track.divergence == [0.25**2]
    assert track.distance_se == [0]  # whichever slot goes where
    assert track.G2 == 1.5**2
    known = Constants.of(problem, local, 2, track.G2)
    assert (known.start, known.heterogeneity, known.noise, known.steps) == (0.25, 0.5, 0, 1)


def test_means_and_errors_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds, two slots, one round: clients at +1 and -1 around 0, whose batches of one have variance 1.

    Client 0 has |gradient|^2 of at most 0.25 and 1, client 1 of 2.25 and 16; to each its noise is added.
    """
    samples = [np.array([[0.0], [2.0]]), np.array([[-2.0], [0.0]])]
    problem = Problem(np.ones((2, 1, 1)), samples, np.array([0.5]))
    visited, after = np.array([[0, 1], [1, 0]]), np.array([[[1.0], [0.0]], [[3.0], [0.0]]])
    seen = Round(1, visited, np.full((2, 2, 1), 0.5), after)
    monkeypatch.setattr(theorem, "watch", lambda *_: [seen])
    track = follow(problem, Local(batch=1, epochs=1), [1], 2, 1)[1]
    assert track.distance == [(0.5**2 + 1.5**2) / 2]
    assert track.distance_se == pytest.approx([2**0.5 / 2**0.5])  # of 0.25 and 2.25
    assert track.divergence == [(0.5**2 + 1.5**2) / 2]
    assert track.G2 == (2.25 + 1 + 16 + 1) / 2


@pytest.mark.parametrize("longest", [1, 10, 40])
def test_rates_are_those_that_the_proof_allows(longest: int) -> None:
    problem = ten_clients()
    local = falling(problem, longest)
    eta = rates(local, np.arange(2000))
    ahead = longest * local.epochs
    assert eta[0] <= 1 / (4 * problem.curvature[1]) + 1e-12
    assert (np.diff(eta) < 0).all()
    assert (eta[:-ahead] <= 2 * eta[ahead:] * (1 + 1e-12)).all()
    assert all(
        local.steps_per_epoch(n) == 1 for n in problem.sizes
    )  # every step draws a fresh batch


def test_measured_along_training() -> None:
    lines, summary = converging(ten_clients(), [1, 2], 3, 12)
    for _, row in lines.iterrows():
        assert row["distance"] < row["recursion"] < row["printed_bound"] <= row["corrected_bound"]
        assert 0 < row["divergence"] < row["printed_lemma"] <= row["corrected_lemma"]
        assert row["step"] == 5 * row["round"]
    assert (summary[["share_printed", "share_lemma_printed"]] < 1).all(axis=None)


def test_every_round_is_held_against_its_own_bound() -> None:
    """Clients at +1 and -1 of curvature 1, from 0.5: rates are 2 / (8 + tau), five steps a round."""
    problem = constant_clients(
        np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]), np.array([0.5]), [16, 16]
    )
    lines, found = converging(problem, [1], 1, 2)
    [summary] = found.to_dict("records")
    assert lines["step"].tolist() == [5, 10]
    C = 6 * 0.5 + 8 * 25 * 1.5**2
    assert summary["G2"] == pytest.approx(1.5**2)
    r = [0.25]
    for tau in range(10):
        eta = 2 / (8 + tau)
        r.append((1 - eta) * r[-1] + eta**2 * C)
    assert lines["recursion"].tolist() == pytest.approx([r[5], r[10]])
    printed = [
        32 * 0.25 * np.exp(-T / 2) + 36 * C / T for T in (4, 9)
    ]  # of the distance after T + 1 steps
    corrected = [32 * 4 * 0.25 * np.exp(-T / 8) + 36 * C / T for T in (4, 9)]
    assert lines["printed_bound"].tolist() == pytest.approx(printed)
    assert lines["corrected_bound"].tolist() == pytest.approx(corrected)
    for name, what in (
        ("printed", "printed_bound"), ("corrected", "corrected_bound"), ("recursion", "recursion"),
        ("lemma_printed", "printed_lemma"), ("lemma_corrected", "corrected_lemma"),
    ):  # fmt: skip
        measured = lines["divergence" if "lemma" in name else "distance"]
        shares = [one / other for one, other in zip(measured, lines[what], strict=True)]
        assert shares[0] != pytest.approx(shares[1])
        assert summary[f"share_{name}"] == pytest.approx(max(shares))


def test_steps_that_add_up_break_the_printed_lemma_and_not_the_corrected() -> None:
    table = coherent([1, 5], shuffles=20, clients=10)
    assert (table["share_corrected"] < 1).all()
    long = table[table["period"] == 5].set_index(["routes", "rates"])["share_printed"]
    assert long["fixed", "constant"] > 1.1
    assert long["fixed", "halved"] > 4.5  # of 5 at most
    assert long["cyclic", "halved"] > 1
    assert long["uniform", "constant"] < 0.5
    assert (table["share_printed"][table["period"] == 1] < 1).all()


def test_allowed_rates_break_the_printed_theorem() -> None:
    largest, tiny = slow_rates([1]).to_dict("records")
    assert largest["eta"] == 1 / (4 * largest["L"])
    assert largest["printed_bound"] < largest["distance"] < largest["corrected_bound"]
    assert abs(largest["distance"] - (1 - largest["eta"]) ** (2 * 400)) < 1e-9  # gradient descent
    assert tiny["printed_bound"] < tiny["distance"]
    assert tiny["corrected_bound"] < tiny["distance"]  # Stich's rates are needed, too
