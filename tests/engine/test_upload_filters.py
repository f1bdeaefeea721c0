"""What clients hand on: noise of the right size, harm as written, nothing else touched."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskip.engine.upload_filters import Attack, Privacy, UploadFilter
from fedskip.errors import InputError

D, P = 4000, 4003
CLIENTS, KEYS = np.array([3, 0, 7]), [11, 12, 13]


def visit(size: float = 2.0) -> tuple[Tensor, Tensor]:
    """x, and y whose trained part is `size` away from it."""
    draw = torch.Generator().manual_seed(0)
    x, d = torch.randn(3, P, generator=draw), torch.randn(3, P, generator=draw)
    return x, x + size * d / d[:, :D].norm(dim=1, keepdim=True)


def test_nothing_asked_nothing_changed() -> None:
    x, y = visit()
    assert UploadFilter(D, None, Attack(clients=1), {5})(CLIENTS, KEYS, x, y) is y


def test_a_private_update_is_clipped_and_noisy() -> None:
    x, y = visit(size=2.0)
    out = UploadFilter(D, Privacy(clip=0.5, sigma=0.1), None, ())(CLIENTS, KEYS, x, y)
    noise = (out - x)[:, :D] - (y - x)[:, :D] / 4  # a norm of 2 becomes 0.5
    np.testing.assert_allclose(noise.std(1), 0.05, rtol=0.05)
    np.testing.assert_allclose(noise.mean(1), 0.0, atol=0.003)
    assert torch.corrcoef(noise).fill_diagonal_(0).abs().max() < 0.06  # each visit has its own
    assert torch.equal(out[:, D:], y[:, D:])


def test_a_small_update_is_not_stretched() -> None:
    x, y = visit(size=0.01)
    out = UploadFilter(D, Privacy(clip=0.5, sigma=1e-9), None, ())(CLIENTS, KEYS, x, y)
    torch.testing.assert_close(out, y)


def test_noise_follows_from_the_visit_s_key_alone() -> None:
    x, y = visit()
    upload_filter = UploadFilter(D, Privacy(clip=1, sigma=1), None, ())
    all_three = upload_filter(CLIENTS, KEYS, x, y)
    torch.testing.assert_close(
        upload_filter(CLIENTS[1:2], KEYS[1:2], x[1:2], y[1:2]), all_three[1:2]
    )
    assert not torch.equal(upload_filter(CLIENTS, [11, 12, 14], x, y)[2], all_three[2])


@pytest.mark.parametrize("privacy", [None, Privacy(clip=0.5, sigma=0.1)])
def test_poisoners_alone_do_harm(privacy: Privacy | None) -> None:
    x, y = visit()
    out = UploadFilter(D, privacy, Attack(clients=1, scale=3), {0})(CLIENTS, KEYS, x, y)
    honest = UploadFilter(D, privacy, None, ())(CLIENTS, KEYS, x, y)
    torch.testing.assert_close(out[1, :D], x[1, :D] - 3 * (y - x)[1, :D])
    assert torch.equal(out[[0, 2]], honest[[0, 2]])


def test_noise_as_harm_is_as_long_as_asked() -> None:
    x, y = visit(size=2.0)
    out = UploadFilter(D, None, Attack(clients=1, kind="noise", scale=3), {0})(CLIENTS, KEYS, x, y)
    harm = (out - x)[1, :D]
    assert harm.norm() == pytest.approx(6.0, rel=1e-4)
    assert abs(float(harm @ (y - x)[1, :D])) < 0.1 * 12


def test_the_seed_chooses_the_poisoners() -> None:
    few, many = Attack(clients=3).poisoners(1, 50), Attack(clients=20).poisoners(1, 50)
    assert len(few) == 3
    assert few < many
    assert few != Attack(clients=3).poisoners(2, 50)


def test_epsilon_by_hand() -> None:
    """delta(eps) of a Gaussian with mu = 2/sigma sqrt(v), Dong et al. 2022: solved for eps by bisection."""
    from statistics import NormalDist

    def epsilon(mu: float, delta: float) -> float:
        phi = NormalDist().cdf
        low, high = 0.0, 200.0
        for _ in range(200):
            eps = (low + high) / 2
            spent = phi(-eps / mu + mu / 2) - np.exp(eps) * phi(-eps / mu - mu / 2)
            low, high = (eps, high) if spent > delta else (low, eps)
        return low

    privacy = Privacy(clip=3, sigma=8)
    for visits in (1, 4, 9):
        assert privacy.epsilon(visits) == pytest.approx(
            epsilon(2 / 8 * visits**0.5, 1e-5), rel=1e-3
        )
    assert privacy.epsilon(0) == 0
    assert Privacy(clip=0.1, sigma=8).epsilon(4) == privacy.epsilon(
        4
    )  # the noise is in units of the clip


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Privacy(clip=0, sigma=1), "privacy.clip"),
        (lambda: Privacy(clip=1, sigma=-1), "privacy.sigma"),
        (lambda: Privacy(clip=1, sigma=1, delta=1), "privacy.delta"),
        (lambda: Attack(clients=-1), "attack.clients"),
        (lambda: Attack(scale=0), "attack.scale"),
        (lambda: Attack(kind="label"), "attack.kind"),  # type: ignore[arg-type]
        (lambda: Attack(clients=9).poisoners(0, 8), "attack.clients"),
    ],
)
def test_bad_values(make: Callable[[], object], field: str) -> None:
    with pytest.raises(InputError, match=field):
        make()
