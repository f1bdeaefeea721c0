"""ResNet-50 for 32×32 images, as MOON trains it on CIFAR-100: a 3×3 stem and no first pooling.

References:
    He et al., Deep Residual Learning for Image Recognition, CVPR 2016 (here v1.5: the 3×3 strides).
    Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021 (the stem and the head).
"""

from collections.abc import Sequence

from torch import Tensor, nn

from fedskip.models.cnn import Z, projection


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
    """ResNet-50 by default; 28,246,948 parameters, 23,705,252 without the head.

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
