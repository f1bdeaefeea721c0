"""Models for vectors: `linear`, `MLP`, and LEAF's `Perceptron` for SYNTHETIC.

Outputs are plain numbers: scores of classes, or the values to predict. Samples of any shape are
flattened by `linear` and `MLP`.

References:
    Caldas et al., LEAF: A Benchmark for Federated Settings, 2018 (the perceptron).
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Dense layers with ReLU between them.

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
