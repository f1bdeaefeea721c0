"""Dense layers for vectors. The outputs are plain numbers: scores of classes, or what is to be predicted."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Dense layers with ReLU between them; samples of any shape are flattened.

    z is what the last layer sees; without hidden layers, the output.
    """

    def __init__(self, classes: int = 5, inputs: int = 60, hidden: Sequence[int] = (64,)) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*ends) for ends in pairwise([inputs, *hidden, classes]))

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
    """One dense layer, nothing after it; samples of any shape are flattened."""
    return MLP(classes, inputs, hidden=())
