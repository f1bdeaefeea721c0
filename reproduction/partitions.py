"""Who has which samples: Figure 3, clients with samples of a single class, and the clients at which runs diverged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from fedskip.data.partitions import partition
from fedskip.study.machine import prepared_setting
from fedskip.study.prepare import Prepared
from reproduction.columns import Column, Studies, columns

LABELS = np.repeat(np.arange(10), 5_000)  # as many of each class as CIFAR-10 has for training
FIGURE3 = ("table2/cifar10-iid", "table2/cifar10-beta1", "table2/cifar10-beta0.5")


@lru_cache(maxsize=4)
def prepared(column: Column, seed: int, methods: str = "fedavg") -> Prepared:
    """A column as fedskip prepares it for one seed: data, clients and model. Needs the data set."""
    keys: dict[str, Any] = {"methods": methods, "seeds": [seed], "engine": "loop", "device": "cpu"}
    return prepared_setting(_written(column) | keys)[0]


def _written(column: Column) -> dict[str, Any]:
    """The keys of a column as a study file has them."""
    return {key: value for key, value in column.keys.items() if key not in ("name", "settings")}


def class_counts(column: Column, seed: int) -> pd.DataFrame:
    """Training samples of each class (rows) and client (columns) at a seed."""
    found = prepared(column, seed)
    clients, classes = found.division(seed).clients, found.dataset.classes or 0
    labels = found.dataset.samples.labels()
    counts = [np.bincount(labels[clients[i]], minlength=classes) for i in range(len(clients))]
    return pd.DataFrame({f"client {i}": count for i, count in enumerate(counts)})


def figure3() -> dict[str, pd.DataFrame]:
    """Class counts of CIFAR-10 with ten clients at seed 0: IID, β = 1 and β = 0.5."""
    return {f"fig3-{name.rpartition('-')[2]}": class_counts(columns()[name], 0) for name in FIGURE3}


def single_class(clients: int, seed: int, beta: float = 0.5, kind: str = "dirichlet") -> list[int]:
    """The clients whose samples are all of one class, in a partition of CIFAR-10.

    `dirichlet` gives no more samples to a client that has its fair share, as NIID-Bench does;
    `dirichlet_plain` has no such cap.
    """
    divided = partition(kind, np.arange(len(LABELS)), LABELS, clients=clients, seed=seed, beta=beta)
    client = np.repeat(np.arange(clients), divided.sizes)
    counts = np.bincount(10 * client + LABELS[divided.indices], minlength=10 * clients)
    alone = (counts.reshape(clients, 10) > 0).sum(1) == 1
    return [int(i) for i in np.flatnonzero(alone)]


def single_class_table(seeds: int = 100) -> pd.DataFrame:
    """In how many partitions of CIFAR-10 some client has samples of one class only, with and without the cap."""
    rows = []
    for clients in (50, 100):
        for kind, words in (("dirichlet", "with the cap"), ("dirichlet_plain", "without")):
            found = sum(bool(single_class(clients, seed, kind=kind)) for seed in range(seeds))
            rows.append({"clients": clients, "partition": f"`{kind}`, {words}",
                         "partitions with such a client": f"{found} of {seeds}"})  # fmt: skip
    return pd.DataFrame(rows)


def diverged(studies: Studies) -> pd.DataFrame:
    """The runs that diverged: when, at which client, and from which client the model came."""
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    seen = set()
    for name, column in columns().items():
        for _, run in column.runs(studies).query("diverged").iterrows():
            if (run["study"], run["run"]) not in seen:
                seen.add((run["study"], run["run"]))
                rows[name, run["method"], run["seed"]] = _broken(name, column, run)
    return pd.DataFrame(rows.values())


def _broken(name: str, column: Column, run: pd.Series) -> dict[str, Any]:
    found = {
        "setting": name,
        "method": run["method"],
        "seed": run["seed"],
        "last_round": run["rounds"],
    }
    if pd.isna(run.get("broke_client")):
        return found
    client, round = int(run["broke_client"]), int(run["broke_round"])
    found |= {"broke_round": round, "broke_client": client}
    [mine] = prepared(column, run["seed"], column.methods[run["method"]]).runs()
    counts = class_counts(column, run["seed"])
    found |= _client(counts, client, "") | {"mean_size": counts.sum().mean()}
    if round > 1 and not mine.server.period.merges(round - 1):
        slot = mine.server.cohort(round - 1) == client
        came_from = int(mine.server.cohort(round - 2)[slot][0])
        found |= {"from_client": came_from} | _client(counts, came_from, "from_")
    return found


def _client(counts: pd.DataFrame, client: int, prefix: str) -> dict[str, Any]:
    own = counts[f"client {client}"]
    return {f"{prefix}size": int(own.sum()), f"{prefix}classes": int((own > 0).sum()),
            f"{prefix}largest_class": own.max() / own.sum()}  # fmt: skip


def after_single_class(visits: pd.DataFrame, method: str, clients: int) -> pd.DataFrame:
    """The largest gradients by seed: in visits right after a client with one class, and in all others.

    A slot keeps its model between merges, so a visit starts from what the slot's last client made of it.
    """
    period = int(method.rpartition("-")[2])
    mine = visits[visits["method"] == method]
    before = mine.assign(round=mine["round"] + 1)[["seed", "slot", "round", "client"]]
    both = mine.merge(before, on=["seed", "slot", "round"], how="left", suffixes=("", "_before"))
    both.loc[(both["round"] - 1) % period == 0, "client_before"] = np.nan
    rows = []
    for seed, found in both.groupby("seed", sort=False):
        alone = single_class(clients, int(seed))
        after = found["client_before"].isin(alone)
        rows.append({"seed": seed, "client with one class": _listed(alone) or "none",
                     "largest gradients right after it": _listed(found["largest"][after]) or "–",
                     "largest gradient otherwise": f"{found['largest'][~after].max():,.0f}"})  # fmt: skip
    return pd.DataFrame(rows)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values)
