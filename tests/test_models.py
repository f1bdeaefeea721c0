"""The models are the paper's to the last parameter, and all of them can be stacked."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from math import e, log, sqrt

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedskip import rng
from fedskip.engine.step import compiled, has_compiler
from fedskip.errors import InputError
from fedskip.models import MODELS, Dropout, build, key_dropout, refuse, stacking_obstacles, words
from fedskip.models.dropout import FIRST
from fedskip.models.patches import PatchConv2d, as_patches

THIN = {"width": 4, "blocks": (1, 2), "head": False}  # a ResNet of some 5,000 parameters


@pytest.fixture(autouse=True)
def _same_draws_every_time() -> Iterator[None]:
    with rng.torch_scope(0, "test"):
        yield


def counted(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def on_meta(name: str, **options: object) -> nn.Module:
    """The full-size model without its memory."""
    with torch.device("meta"):
        return build(name, **options)  # type: ignore[arg-type]


def inputs(name: str, *lead: int, steps: int = 7) -> Tensor:
    """A batch for the model; `lead` is (B,) or (K, B)."""
    if name == "lstm":
        return torch.randint(80, (*lead, steps))
    shape = {"perceptron": (60,), "cnn-femnist": (1, 28, 28)}.get(name, (3, 32, 32))
    return torch.randn(*lead, *shape, dtype=torch.float64)


def stacked(models: list[nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and float buffers of K models, each (K, ...)."""
    parameters = [dict(m.named_parameters()) for m in models]
    buffers = [dict(m.named_buffers()) for m in models]
    return (
        {n: torch.stack([p[n].detach() for p in parameters]) for n in parameters[0]},
        {n: torch.stack([b[n] for b in buffers]) for n, b in buffers[0].items() if b.is_floating_point()},
    )


# --- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("perceptron", {}, 305),
        ("cnn", {}, 92_626),
        ("cnn", {"head": False}, 62_006),
        ("cnn-femnist", {}, 48_846),
        ("cnn-femnist", {"classes": 10}, 44_426),
        ("cnn-femnist", {"head": True}, 88_410),
        ("resnet50", {}, 28_246_948),
        ("resnet50", {"head": False}, 23_705_252),
        ("lstm", {}, 133_520),
        ("lstm", {"hidden": 256}, 819_920),
    ],
)
def test_parameter_counts(name: str, options: dict[str, object], count: int) -> None:
    assert counted(on_meta(name, **options)) == count


def test_parts_of_the_cnn() -> None:
    cnn = on_meta("cnn")
    assert counted(cnn.trunk) == 61_156
    assert counted(cnn.project) + counted(cnn.classify) == 31_470


def test_parts_of_resnet50() -> None:
    net = on_meta("resnet50")
    assert counted(net.stem) + counted(net.stages) == 23_500_352
    assert counted(net.project) + counted(net.classify) == 4_746_596
    assert sum(isinstance(m, nn.BatchNorm2d) for m in net.modules()) == 53
    assert sum(b.numel() for b in net.buffers() if b.is_floating_point()) == 53_120


def test_resnet50_strides_on_the_3x3_and_ends_at_4x4() -> None:
    strided = [m for m in on_meta("resnet50").modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)]
    assert [m.kernel_size for m in strided] == [(3, 3), (1, 1)] * 3  # body and shortcut of three stages
    net = build("resnet50", width=2, blocks=[1, 1, 1, 1])
    assert net.stages(net.stem(torch.zeros(1, 3, 32, 32))).shape == (1, 64, 4, 4)


