"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

min_y  F_i(y) + (mu/2) |y - x|^2        x: the model received for this visit
"""

from dataclasses import dataclass

from torch import Tensor

from fedskip.input.errors import require
from fedskip.methods.base import Method, State, Visit, rows
from fedskip.methods.terms import Terms


@dataclass(frozen=True, kw_only=True)
class FedProx(Method):
    """A pull of strength `mu` towards the received model."""

    mu: float = 0.01  # strength of the pull; 0 is FedAvg

    title = "FedProx"

    def __post_init__(self) -> None:
        super().__post_init__()
        require("mu", self.mu >= 0, "must be >= 0", self.mu, "0 is FedAvg")

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(mu=rows(self.mu, like=x), anchor=x)
