"""How much weight FedNova gives the slots together: from the sizes of the clients alone.

    python -m reproduction fednova-weights

FedAvg moves x by the sum of p_k (w_k - x), where the p_k sum to 1. FedNova divides by the steps A_k of a slot
and multiplies by their mean: it moves x by the sum of u_k (w_k - x) with u_k = p_k (sum_j p_j A_j) / A_k.
These sum to 1 where all A_k are alike, and to more where they are not. Writes that sum for each round of the
paper's settings, at their seeds, up to round 200.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pandas as pd

from fedskip.engine.local import momentum_sum
from fedskip.federation import Run
from fedskip.study.machine import prepared_setting
from fedskip.study.prepare import Prepared
from reproduction.columns import compared

ROUNDS = 200  # at most


def weights(prepared: Prepared, run: Run, round: int) -> float:
    """The sum of the u_k of a round, to four digits."""
    local, sizes = (
        prepared.task.local,
        [int(run.clients.sizes[i]) for i in run.server.cohort(round)],
    )
    p = np.array(sizes) / sum(sizes)
    a = np.array(
        [momentum_sum(np.full(local.steps(size), local.lr), local.momentum) for size in sizes]
    )
    return float(f"{p @ a * (p / a).sum():.4g}")


def rows(name: str) -> list[dict[str, Any]]:
    """Those of a setting, seed by seed."""
    keys: dict[str, Any] = dict(compared()[name].keys)
    prepared, _ = prepared_setting(keys | {"methods": "fednova", "engine": "loop", "device": "cpu"})
    return [
        {
            "setting": name,
            "seed": run.server.seed,
            "round": t + 1,
            "weights": weights(prepared, run, t),
        }
        for run in prepared.runs()
        for t in range(min(ROUNDS, prepared.setting.rounds))
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    here = [name for name in compared() if "cifar100" not in name]
    parser.add_argument("setting", nargs="*", default=here, metavar="STUDY/SETTING")


def main(chosen: argparse.Namespace) -> pd.DataFrame:
    return pd.DataFrame([row for name in chosen.setting for row in rows(name)])
