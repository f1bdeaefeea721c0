"""Merges that a few bad slots cannot drag far.

TrimmedMean, Median: Yin et al., Byzantine-Robust Distributed Learning, ICML 2018 (coordinate by coordinate).
NormBounded: Sun et al., Can You Really Backdoor Federated Learning?, 2019; here the bound follows the slots.

The first two count all slots alike: whoever claims many samples gains nothing by it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedskip.input.errors import require
from fedskip.methods.base import Merged, Method, State


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Method):
    """x = the mean of what is left after the b lowest and b highest of K values,  b = floor(trim K)."""

    trim: float = 0.2  # the share of bad slots that it stands; 0 is the plain mean

    title = "TrimmedMean"

    def __post_init__(self) -> None:
        super().__post_init__()
        require("trim", 0 <= self.trim < 0.5, "must be in [0, 0.5)", self.trim, "it is cut off at both ends")

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

    factor: float = 1.0  # a large one is FedAvg

    title = "NormBounded"

    def __post_init__(self) -> None:
        super().__post_init__()
        require("factor", self.factor > 0, "must be > 0", self.factor, "a large one is FedAvg")

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        d = w - x
        norm = d.norm(dim=1)  # (K,)
        bound = self.factor * norm.median()
        x = x + (p * torch.where(norm > bound, bound / norm, 1.0)) @ d
        return Merged(x, x, server)
