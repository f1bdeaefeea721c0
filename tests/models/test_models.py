"""Every model: its size, its parts, its start, what it is refused for."""

from __future__ import annotations

from math import e, log, sqrt

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskip import rng
from fedskip.errors import InputError
from fedskip.models import MODELS, Dropout, build
from fedskip.models.forms import check_trainable, stacking_obstacles


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
    shape = {"linear": (60,), "mlp": (60,), "perceptron": (60,), "cnn-femnist": (1, 28, 28)}.get(
        name, (3, 32, 32)
    )
    return torch.randn(*lead, *shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("linear", {}, 305),
        ("linear", {"inputs": 2, "classes": 3}, 9),
        ("mlp", {}, 61 * 64 + 65 * 5),
        ("mlp", {"inputs": 2, "classes": 3, "hidden": [7, 4]}, 3 * 7 + 8 * 4 + 5 * 3),
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
    strided = [
        m for m in on_meta("resnet50").modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)
    ]
    assert [m.kernel_size for m in strided] == [
        (3, 3),
        (1, 1),
    ] * 3  # body and shortcut of three stages
    net = build("resnet50", width=2, blocks=[1, 1, 1, 1])
    assert net.stages(net.stem(torch.zeros(1, 3, 32, 32))).shape == (1, 64, 4, 4)


@pytest.mark.parametrize(
    ("name", "options", "classes", "z"),
    [
        ("linear", {}, 5, 5),
        ("mlp", {"hidden": [7, 4]}, 5, 4),
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


def test_perceptron_starts_glorot_uniform_with_zero_bias() -> None:
    with rng.torch_scope(0, "init"):
        dense = build("perceptron").dense
    limit = sqrt(6 / (60 + 5))
    assert not dense.bias.any()
    assert (
        0.9 * limit < dense.weight.abs().max() <= limit
    )  # torch's default would stop at 1/√60 = .13
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
    model.sigmoid = False
    assert model(torch.randn(4, 60)).max() == 50


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


def test_unknown_model_and_option() -> None:
    with pytest.raises(
        InputError, match=r"^model\.name is not known, got 'resnet'\. Did you mean 'resnet50'\?"
    ):
        build("resnet")
    with pytest.raises(
        InputError, match=r"^model\.hed is not an option of 'cnn'.*Did you mean 'head'\?"
    ):
        build("cnn", hed=True)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("mlp", "hidden", []),
        ("mlp", "hidden", 64),
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
    for layer in (
        nn.AlphaDropout(),
        nn.FeatureAlphaDropout(),
        nn.RReLU(),
        nn.MultiheadAttention(2, 1, 0.1),
    ):
        assert "draws from torch's global generator" in reason(layer)
    for layer in (
        nn.Dropout(),
        nn.Dropout2d(),
        Dropout(),
        nn.MultiheadAttention(2, 1),
        nn.BatchNorm1d(2),
    ):
        assert reason(layer) == ""
    assert "momentum" in reason(nn.BatchNorm1d(2, momentum=None))
    assert "lazy" in reason(nn.LazyLinear(2))


def test_refuse() -> None:
    with pytest.raises(
        InputError, match=r"model\.1\.momentum of a BatchNorm must be .* Set momentum=0\.1"
    ):
        check_trainable(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None)))
    with pytest.raises(InputError, match=r"model\.momentum"):
        check_trainable(nn.BatchNorm1d(2, momentum=None))
    check_trainable(
        nn.BatchNorm1d(2, momentum=None, track_running_stats=False)
    )  # no average, no counter
    with pytest.raises(InputError, match=r"model\.weight must be real .* torch\.complex64"):
        check_trainable(nn.Linear(2, 2, dtype=torch.complex64))
    with pytest.raises(InputError, match=r"model\.weight .* torch\.float8"):
        check_trainable(nn.ParameterDict({"weight": torch.zeros(2).to(torch.float8_e4m3fn)}))
    with pytest.raises(InputError, match=r"model\.running_mean|model\.weight"):
        check_trainable(nn.LazyBatchNorm1d())
