"""FedNova: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization, NeurIPS 2020.

    d_k = (x - w_k) / A_k,   x <- x - (sum_k p_k A_k) sum_k p_k d_k

A_k sums a_i over the visits of slot k since the last merge (momentum restarts at each visit). The
learning rate is inside A_k and cancels.
"""

from dataclasses import dataclass

from torch import Tensor

from fedskip.methods.base import Merged, Method, State


@dataclass(frozen=True, kw_only=True)
class FedNova(Method):
    """Plain local SGD; updates are normalised by their number of steps before they are averaged."""

    title = "FedNova"

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        d = (x - w) / a
        x = x - (p @ a) * (p @ d)
        return Merged(x, x, server)
