"""Losses by name."""

from __future__ import annotations

import pytest
import torch

from fedskip.errors import InputError
from fedskip.models.losses import cross_entropy, loss


def test_by_name_and_by_import() -> None:
    assert loss("cross_entropy") is cross_entropy
    assert loss("fedskip.models.losses:cross_entropy") is cross_entropy
    assert loss(torch.dist) is torch.dist


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cross_entrpy", r"^loss is not known, .*Did you mean 'cross_entropy'\?"),
        ("nowhere:focal", r"^loss nowhere:focal: nowhere cannot be imported"),
        ("torch.nn:MSELoss", r"^loss torch\.nn:MSELoss must be a function"),
    ],
)
def test_what_is_no_loss(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        loss(name)
