"""Dropout from keyed randomness."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedskip import rng
from fedskip.models.dropout import FIRST, Dropout, key_dropout, words


def worded(word: int, p: float = 0.3, layer: int = 0, channels: bool = False) -> Dropout:
    dropout = Dropout(p, layer, channels)
    dropout.word.fill_(word)
    return dropout


def test_dropout_follows_its_definition() -> None:
    word = torch.tensor(12345)
    y = worded(12345, p=0.25, layer=3)(torch.full((2, 3), 3.0, dtype=torch.float64))
    for i in range(6):
        kept = rng.uniform(rng.mix(word, FIRST + 3), i) >= 0.25
        assert y.flatten()[i].item() == pytest.approx(4.0 if kept else 0.0)
    assert y.dtype == torch.float64


def test_dropout_and_augmentation_draw_apart() -> None:
    """Both follow from the word of a step: samples by their place in the batch, layers by their number."""
    word = torch.tensor(12345)
    samples, layers = rng.mix(word, torch.arange(10_000)), rng.mix(word, FIRST + torch.arange(100))
    assert not set(samples.tolist()) & set(layers.tolist())


def test_dropout_rate() -> None:
    y = worded(7)(torch.ones(400, 250))
    assert (y == 0).double().mean().item() == pytest.approx(0.3, abs=0.005)  # σ = .0014
    assert y.mean().item() == pytest.approx(1.0, abs=0.01)


def test_dropout_mask_belongs_to_word_and_layer() -> None:
    x = torch.ones(1000)
    mask = worded(7)(x) > 0
    assert torch.equal(mask, worded(7)(x) > 0)
    for other in (worded(8), worded(7, layer=1)):
        agree = (mask == (other(x) > 0)).double().mean().item()
        assert agree == pytest.approx(
            0.7**2 + 0.3**2, abs=0.06
        )  # as independent masks do; σ = .016


def test_dropout_is_identity_in_eval_and_at_zero() -> None:
    x = torch.randn(50)
    assert worded(7).eval()(x) is x
    assert worded(7, p=0)(x) is x
    x.requires_grad_()
    y = worded(7, p=1)(x)
    y.sum().backward()
    assert not y.any()
    assert not x.grad.any()


def test_dropout_of_channels() -> None:
    y = worded(7, p=0.5, channels=True)(torch.ones(8, 16, 3, 3))
    per_channel = y.flatten(2)
    assert torch.equal(per_channel.amin(2), per_channel.amax(2))
    assert 0.3 < (per_channel[..., 0] == 0).double().mean() < 0.7


def test_dropout_under_vmap_equals_the_loop() -> None:
    net = key_dropout(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.ReLU(), nn.Dropout(0.2)))
    word, x = torch.tensor([5, 6, 2**32 - 1]), torch.randn(3, 4, 6)

    def run(word: Tensor, x: Tensor) -> Tensor:
        return functional_call(net, dict.fromkeys(words(net), word), (x,))

    def value(word: Tensor, x: Tensor) -> Tensor:
        return run(word, x).sum()

    outputs, gradients = vmap(run)(word, x), vmap(grad(value, argnums=1))(word, x)
    compiled = torch.compile(vmap(run), backend="aot_eager", fullgraph=True)(word, x)
    torch.testing.assert_close(outputs, compiled)
    for k in range(3):
        for name in words(net):
            net.get_buffer(name).copy_(word[k])
        row = x[k].clone().requires_grad_()
        output = net(row)
        output.sum().backward()
        torch.testing.assert_close(outputs[k], output)
        torch.testing.assert_close(gradients[k], row.grad)


def test_key_dropout_replaces_every_kind() -> None:
    shared = nn.Dropout(0.2)
    net = nn.Sequential(
        shared,
        nn.Sequential(nn.Dropout1d(0.1), nn.Dropout2d(0.5), nn.Dropout3d(0.4)),
        shared,
        nn.AlphaDropout(),
    ).eval()
    assert key_dropout(net) is net
    keyed = [m for m in net.modules() if isinstance(m, Dropout)]
    assert [(m.p, m.layer, m.channels, m.training) for m in keyed] == [
        (0.2, 0, False, False),
        (0.1, 1, True, False),
        (0.5, 2, True, False),
        (0.4, 3, True, False),
        (0.2, 4, False, False),  # the same layer in two places gets a mask for each
    ]
    assert isinstance(net[3], nn.AlphaDropout)
    assert words(net) == ["0.word", "1.0.word", "1.1.word", "1.2.word", "2.word"]
    assert not net.state_dict()

    again = deepcopy(net)
    assert [m.layer for m in key_dropout(again).modules() if isinstance(m, Dropout)] == [
        0,
        1,
        2,
        3,
        4,
    ]
    again.append(nn.Dropout())
    assert key_dropout(again)[-1].layer == 5


def test_key_dropout_of_a_lone_dropout() -> None:
    keyed = key_dropout(nn.Dropout(0.2))
    assert isinstance(keyed, Dropout)
    assert words(keyed) == ["word"]
