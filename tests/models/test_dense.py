"""Dense layers in the form that is fast for many models."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedskip.models.dense import Tall, as_tall
from fedskip.models.forms import functional


class Tied(nn.Module):
    """One layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.inner = nn.ModuleList([self.one, nn.Linear(3, 2, bias=False)])

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner[1](self.inner[0](self.one(x)).relu())
        return found


@pytest.mark.parametrize(
    "module", [nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), Tied()]
)
@pytest.mark.parametrize("shape", [(5, 3), (5, 7, 3)])
def test_it_computes_the_same(module: nn.Module, shape: tuple[int, ...]) -> None:
    tall = as_tall(copy.deepcopy(module))
    assert any(isinstance(part, Tall) for part in tall.modules())
    assert [name for name, _ in tall.named_parameters()] == [name for name, _ in module.named_parameters()]
    x = torch.randn(shape)
    torch.testing.assert_close(tall(x), module(x))
    state = {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in module.named_parameters()}
    both = vmap(lambda one: functional_call(tall, one, (x,)))(state)
    torch.testing.assert_close(both[0], module(x))
    doubled = {name: 2 * p.detach() for name, p in module.named_parameters()}
    torch.testing.assert_close(both[1], functional_call(module, doubled, (x,)))


def test_what_others_listen_to_or_have_changed_stays() -> None:
    hooked = nn.Linear(3, 2)
    hooked.register_forward_hook(lambda *_: None)
    weighted = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    for module in (hooked, weighted):
        assert as_tall(module) is module


def test_only_modules_of_dense_layers_have_them() -> None:
    dense = functional(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)))
    assert sum(isinstance(part, Tall) for part in dense.modules()) == 2
    mixed = functional(nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(4, 2)))
    assert not any(isinstance(part, Tall) for part in mixed.modules())
