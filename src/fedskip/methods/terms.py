"""The terms that a method may add to plain SGD. Engines know these terms, and no method.

v <- rho v + grad F(y) + wd y + mu (y - anchor) + linear
y <- y - eta v
loss += weight * contrast(z, z_received, z_previous)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

# (module, inputs, targets, loss) -> the number to differentiate
Objective = Callable[[nn.Module, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]], Tensor]


@dataclass(frozen=True)
class Contrast:
    """MOON's loss: z is pulled to that of the received model, and away from the previous local one's."""

    weight: Tensor  # (K, 1); 0 where a client has no previous model yet
    temperature: float
    previous: Tensor  # (K, P)


@dataclass(frozen=True)
class Terms:
    """The terms of K visits. A term that is None costs nothing."""

    mu: Tensor | None = None  # (K, 1)
    anchor: Tensor | None = None  # (K, D)
    linear: Tensor | None = None  # (K, D)
    contrast: Contrast | None = None
    # a loss that does not fit this form; only the loop engine runs it
    objective: Objective | None = None

    def row(self, k: int) -> Terms:
        """The terms of one visit."""
        mu, anchor, linear = (
            None if t is None else t[k] for t in (self.mu, self.anchor, self.linear)
        )
        contrast = self.contrast
        if contrast is not None:
            contrast = Contrast(contrast.weight[k], contrast.temperature, contrast.previous[k])
        return Terms(mu, anchor, linear, contrast, self.objective)
