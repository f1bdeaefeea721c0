"""How much weight FedNova gives the slots together: from the sizes of the clients alone.

    python benchmarks/nova.py --out benchmarks/results/nova.csv

FedAvg moves x by the sum of p_k (w_k - x), where the p_k sum to 1. FedNova divides by the steps A_k of a slot
and multiplies by their mean: it moves x by the sum of u_k (w_k - x) with u_k = p_k (sum_j p_j A_j) / A_k.
These sum to 1 where all A_k are alike, and to more where they are not. Writes that sum for each round of the
paper's settings, at their seeds, up to round 200.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from fedskip.bench.contestants import setting_of
from fedskip.engine.local import momentum_sum
from fedskip.federation import Run
from fedskip.files import write_text
from fedskip.paper.columns import races
from fedskip.records.table import Row, Table
from fedskip.study.prepare import Prepared

ROUNDS = 200  # at most


def weights(prepared: Prepared, run: Run, round: int) -> float:
    """The sum of the u_k of a round, to four digits."""
    local, sizes = prepared.task.local, [int(run.clients.sizes[i]) for i in run.server.cohort(round)]
    p = np.array(sizes) / sum(sizes)
    a = np.array([momentum_sum(np.full(local.steps(size), local.lr), local.momentum) for size in sizes])
    return float(f"{p @ a * (p / a).sum():.4g}")


def rows(name: str) -> list[Row]:
    """Those of a setting, seed by seed."""
    keys: dict[str, Any] = dict(races()[name].draft.keys)
    prepared, _ = setting_of(keys | {"methods": "fednova", "engine": "loop", "device": "cpu"})
    return [
        {"setting": name, "seed": run.server.seed, "round": t + 1, "weights": weights(prepared, run, t)}
        for run in prepared.runs()
        for t in range(min(ROUNDS, prepared.setting.rounds))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    here = [name for name in races() if "cifar100" not in name]
    parser.add_argument("setting", nargs="*", default=here, metavar="STUDY/SETTING")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    table = Table(("setting", "seed", "round", "weights"))
    for name in chosen.setting:
        table.rows += rows(name)
    if chosen.out is None:
        print(table.csv())
    else:
        write_text(chosen.out, table.csv())


if __name__ == "__main__":
    main()
