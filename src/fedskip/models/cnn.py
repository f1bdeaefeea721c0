"""MOON's simple CNN for CIFAR-10 and FEMNIST, with and without the projection head.

References:
    Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021 (the network and its head).
"""

from torch import Tensor, nn

from fedskip.errors import InputError

Z = 256  # size of z after the projection head


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
