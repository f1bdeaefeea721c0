"""Convolutions as products of patches are convolutions."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedskip import rng
from fedskip.engine.stepper import compiled, has_compiler
from fedskip.kernels.patches import PatchConv2d, as_patches
from tiny import stacked


def convolutions(seed: int) -> nn.Module:
    """Pooled, pooled with an odd rest, not pooled, padded, and without bias."""
    with rng.torch_scope(seed, "convolutions"):
        return nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 5, (2, 4)), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(5, 4, 2, bias=False), nn.ReLU(),
            nn.Conv2d(4, 3, 3, padding=1), nn.ReLU(),
            nn.Flatten(),
        ).double()  # fmt: skip


def test_patches_are_convolutions() -> None:
    """Outputs and gradients of several models at once, to float64's rounding."""
    models = [convolutions(seed) for seed in range(3)]
    patched = as_patches(deepcopy(models[0]))
    kinds = [isinstance(patched.get_submodule(str(i)), PatchConv2d) for i in (0, 3, 6, 8)]
    assert kinds == [True, True, True, False]
    assert [name for name, _ in patched.named_parameters()] == [
        n for n, _ in models[0].named_parameters()
    ]
    parameters, _ = stacked(models)
    x = torch.randn(3, 4, 3, 20, 19, dtype=torch.float64)
    x[0, 0] = 1.0  # every window of a plain picture is a tie

    def loss(module: nn.Module, state: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(module, state, (x,)).square().sum()

    ours = vmap(grad(lambda state, x: loss(patched, state, x)))(parameters, x)
    theirs = vmap(grad(lambda state, x: loss(models[0], state, x)))(parameters, x)
    for name, found in ours.items():
        torch.testing.assert_close(found, theirs[name], rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
def test_patches_compile() -> None:
    """Torch's compiler gives other strides to what is on the way, and some views are none there."""
    models = [
        nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(80, 2),
        )
        for _ in range(2)
    ]  # fmt: skip
    model = as_patches(deepcopy(models[0]))
    parameters, _ = stacked(models)
    x = torch.randn(2, 4, 3, 12, 12)

    def gradients(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        def loss(weights: tuple[Tensor, ...], x: Tensor) -> Tensor:
            return (
                functional_call(model, dict(zip(parameters, weights, strict=True)), (x,))
                .square()
                .sum()
            )

        return vmap(grad(loss))(weights, x)

    inputs = [x, *parameters.values()]
    expected = gradients(*inputs)
    found = compiled(make_fx(gradients)(*inputs), inputs)(*inputs)
    torch.testing.assert_close(tuple(found), expected, rtol=1e-4, atol=1e-4)


class Collecting(nn.Module):
    """Looks at what its layers give on the way, as own models do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2)])
        self.last = nn.Conv2d(3, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for layer in self.body:
            x = layer(x)
            seen.append(x.flatten(1).mean(1))
        x = self.last(x)
        return torch.cat([x.view(len(x), -1)[:, : self.last.out_channels], torch.stack(seen, 1)], 1)


class Backwards(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for layer in reversed(self):
            x = layer(x)
        return x


def test_patches_leave_a_model_s_results_alone() -> None:
    with rng.torch_scope("patches"):
        pictures = torch.randn(2, 1, 8, 8)
        hooked = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2))
        models = [Collecting(), hooked, Backwards(nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(1, 3, 3))]
    hooked[1].register_forward_hook(lambda _, __, y: y + 1)
    for model in models:
        patched = as_patches(deepcopy(model))
        assert any(isinstance(part, PatchConv2d) for part in patched.modules())
        torch.testing.assert_close(patched(pictures), model(pictures))
    models[1][0].register_forward_hook(lambda _, __, y: y * 2)
    assert not any(
        isinstance(part, PatchConv2d) for part in as_patches(deepcopy(models[1])).modules()
    )
