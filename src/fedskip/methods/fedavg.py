"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017.

    x <- sum_k p_k w_k

With `period > 1` it is FedSkip: Fan et al., FedSkip: Combatting Statistical Heterogeneity with Federated
Skip Aggregation, ICDM 2022. Slots then travel from client to client between two merges, and p_k counts
the samples that slot k has seen since the last one.
"""

from dataclasses import dataclass

from fedskip.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Plain local SGD, merged by samples."""

    title = "FedAvg"
