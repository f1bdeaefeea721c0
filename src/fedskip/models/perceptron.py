"""LEAF's perceptron for SYNTHETIC: one dense layer and a sigmoid, whose outputs are used as logits.

References:
    Caldas et al., LEAF: A Benchmark for Federated Settings, 2018 (the data set and its model).
"""

from torch import Tensor, nn


class Perceptron(nn.Module):
    """Dense 60 → 5, sigmoid; 305 parameters.

    The logits lie in (0, 1), so the largest probability of five classes is e / (e + 4) = 0.40 and the
    loss never falls below 0.90: it prefers a worse classifier. That is LEAF's model; `sigmoid=False` is the
    plain linear one.
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
        """The same, computed in the form that is fast for many models at once."""
        return _Stacked(self.dense, self.sigmoid)


class _Stacked(nn.Module):
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
