"""The bundled models, and `build("cnn")`, which makes one by name. The LSTM is in `lstm.py`.

Outputs are plain numbers: scores of classes, or the values to predict.

References:
    Caldas et al., LEAF: A Benchmark for Federated Settings, 2018 (the perceptron).
    Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021 (the CNN, ResNet's stem, the heads).
    He et al., Deep Residual Learning for Image Recognition, CVPR 2016 (here v1.5: the 3×3 strides).
"""

from collections.abc import Callable, Collection, Sequence
from inspect import signature
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from fedskip.errors import InputError, first_line, unknown
from fedskip.models.lstm import CharLSTM
from fedskip.parsing import MOST

Z = 256  # size of z after the projection head


class MLP(nn.Module):
    """Dense layers with ReLU between them, for flattened samples of any shape.

    z is the input of the last layer; without hidden layers, the output.
    """

    def __init__(self, classes: int = 5, inputs: int = 60, hidden: Sequence[int] = (64,)) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(*ends) for ends in pairwise([inputs, *hidden, classes])
        )

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = x.reshape(x.shape[0], -1)  # (B, inputs)
        *hidden, last = self.layers
        for layer in hidden:
            z = layer(z).relu()
        output: Tensor = last(z)  # (B, classes)
        return output, z if hidden else output

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0]


def linear(classes: int = 5, inputs: int = 60) -> MLP:
    """One dense layer and nothing after it."""
    return MLP(classes, inputs, hidden=())


class Perceptron(nn.Module):
    """LEAF's perceptron: dense 60 -> 5 and a sigmoid, whose outputs serve as logits; 305 parameters.

    The logits lie in (0, 1), so the largest probability of five classes is e / (e + 4) = 0.40 and the
    loss never falls below 0.90: it prefers a worse classifier. That is LEAF's model. `sigmoid=False`
    gives the plain linear one.
    """

    def __init__(self, classes: int = 5, inputs: int = 60, sigmoid: bool = True) -> None:
        super().__init__()
        self.sigmoid = sigmoid
        self.dense = nn.Linear(inputs, classes)
        nn.init.xavier_uniform_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores: Tensor = self.dense(x)  # (B, 5)
        output = scores.sigmoid() if self.sigmoid else scores
        return output, output

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0]

    def stackable(self) -> nn.Module:
        """A form that computes the same, faster when batched over many models."""
        return _StackablePerceptron(self.dense, self.sigmoid)


class _StackablePerceptron(nn.Module):
    """W xᵀ instead of x Wᵀ: batched over models, a product of this shape takes half the time."""

    def __init__(self, dense: nn.Linear, sigmoid: bool) -> None:
        super().__init__()
        self.dense, self.sigmoid = dense, sigmoid

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.dense.weight @ x.T + self.dense.bias[:, None]  # (5, B)
        output = scores.sigmoid().T if self.sigmoid else scores.T
        return output, output

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0]


def projection(h: int) -> nn.Sequential:
    """MOON's projection head, h → z. Its last layer has no activation; the classifier follows."""
    return nn.Sequential(nn.Linear(h, h), nn.ReLU(), nn.Linear(h, Z))


class CNN(nn.Module):
    """Two 5×5 convolutions and two dense layers; 92,626 parameters, 62,006 without the head.

    With the head, z is its 256-d output; without it, the 84-d activations before the classifier.
    """

    def __init__(
        self, classes: int = 10, head: bool = True, channels: int = 3, side: int = 32
    ) -> None:
        super().__init__()
        if side < 16:
            rule = "must be at least 16, or nothing is left to classify"
            raise InputError("model.side", rule, side)
        # a 5×5 convolution takes 4 pixels off, a pool halves: 32 → 5, 28 → 4
        rest = ((side - 4) // 2 - 4) // 2
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * rest * rest, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        self.project = projection(84) if head else nn.Identity()
        self.classify = nn.Linear(Z if head else 84, classes)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.project(self.trunk(x))  # (B, C, side, side) → (B, 256 or 84)
        return self.classify(z), z

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0]


