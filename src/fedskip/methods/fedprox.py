"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

min_y  F_i(y) + (mu/2) |y - x|^2        x: the model received for this visit
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedskip.methods.base import Method, State, Visit, rows
from fedskip.methods.terms import Terms
from fedskip.parsing import AtLeast


@dataclass(frozen=True, kw_only=True)
class FedProx(Method):
    """A pull of strength `mu` towards the received model."""

    mu: Annotated[float, AtLeast(0, "0 is FedAvg")] = 0.01  # strength of the pull

    title = "FedProx"

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(mu=rows(self.mu, like=x), anchor=x)
