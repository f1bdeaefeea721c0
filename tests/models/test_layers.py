"""What a module is made of."""

from __future__ import annotations

import torch
from torch import nn

from fedskip.models import build
from fedskip.models.layers import parameter_counts


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(2, 2), nn.Parameter(torch.ones(3))


def test_numbers_by_kind() -> None:
    assert parameter_counts(Scaled()) == {"dense": 6, "Scaled": 3}
    assert parameter_counts(build("cnn", head=False)) == {"convolution": 2872, "dense": 59134}
    assert set(parameter_counts(build("lstm"))) == {"embedding", "recurrent", "dense"}
    assert set(parameter_counts(build("resnet50", width=4, blocks=[1]))) == {
        "convolution",
        "normalisation",
        "dense",
    }
    assert set(parameter_counts(nn.MultiheadAttention(4, 2))) == {"attention", "dense"}


def test_shared_layers_count_once() -> None:
    layer = nn.Linear(2, 2)
    assert parameter_counts(nn.Sequential(layer, layer)) == {"dense": 6}
    other = nn.Linear(2, 2)
    other.weight = layer.weight
    assert parameter_counts(nn.Sequential(layer, other)) == {"dense": 8}