def femnist(classes: int = 62, head: bool = False) -> CNN:
    """The same network for 28×28 grey images; 48,846 parameters."""
    return CNN(classes, head, channels=1, side=28)


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the size of the image (up to its stride), and a BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    """1×1 down to `planes`, 3×3, 1×1 up to 4 `planes`, added to the shortcut."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * planes
        self.body = nn.Sequential(
            conv(inputs, planes, 1),
            nn.ReLU(),
            conv(planes, planes, 3, stride),
            nn.ReLU(),
            conv(planes, outputs, 1),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.body(x) + self.shortcut(x)
        return total.relu()


class ResNet(nn.Module):
    """ResNet-50 for 32×32 images by default; 28,246,948 parameters, 23,705,252 without the head.

    As MOON trains it on CIFAR-100: with a 3×3 stem and no first pooling.

    Stage s has `blocks[s]` bottlenecks of `width` · 2^s planes. Smaller numbers give thin nets, for tests.
    """

    def __init__(
        self,
        classes: int = 100,
        head: bool = True,
        width: int = 64,
        blocks: Sequence[int] = (3, 4, 6, 3),
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, width, 3), nn.ReLU())
        h, stages = width, []
        for stage, count in enumerate(blocks):
            planes = width << stage
            for block in range(count):
                stages.append(Bottleneck(h, planes, stride=2 if stage and not block else 1))
                h = 4 * planes
        self.stages = nn.Sequential(*stages)
        self.project = projection(h) if head else nn.Identity()
        self.classify = nn.Linear(Z if head else h, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.stages(self.stem(x)).mean((2, 3))  # (B, 3, 32, 32) → (B, 2048, 4, 4) → (B, 2048)
        z = self.project(h)  # (B, 256)
        return self.classify(z), z

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0]


# name -> class or function; its arguments are the model's options. Where a study does not set
# `inputs` (numbers in a sample) or `classes` (outputs), the data set does.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": MLP,
    "perceptron": Perceptron,
    "cnn": CNN,
    "cnn-femnist": femnist,
    "resnet50": ResNet,
    "lstm": CharLSTM,
}


# type of an option's default -> what its values must be
RULES: dict[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("must be true or false", lambda value: isinstance(value, bool)),
    int: (f"must be a whole number from 1 to {MOST:,}", lambda value: _are_counts([value])),
    float: ("must be a number", lambda value: type(value) in (int, float)),
    tuple: (
        f"must be a list of whole numbers from 1 to {MOST:,}",
        lambda value: _are_counts(value),
    ),
}


def _are_counts(values: Any) -> bool:
    is_list = isinstance(values, list | tuple) and len(values) > 0
    return is_list and all(type(value) is int and 1 <= value <= MOST for value in values)


def build(name: str, *, classes: int | None = None, **options: Any) -> nn.Module:
    """Build a bundled model with random weights.

    The weights are drawn from torch's global generator, so call this inside `rng.torch_scope`.

    Args:
        name: a key of `MODELS`.
        classes: the number of outputs; by default that of the data set the model was made for.
        options: the model's own options, `model.*` in a study. Defaults are the paper's.

    >>> sum(p.numel() for p in build("cnn", head=False).parameters())
    62006
    """
    if name not in MODELS:
        raise unknown("model.name", name, MODELS)
    if classes is not None:
        options["classes"] = classes
    parameters = signature(MODELS[name]).parameters
    for option, value in options.items():
        if option not in parameters:
            raise unknown_option(name, option, value, parameters)
        rule, holds = RULES[type(parameters[option].default)]
        if not holds(value):
            raise InputError(f"model.{option}", rule, value)
    try:
        return MODELS[name](**options)
    except (RuntimeError, MemoryError) as error:  # not enough memory
        chosen = ", ".join(f"{key}={value}" for key, value in options.items())
        raise InputError(
            "model", f"cannot be made: {first_line(error)}", f"{name}({chosen})"
        ) from error


def unknown_option(name: str, option: str, value: Any, known: Collection[str]) -> InputError:
    """The error for an option that the model `name` does not take."""
    fix = unknown("model", option, known).fix if known else "it takes none"
    return InputError(f"model.{option}", f"is not an option of {name!r}", value, fix)
