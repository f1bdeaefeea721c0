"""How a client trains: what may be written, how the learning rate moves, and the steps of a visit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskip.engine import Local
from fedskip.engine.local import Decay, momentum_sum, route
from fedskip.errors import InputError


@pytest.mark.parametrize(
    ("rule", "position", "expected"),
    [
        ("constant", 70.0, 1.0),
        ("cosine", 0.0, 1.0),
        ("cosine", 50.0, 0.5),
        ("cosine", 100.0, 0.0),
        ("cosine(floor=0.2)", 50.0, 0.6),
        ("cosine(floor=0.2)", 100.0, 0.2),
        ("step", 49.9, 1.0),
        ("step", 50.0, 0.1),
        ("step(every=10, factor=0.5)", 29.5, 0.25),
        ("step(factor=0.5,every=10)", 29.5, 0.25),
        ("inverse", 0.0, 1.0),
        ("inverse", 50.0, 0.5),
        ("inverse(half=10)", 30.0, 0.25),
    ],
)
def test_decay(rule: str, position: float, expected: float) -> None:
    [found] = Decay.parse(rule).at(np.array([position]), rounds=100)
    assert found == pytest.approx(expected, abs=1e-15)


@given(
    st.sampled_from(
        ["constant", "cosine", "cosine(floor=0.1)", "step(every=7)", "inverse(half=3)"]
    ),
    st.integers(1, 300),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
)
def test_rates_never_rise_and_never_reach_zero(
    rule: str, rounds: int, one: float, other: float
) -> None:
    positions = np.array([*sorted((one, other)), 1.0]) * rounds
    positions[-1] -= 0.01  # a last step of the last round
    early, late, last = Decay.parse(rule).at(positions, rounds)
    assert 0 <= late <= early <= 1
    assert last > 0


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("linear", "must be constant, cosine, step"),
        ("step(", "must be constant, cosine, step"),
        ("step(50)", "must be constant, cosine, step"),
        (3, "must be constant, cosine, step"),
        ("step(evry=5)", "has no option 'evry'; step takes every, factor"),
        ("constant(a=1)", "has no option 'a'; constant takes no options"),
        ("step(every=soon)", "every must be a number, got 'soon'"),
        ("step(every=0)", "every must be > 0, got 0"),
        ("step(factor=0)", "factor must be > 0"),
        ("inverse(half=-1)", "half must be > 0"),
        ("cosine(floor=-0.1)", "floor must be in [0, 1]"),
        ("cosine(floor=inf)", "floor must be a number"),
        ("cosine(floor=nan)", "floor must be a number"),
        ("cosine(floor=2)", "floor must be in [0, 1], got 2.0. It is a share of local.lr"),
    ],
)
def test_bad_decays(rule: Any, message: str) -> None:
    with pytest.raises(InputError, match=r"local\.decay") as caught:
        Decay.parse(rule)
    assert message in str(caught.value)


@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 12),
    epochs=st.integers(1, 4),
    last_batch=st.sampled_from(["drop", "keep"]),
    small_clients=st.sampled_from(["drop", "short"]),
    max_steps=st.none() | st.integers(1, 9),
)
def test_a_route_is_a_fresh_order_of_the_client_s_samples_each_epoch(
    size: int, batch: int, epochs: int, last_batch: Any, small_clients: Any, max_steps: int | None
) -> None:
    local = Local(
        batch=batch,
        epochs=epochs,
        last_batch=last_batch,
        small_clients=small_clients,
        max_steps=max_steps,
    )
    mine = 100 + 3 * np.arange(size)
    if size < batch and last_batch == "drop" and small_clients == "drop":
        assert local.steps(size) == 0
        return
    whole = -(-size // batch) if last_batch == "keep" or size < batch else size // batch
    made = route(5, mine, local)
    assert made.steps == local.steps(size) == min(epochs * whole, max_steps or 10**6)
    assert made.batches.shape == (made.steps, batch)
    for start in range(0, made.steps - whole + 1, whole):
        epoch = made.batches[start : start + whole].ravel()
        used = epoch[epoch >= 0]
        assert len(set(used)) == len(used) == min(size, whole * batch)
        assert set(used) <= set(mine)
        assert (epoch[len(used) :] == -1).all(), "only the end of an epoch is filled up"


def test_epochs_differ_and_keys_decide() -> None:
    local = Local(batch=10, epochs=2)
    one, again, other = (route(key, np.arange(20), local).batches for key in (1, 1, 2))
    assert (one == again).all()
    assert (one != other).any()
    assert (one[:2] != one[2:]).any()


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("decay", ["constant", "cosine", "step(every=1, factor=0.1)"])
def test_a_is_the_weight_of_a_constant_gradient(rho: float, decay: str) -> None:
    """Roll the recursion out: v <- rho v + 1, y <- y - eta v, from y = 0."""
    made = route(
        0,
        np.arange(12),
        Local(lr=0.3, momentum=rho, batch=2, epochs=3, decay=decay),
        round=1,
        rounds=5,
    )
    v = y = 0.0
    for eta in made.eta:
        v = rho * v + 1
        y -= eta * v
    assert made.a == pytest.approx(-y, rel=1e-12)


def test_a_with_a_constant_rate_is_eta_times_fednova_s() -> None:
    for tau, rho in ((1, 0.9), (7, 0.9), (500, 0.9), (7, 0.0)):
        closed = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
        assert momentum_sum(np.full(tau, 0.01), rho) == pytest.approx(0.01 * closed, rel=1e-12)


def test_the_rate_falls_within_a_visit_too() -> None:
    made = route(
        0,
        np.arange(4),
        Local(lr=2.0, batch=2, epochs=1, decay="inverse(half=1)"),
        round=3,
        rounds=9,
    )
    assert made.eta == pytest.approx([2 / (1 + 3), 2 / (1 + 3.5)])


def test_local_is_the_paper_s() -> None:
    local = Local()
    assert (local.lr, local.momentum, local.weight_decay, local.batch, local.epochs) == (
        0.01,
        0.9,
        1e-5,
        64,
        10,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0}, "local.lr must be > 0, got 0"),
        ({"lr": "fast"}, "local.lr must be a number, got 'fast'"),
        ({"momentum": 1}, "local.momentum must be in [0, 1), got 1.0"),
        ({"weight_decay": -1}, "local.weight_decay must be >= 0"),
        ({"batch": 0}, "local.batch must be >= 1"),
        ({"epochs": 1.5}, "local.epochs must be a whole number"),
        ({"max_steps": 0}, "local.max_steps must be >= 1"),
        ({"clip": 0}, "local.clip must be > 0"),
        ({"decay": "linear"}, "local.decay must be constant, cosine"),
        ({"last_batch": "kep"}, "local.last_batch must be 'drop' or 'keep', got 'kep'"),
        ({"small_clients": "ignore"}, "local.small_clients must be 'error' or 'drop' or 'short'"),
        ({"optimizer": "adam"}, "local.optimizer must be 'sgd', got 'adam'"),
    ],
)
def test_bad_local(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Local(**options)
    assert message in str(caught.value)