@pytest.mark.parametrize(
    ("name", "options", "classes", "z"),
    [
        ("perceptron", {}, 5, 5),
        ("cnn", {}, 10, 256),
        ("cnn", {"head": False}, 10, 84),
        ("cnn-femnist", {}, 62, 84),
        ("cnn-femnist", {"head": True}, 62, 256),
        ("resnet50", {"width": 2, "blocks": (1, 1)}, 100, 256),
        ("resnet50", {"width": 2, "blocks": (1, 1), "head": False}, 100, 16),
        ("lstm", {}, 80, 100),
    ],
)
def test_features_give_output_and_representation(
    name: str, options: dict[str, object], classes: int, z: int
) -> None:
    model = build(name, **options).double().eval()  # type: ignore[arg-type]
    x = inputs(name, 2)
    output, representation = model.features(x)
    assert output.shape == (2, classes)
    assert representation.shape == (2, z)
    assert torch.equal(model(x), output)


def test_z_is_what_the_classifier_sees() -> None:
    model = build("cnn")
    output, z = model.features(torch.randn(3, 3, 32, 32))
    torch.testing.assert_close(output, F.linear(z, model.classify.weight, model.classify.bias))
    assert (z < 0).any()  # no activation on the projection


# --- initialisation and outputs --------------------------------------------------------------------


def test_perceptron_starts_glorot_uniform_with_zero_bias() -> None:
    with rng.torch_scope(0, "init"):
        dense = build("perceptron").dense
    limit = sqrt(6 / (60 + 5))
    assert not dense.bias.any()
    assert 0.9 * limit < dense.weight.abs().max() <= limit  # torch's default would stop at 1/√60 = .13
    assert dense.weight.std().item() == pytest.approx(limit / sqrt(3), rel=0.1)


def test_perceptron_logits_are_sigmoids() -> None:
    model = build("perceptron")
    with torch.no_grad():  # class 0 as sure as can be
        model.dense.weight.zero_()
        model.dense.bias.copy_(torch.tensor([50.0, -50, -50, -50, -50]))
    output = model(torch.randn(4, 60))
    assert output.min() >= 0
    assert output.max() <= 1
    floor = F.cross_entropy(output, torch.zeros(4, dtype=torch.long)).item()
    assert floor == pytest.approx(log((e + 4) / e), abs=1e-4)  # .9048


def test_resnet_convolutions_start_kaiming_fan_out() -> None:
    with rng.torch_scope(0, "init"):
        net = build("resnet50", blocks=(1, 1), head=False)
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert len(convs) == 1 + 2 * 4
    for conv in convs:
        fan_out = conv.out_channels * conv.kernel_size[0] ** 2
        assert conv.bias is None
        assert conv.weight.std().item() == pytest.approx(sqrt(2 / fan_out), rel=0.05)
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            assert torch.all(norm.weight == 1)
            assert not norm.bias.any()


def test_forget_bias_lifts_the_forget_gates_only() -> None:
    made = []
    for forget_bias in (0.0, 1.0):
        with rng.torch_scope(0, "init"):
            made.append(dict(build("lstm", forget_bias=forget_bias).named_parameters()))
    for name in made[0]:
        change = made[1][name] - made[0][name]
        if name in ("lstm.bias_ih_l0", "lstm.bias_ih_l1"):
            torch.testing.assert_close(change[100:200], torch.ones(100))
            change = torch.cat([change[:100], change[200:]])
        assert not change.any()


# --- the unrolled LSTM -----------------------------------------------------------------------------


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


# --- stacking: K models under vmap equal K models --------------------------------------------------

