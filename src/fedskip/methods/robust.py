"""Robust merges, which a few bad slots cannot change much.

TrimmedMean, Median: Yin et al., Byzantine-Robust Distributed Learning, ICML 2018 (coordinate by coordinate).
NormBounded: Sun et al., Can You Really Backdoor Federated Learning?, 2019; here the bound follows the slots.

The first two give all slots the same weight, so a client gains nothing by claiming many samples.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedskip.methods.base import Merged, Method, State
from fedskip.parsing import Above, In


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Method):
    """x = the mean of what is left after the b lowest and b highest of K values,  b = floor(trim K)."""

    # the share of bad slots that it stands; 0 is the plain mean
    trim: Annotated[float, In("[0, 0.5)", "it is cut off at both ends")] = 0.2

    title = "TrimmedMean"

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        b = int(self.trim * len(w))
        mean = w.sort(0).values[b : len(w) - b].mean(0)
        return Merged(mean, mean, server)


@dataclass(frozen=True, kw_only=True)
class Median(Method):
    """x = the median of K values; of an even number of them, the mean of the middle two."""

    title = "Median"

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        middle = w.sort(0).values[(len(w) - 1) // 2 : len(w) // 2 + 1]
        median = middle.mean(0)
        return Merged(median, median, server)


@dataclass(frozen=True, kw_only=True)
class NormBounded(Method):
    """x <- x + sum_k p_k d_k min(1, bound / |d_k|),   d_k = w_k - x,   bound = factor median_j |d_j|."""

    factor: Annotated[float, Above(0, "a large one is FedAvg")] = 1.0

    title = "NormBounded"

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        d = w - x
        norm = d.norm(dim=1)  # (K,)
        bound = self.factor * norm.median()
        x = x + (p * torch.where(norm > bound, bound / norm, 1.0)) @ d
        return Merged(x, x, server)
