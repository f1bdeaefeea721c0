"""MOON: Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021.

    loss += mu * mean_b -log [ e^(cos(z, z_x)/T) / (e^(cos(z, z_x)/T) + e^(cos(z, z_prev)/T)) ]

z_x comes from the received model, z_prev from the client's own last local model, both frozen and in eval
mode. On a client's first visit there is no previous model and no such term.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedskip.methods.base import MODEL, Method, State, Visit
from fedskip.methods.terms import Contrast, Terms
from fedskip.parsing import Above, AtLeast


@dataclass(frozen=True, kw_only=True)
class Moon(Method):
    """Representations stay near the received model's, and move away from the previous local model's."""

    mu: Annotated[float, AtLeast(0, "0 is FedAvg")] = 1.0  # weight of the contrastive loss
    temperature: Annotated[float, Above(0, "0.5 is MOON's")] = 0.5

    title = "MOON"
    remembers = {"previous": MODEL}

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        weight = self.mu * (~visit.first).to(x.dtype)
        return Terms(contrast=Contrast(weight, self.temperature, memory["previous"]))
