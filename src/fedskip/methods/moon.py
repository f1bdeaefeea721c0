"""MOON: Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021.

    loss += mu * mean_b -log [ e^(cos(z, z_x)/T) / (e^(cos(z, z_x)/T) + e^(cos(z, z_prev)/T)) ]

z_x comes from the received model, z_prev from the client's own last local model, both frozen and in eval
mode. On a client's first visit there is no previous model and no such term.
"""

from dataclasses import dataclass

from torch import Tensor

from fedskip.input.errors import require
from fedskip.methods.base import MODEL, Method, State, Visit
from fedskip.methods.terms import Contrast, Terms


@dataclass(frozen=True, kw_only=True)
class Moon(Method):
    """Representations stay near the received model's and leave the previous local one's."""

    mu: float = 1.0  # weight of the contrastive loss; 0 is FedAvg
    temperature: float = 0.5

    title = "MOON"
    remembers = {"previous": MODEL}

    def __post_init__(self) -> None:
        super().__post_init__()
        require("mu", self.mu >= 0, "must be >= 0", self.mu, "0 is FedAvg")
        require("temperature", self.temperature > 0, "must be > 0", self.temperature, "0.5 is MOON's")

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        weight = self.mu * (~visit.first).to(x.dtype)
        return Terms(contrast=Contrast(weight, self.temperature, memory["previous"]))
