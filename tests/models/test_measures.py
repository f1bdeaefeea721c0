"""Losses and metrics by name."""

from __future__ import annotations

import pytest
import torch

from fedskip.input.errors import InputError
from fedskip.models.measures import accuracy, measure


def test_by_name_and_by_import() -> None:
    assert measure("metric", "accuracy") is accuracy
    assert measure("metric", "fedskip.models.measures:accuracy") is accuracy
    assert measure("loss", torch.dist) is torch.dist


@pytest.mark.parametrize(
    ("field", "name", "said"),
    [
        ("loss", "cross_entrpy", r"^loss is not known, .*Did you mean 'cross_entropy'\?"),
        ("loss", "nowhere:focal", r"^loss nowhere:focal: nowhere cannot be imported"),
        ("metric", "operator:top5", r"^metric operator:top5: operator has no 'top5'"),
        ("metric", "math:pi", r"^metric math:pi must be a function \(output, target\), got 3\.14"),
        ("loss", "torch.nn:MSELoss", r"^loss torch\.nn:MSELoss must be a function"),
    ],
)
def test_what_is_no_measure(field: str, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        measure(field, name)
