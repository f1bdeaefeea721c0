"""What a module is made of, and forms that compute what it does and draw from their keys alone."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedskip import rng
from fedskip.kernels.patches import PatchConv2d
from fedskip.models import build
from fedskip.models.forms import (
    FIRST,
    Dropout,
    Tall,
    as_tall,
    functional,
    in_single_steps,
    key_dropout,
    own_kernels,
    parameter_counts,
    words,
)
from fedskip.models.lstm import StackableLSTM
from tiny import inputs, stacked

THIN = {"width": 4, "blocks": (1, 2), "head": False}  # a ResNet of some 5,000 parameters


STACKED = [
    ("perceptron", {}),
    ("perceptron", {"sigmoid": False}),
    ("cnn", {}),
    ("cnn-femnist", {}),
    ("resnet50", THIN),
    ("lstm", {"hidden": 5}),
]


@pytest.mark.parametrize(("name", "options"), STACKED)
@pytest.mark.parametrize("training", [True, False])
def test_stacked_equals_one_by_one(name: str, options: dict[str, object], training: bool) -> None:
    """Gradients, and for BatchNorm the running statistics, of K = 2 models on a batch each."""
    models = [build(name, **options).double().train(training) for _ in range(2)]  # type: ignore[arg-type]
    x, y = inputs(name, 2, 4), torch.randint(5, (2, 4))
    parameters, buffers = stacked(models)
    for n in buffers:  # rows differ in their statistics too
        buffers[n] += torch.rand_like(buffers[n])
    untouched = {n: b.clone() for n, b in buffers.items()}

    template = deepcopy(models[0])
    template = template.stackable() if hasattr(template, "stackable") else template
    for module in template.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = (
                None  # its add_ would change a captured tensor: grad refuses
            )

    def loss(
        p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        b = {n: value.clone() for n, value in b.items()}  # BatchNorm writes into what it is given
        return F.cross_entropy(functional_call(template, {**p, **b}, (x,)), y), b

    gradients, after = vmap(grad(loss, has_aux=True))(parameters, buffers, x, y)

    for k, model in enumerate(models):
        model.load_state_dict({n: b[k] for n, b in buffers.items()}, strict=False)
        expected = torch.autograd.grad(F.cross_entropy(model(x[k]), y[k]), list(model.parameters()))
        for (n, _), g in zip(model.named_parameters(), expected, strict=True):
            torch.testing.assert_close(gradients[n][k], g, rtol=1e-8, atol=1e-11)
        for n in buffers:
            torch.testing.assert_close(after[n][k], model.get_buffer(n), rtol=1e-10, atol=1e-13)
            assert torch.equal(after[n][k], buffers[n][k]) != training
    assert all(torch.equal(buffers[n], untouched[n]) for n in buffers)
    assert bool(buffers) == (name == "resnet50")


@pytest.mark.parametrize(
    ("name", "precision", "outcome", "said"),
    [
        ("cnn", "fp32", True, ""),
        ("lstm", "tf32", True, ""),
        ("lstm", "fp32", None, ""),  # nothing to try
        ("perceptron", "tf32", None, ""),
        ("cnn", "bf16", None, ""),
        ("lstm", "tf32", False, "wrong numbers for StackableLSTM"),
        ("cnn", "tf32", RuntimeError("no compiler\nat all"), "no compiler"),
    ],
)
def test_own_kernels_are_tried_before_they_are_used(
    name: str, precision: str, outcome: Any, said: str, monkeypatch: Any, caplog: Any
) -> None:
    """Where they fail, or give other numbers, they are left alone, with a word why."""

    def tried(part: nn.Module, device: torch.device, precision: str) -> bool:
        assert outcome is not None, "nobody asks"
        if isinstance(outcome, Exception):
            raise outcome
        return bool(outcome)

    for kind in (PatchConv2d, StackableLSTM):
        monkeypatch.setattr(kind, "try_kernels", tried)
    assert own_kernels(build(name), precision, torch.device("cpu")) == (outcome is True)
    assert [record.message.endswith(said) for record in caplog.records] == [True] * bool(said)


def test_wide_layers_have_no_kernels() -> None:
    for hidden, single in ((128, False), (129, True)):
        assert in_single_steps(build("lstm", hidden=hidden), "tf32", kernels=True) == single
    assert not in_single_steps(build("cnn"), "tf32", kernels=False)


# --- dense layers ---------------------------------------------------------------------------------


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
def test_tall_layers_compute_the_same(module: nn.Module, shape: tuple[int, ...]) -> None:
    tall = as_tall(deepcopy(module))
    assert any(isinstance(part, Tall) for part in tall.modules())
    assert [name for name, _ in tall.named_parameters()] == [
        name for name, _ in module.named_parameters()
    ]
    x = torch.randn(shape)
    torch.testing.assert_close(tall(x), module(x))
    state = {
        name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in module.named_parameters()
    }
    both = vmap(lambda one: functional_call(tall, one, (x,)))(state)
    torch.testing.assert_close(both[0], module(x))
    doubled = {name: 2 * p.detach() for name, p in module.named_parameters()}
    torch.testing.assert_close(both[1], functional_call(module, doubled, (x,)))


def test_layers_with_hooks_or_parametrizations_stay() -> None:
    hooked = nn.Linear(3, 2)
    hooked.register_forward_hook(lambda *_: None)
    weighted = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    for module in (hooked, weighted):
        assert as_tall(module) is module


def test_only_modules_of_dense_layers_get_tall_ones() -> None:
    dense = functional(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)))
    assert sum(isinstance(part, Tall) for part in dense.modules()) == 2
    mixed = functional(nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(4, 2)))
    assert not any(isinstance(part, Tall) for part in mixed.modules())


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
