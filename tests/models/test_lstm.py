"""The unrolled LSTM is torch's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fedskip.models import build


def test_unrolled_lstm_has_the_same_parameters() -> None:
    model = build("lstm")
    twin = model.stackable()
    pairs = zip(model.named_parameters(), twin.named_parameters(), strict=True)
    for (name, value), (twin_name, twin_value) in pairs:
        assert name == twin_name
        assert torch.equal(value, twin_value)
    assert [n for n, _ in twin.named_parameters()][1] == "lstm.weight_ih_l0"
    assert isinstance(model.lstm, nn.LSTM)  # the model itself is as it was


def test_unrolled_lstm_equals_torchs() -> None:
    model = build("lstm", hidden=13).double()
    twin = model.stackable()
    x = torch.randint(80, (4, 80), dtype=torch.uint8)
    y = torch.randint(80, (4,))
    results = []
    for m in (model, twin):
        output, z = m.features(x)
        gradients = torch.autograd.grad(F.cross_entropy(output, y) + z.sum(), list(m.parameters()))
        results.append((output, z, *gradients))
    for one, other in zip(*results, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)
