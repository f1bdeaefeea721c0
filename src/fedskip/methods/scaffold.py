"""SCAFFOLD: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning, ICML 2020, option II.

    y   <- y - eta (g_i(y) - c_i + c)
    c_i <- c_i - c + (x - y) / (eta a_i)
    c   <- c + (1/N) sum_S (c_i+ - c_i)

The correction c - c_i enters the gradient before momentum, and the drift x - y is divided by eta a_i, the
weight with which momentum really summed the gradients (FedNova's a_i; tau_i when momentum is 0, which is
the published algorithm). Dividing by eta tau_i under momentum has a gain near 9 and blows up. Models merge
by samples; the variates, as in the paper, solve the unweighted objective.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedskip.methods.base import TRAINABLE, Federation, Method, State, Visit
from fedskip.methods.terms import Terms


@dataclass(frozen=True, kw_only=True)
class Scaffold(Method):
    """Control variates c (server) and c_i (client) correct each client's drift."""

    # random: the weights of one network, as in NIID-Bench; it learns badly
    init: Literal["zero", "random"] = "zero"

    title = "SCAFFOLD"
    remembers = {"c": TRAINABLE}

    def start(self, federation: Federation) -> State:
        if self.init == "zero":
            return {"c": federation.zeros}
        c0 = federation.fresh()
        return {"c": c0, "c0": c0}

    def sends(self, server: State) -> State:
        return server

    def _variate(self, memory: State, server: State, visit: Visit) -> Tensor:
        """c_i, which starts as c did."""
        if "c0" not in server:
            return memory["c"]
        return torch.where(visit.first, server["c0"], memory["c"])

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(linear=server["c"] - self._variate(memory, server, visit))

    def end(
        self, x: Tensor, y: Tensor, memory: State, server: State, visit: Visit
    ) -> tuple[State, State]:
        c_i = self._variate(memory, server, visit)
        c_i_new = c_i - server["c"] + (x - y) / visit.a
        return {"c": c_i_new}, {"delta_c": c_i_new - c_i}

    def absorb(
        self, server: State, x: Tensor, y: Tensor, upload: State, federation: Federation
    ) -> State:
        return {**server, "c": server["c"] + upload["delta_c"].sum(0) / federation.clients}
