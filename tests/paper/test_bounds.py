"""The bounds in numbers, and what is measured beside them."""

import numpy as np
import pytest

from fedskip.engine import Local
from fedskip.paper import bounds
from fedskip.paper.bounds import Constants, constants, follow
from fedskip.paper.problem import Problem, Seen, constant_clients

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
    assert KNOWN.recursion(np.array([0.1, 0.05]), corrected=False) == pytest.approx([7, r1, r2])


def test_what_is_measured() -> None:
    """Clients at +1 and -1 from 0.5: gradients, distance and divergence worked out by hand."""
    problem = constant_clients(np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]), np.array([0.5]))
    local = Local(lr=0.25, momentum=0.0, weight_decay=0.0, batch=1, epochs=1)
    track = follow(problem, local, [2], 3, 1)[2]
    assert track.distance == [0.375**2]  # slots at 0.625 and 0.125
    assert track.divergence == [0.25**2]
    assert track.distance_se == [0]  # whichever slot goes where
    assert track.G2 == 1.5**2
    known = constants(problem, local, 2, track.G2)
    assert (known.start, known.heterogeneity, known.noise, known.steps) == (0.25, 0.5, 0, 1)


def test_means_and_errors_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds, two slots, one round: clients at +1 and -1 around 0, whose batches of one have variance 1.

    Client 0 has |gradient|^2 of at most 0.25 and 1, client 1 of 2.25 and 16; to each its noise is added.
    """
    samples = [np.array([[0.0], [2.0]]), np.array([[-2.0], [0.0]])]
    problem = Problem(np.ones((2, 1, 1)), samples, np.array([0.5]))
    visited, after = np.array([[0, 1], [1, 0]]), np.array([[[1.0], [0.0]], [[3.0], [0.0]]])
    seen = Seen(1, visited, np.full((2, 2, 1), 0.5), after)
    monkeypatch.setattr(bounds, "watch", lambda *_: [seen])
    track = follow(problem, Local(batch=1, epochs=1), [1], 2, 1)[1]
    assert track.distance == [(0.5**2 + 1.5**2) / 2]
    assert track.distance_se == pytest.approx([2**0.5 / 2**0.5])  # of 0.25 and 2.25
    assert track.divergence == [(0.5**2 + 1.5**2) / 2]
    assert track.G2 == (2.25 + 1 + 16 + 1) / 2
