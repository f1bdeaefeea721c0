"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021; its code's form.

    min_y  F_i(y) + (alpha_i/2) |y - x|^2 + alpha_i <h_i, y>        alpha_i = alpha / omega_i
    h_i <- h_i + (y - x)
    evaluated = mean_k w_k,   broadcast = mean_k w_k + (1/N) sum_i h_i

The mean over slots is uniform. The server keeps only the running sum of the h_i: it knows x and y.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedskip.methods.base import TRAINABLE, Federation, Merged, Method, State, Visit
from fedskip.methods.terms import Terms
from fedskip.parsing import AtLeast


@dataclass(frozen=True, kw_only=True)
class FedDyn(Method):
    """A regulariser that moves with each client until local and global optima agree."""

    alpha: Annotated[float, AtLeast(0, "the paper uses 0.001 and 0.0001")] = 0.001

    title = "FedDyn"
    remembers = {"h": TRAINABLE}

    def start(self, federation: Federation) -> State:
        return {"h_mean": federation.zeros}

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        alpha_i = self.alpha / visit.omega
        return Terms(mu=alpha_i, anchor=x, linear=alpha_i * memory["h"])

    def end(
        self, x: Tensor, y: Tensor, memory: State, server: State, visit: Visit
    ) -> tuple[State, State]:
        return {"h": memory["h"] + (y - x)}, {}

    def absorb(
        self, server: State, x: Tensor, y: Tensor, upload: State, federation: Federation
    ) -> State:
        return {"h_mean": server["h_mean"] + (y - x).sum(0) / federation.clients}

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        mean = w.mean(0)
        return Merged(mean + server["h_mean"], mean, server)