STACKED = [
    ("perceptron", {}),
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
            module.num_batches_tracked = None  # its add_ would change a captured tensor: grad refuses

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


# --- dropout ---------------------------------------------------------------------------------------


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
        assert agree == pytest.approx(0.7**2 + 0.3**2, abs=0.06)  # as independent masks do; σ = .016


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
    assert [m.layer for m in key_dropout(again).modules() if isinstance(m, Dropout)] == [0, 1, 2, 3, 4]
    again.append(nn.Dropout())
    assert key_dropout(again)[-1].layer == 5


def test_key_dropout_of_a_lone_dropout() -> None:
    keyed = key_dropout(nn.Dropout(0.2))
    assert isinstance(keyed, Dropout)
    assert words(keyed) == ["word"]


# --- registry and checks ---------------------------------------------------------------------------


def test_unknown_model_and_option() -> None:
    with pytest.raises(
        InputError, match=r"^model\.name is not known, got 'resnet'\. Did you mean 'resnet50'\?"
    ):
        build("resnet")
    with pytest.raises(InputError, match=r"^model\.hed is not an option of 'cnn'.*Did you mean 'head'\?"):
        build("cnn", hed=True)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("cnn", "classes", 0),
        ("cnn", "head", "no"),
        ("cnn", "side", 12),
        ("resnet50", "width", 1.5),
        ("resnet50", "blocks", []),
        ("resnet50", "blocks", 3),
        ("lstm", "forget_bias", "1"),
        ("lstm", "hidden", True),
    ],
)
def test_bad_option(name: str, option: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"^model\.{option} must be"):
        build(name, **{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MODELS)
def test_models_have_no_obstacle(name: str) -> None:
    assert stacking_obstacles(on_meta(name)) is None


def test_stacking_obstacles() -> None:
    def reason(layer: nn.Module) -> str:
        return stacking_obstacles(nn.Sequential(nn.Linear(2, 2), layer)) or ""

    for layer in (nn.LSTM(2, 2), nn.GRU(2, 2), nn.RNN(2, 2)):
        assert reason(layer).startswith(f"layer '1' ({type(layer).__name__}) cannot be batched")
    for layer in (nn.AlphaDropout(), nn.FeatureAlphaDropout(), nn.RReLU(), nn.MultiheadAttention(2, 1, 0.1)):
        assert "draws from torch's global generator" in reason(layer)
    for layer in (nn.Dropout(), nn.Dropout2d(), Dropout(), nn.MultiheadAttention(2, 1), nn.BatchNorm1d(2)):
        assert reason(layer) == ""
    assert "momentum" in reason(nn.BatchNorm1d(2, momentum=None))
    assert "lazy" in reason(nn.LazyLinear(2))


def test_refuse() -> None:
    with pytest.raises(InputError, match=r"model\.1\.momentum of a BatchNorm must be .* Set momentum=0\.1"):
        refuse(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None)))
    with pytest.raises(InputError, match=r"model\.momentum"):
        refuse(nn.BatchNorm1d(2, momentum=None))
    refuse(nn.BatchNorm1d(2, momentum=None, track_running_stats=False))  # no average, no counter
    with pytest.raises(InputError, match=r"model\.weight must be real .* torch\.complex64"):
        refuse(nn.Linear(2, 2, dtype=torch.complex64))
    with pytest.raises(InputError, match=r"model\.weight .* torch\.float8"):
        refuse(nn.ParameterDict({"weight": torch.zeros(2).to(torch.float8_e4m3fn)}))
    with pytest.raises(InputError, match=r"model\.running_mean|model\.weight"):
        refuse(nn.LazyBatchNorm1d())


# --- convolutions as products of patches ---------------------------------------------------------------


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
    assert [name for name, _ in patched.named_parameters()] == [n for n, _ in models[0].named_parameters()]
    parameters, _ = stacked(models)
    x = torch.randn(3, 4, 3, 20, 19, dtype=torch.float64)
    x[0, 0] = 1.0  # every window of a plain picture is a tie

    def loss(module: nn.Module, state: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(module, state, (x,)).square().sum()

    ours = vmap(grad(lambda state, x: loss(patched, state, x)))(parameters, x)
    theirs = vmap(grad(lambda state, x: loss(models[0], state, x)))(parameters, x)
    for name, found in ours.items():
        torch.testing.assert_close(found, theirs[name], rtol=1e-10, atol=1e-10, msg=name)


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
            return functional_call(model, dict(zip(parameters, weights, strict=True)), (x,)).square().sum()

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
    assert not any(isinstance(part, PatchConv2d) for part in as_patches(deepcopy(models[1])).modules())
