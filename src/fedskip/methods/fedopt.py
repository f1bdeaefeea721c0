"""Server optimisers on the averaged update.

FedAvgM: Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution, 2019.
FedAdam: Reddi et al., Adaptive Federated Optimization, ICLR 2021 (algorithm 2, no bias correction).

    d = x - sum_k p_k w_k           the averaged update, taken as a gradient
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedskip.methods.base import Federation, Merged, Method, State
from fedskip.parsing import Above, In


@dataclass(frozen=True, kw_only=True)
class FedAvgM(Method):
    """m <- beta m + d,  x <- x - lr m."""

    beta: Annotated[float, In("[0, 1)")] = 0.9  # server momentum; 0 with lr 1 is FedAvg
    lr: Annotated[float, Above(0)] = 1.0

    title = "FedAvgM"

    def start(self, federation: Federation) -> State:
        return {"m": federation.zeros}

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        m = self.beta * server["m"] + (x - p @ w)
        x = x - self.lr * m
        return Merged(x, x, {"m": m})


@dataclass(frozen=True, kw_only=True)
class FedAdam(Method):
    """m <- b1 m + (1-b1) d,  v <- b2 v + (1-b2) d^2,  x <- x - lr m / (sqrt v + eps)."""

    lr: Annotated[float, Above(0)] = 0.01
    beta1: Annotated[float, In("[0, 1)")] = 0.9
    beta2: Annotated[float, In("[0, 1)")] = 0.99
    eps: Annotated[float, Above(0)] = 1e-3

    title = "FedAdam"

    def start(self, federation: Federation) -> State:
        zeros = federation.zeros
        return {"m": zeros, "v": zeros + self.eps**2}

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        d = x - p @ w
        m = self.beta1 * server["m"] + (1 - self.beta1) * d
        v = self.beta2 * server["v"] + (1 - self.beta2) * d.square()
        x = x - self.lr * m / (v.sqrt() + self.eps)
        return Merged(x, x, {"m": m, "v": v})
