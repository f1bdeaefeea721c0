"""What can a curious client learn from the model that it receives? Membership inference by loss.

    python -m reproduction membership femnist --rounds 200 --seeds 3 --sigma 0.001 0.01 0.1 0.5
    python -m reproduction membership femnist --rounds 200 --seeds 3 --sigma
    python -m reproduction membership cifar10 --rounds 100

With skipping, a client receives the very model that another client has just trained; without, a merged one.
The client guesses that a sample with a small loss was among the training samples of the client who had the
model before (Yeom et al., Privacy Risk in Machine Learning, CSF 2018). The table says how well that works:

- auc: the chance that a training sample of that client has a smaller loss than a sample which nobody trained
  on; 0.5 is guessing. A mean over visits, within each of which the samples come from the same writer
  (femnist), or have the same mix of classes (cifar10).
- tpr: the share of training samples that are found, over all visits, where 1 % of the others are mistaken for
  one.
- seeds: those that a row is of: all of them, or one alone.
- ago: 1 is the client who had the model just before; 2 the one before it, and so on. Without skipping it is
  whoever trained a model that went into the merge, so many rounds ago.

Methods with sigma and clip have `privacy: {clip, sigma}`. All at the last round of a period before its merge,
after a third of the rounds.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from fedskip.federation import Run, train
from fedskip.models.metrics import Measure
from fedskip.rng import stream
from fedskip.study.machine import prepared_setting
from fedskip.study.prepare import Prepared
from fedskip.study.setting_plan import make_engine

SETTINGS: dict[str, dict[str, Any]] = {
    "femnist": {"data": "femnist", "model": "cnn-femnist", "clients": 180, "cohort": 10},
    "cifar10": {
        "data": "cifar10", "model": "cnn", "partition": {"kind": "dirichlet", "beta": 0.5}, "clients": 10,
        "cohort": 10,
    },
    "synthetic": {"data": "synthetic", "model": {"name": "mlp", "hidden": [64]}, "cohort": 10},
}  # fmt: skip


class Guess(NamedTuple):
    """What the losses of one visit's samples reveal about who trained on them."""

    seed: int
    auc: float
    members: np.ndarray
    others: np.ndarray


def measured(prepared: Prepared, by: Measure, model: torch.Tensor, index: np.ndarray) -> np.ndarray:
    """The loss or the metric of one model (P,) on some samples."""
    task, found = prepared.task, []
    module = copy.deepcopy(task.module).eval()
    task.layout.load(module, model)
    with torch.no_grad():
        for part in torch.as_tensor(index, device=model.device).split(2000):
            x, y = task.samples.take(part)
            found.append(by(module(task.test_transform(x) if task.test_transform else x), y))
    return np.asarray(torch.cat(found).cpu())


def strangers(prepared: Prepared, seed: int, members: np.ndarray) -> np.ndarray:
    """Test samples of the same writer; where samples have no owner, of the same mix of classes."""
    data, test = prepared.dataset, prepared.division(seed).test
    if data.owner is not None:
        return np.asarray(test[data.owner[test] == data.owner[members[0]]])
    labels = prepared.task.samples.y.cpu().numpy()  # type: ignore[attr-defined]
    shuffled = stream(seed, "audit").permutation(test)
    mine, classes = np.bincount(labels[members]), labels[shuffled]
    share = min(1.0, min(np.bincount(classes)[c] / mine[c] for c in np.flatnonzero(mine)))
    return np.concatenate(
        [shuffled[classes == c][: int(share * mine[c])] for c in np.flatnonzero(mine)]
    )


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """The chance that a member has the smaller loss (Mann-Whitney; ties count half)."""
    below = np.searchsorted(np.sort(members), others, "left")
    upto = np.searchsorted(np.sort(members), others, "right")
    return float((below + upto).sum() / 2 / len(members) / len(others))


def found_at(members: np.ndarray, others: np.ndarray, false: float = 0.01) -> float:
    """The share of members whose loss is below all but a share `false` of the others'."""
    return float((members < np.quantile(others, false)).mean())


def guesses(
    prepared: Prepared, run: Run, back: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(ago, losses of members, losses of others) for each model that is sent out next."""
    server, seed = run.server, run.server.seed
    received = server.orders(run.round).x
    for ago in range(1, back + 1):
        for slot, client in enumerate(server.cohort(run.round - ago)):
            members = prepared.division(seed).clients[int(client)]
            others = strangers(prepared, seed, members)
            if len(others):
                a, b = (
                    measured(prepared, prepared.task.loss, received[slot], one)
                    for one in (members, others)
                )
                yield ago, a, b


def accuracy(prepared: Prepared, run: Run) -> float:
    """Of the mean of what the slots hold."""
    test = prepared.division(run.server.seed).test
    return float(
        measured(prepared, prepared.task.metrics[0].of_each, run.server.w.mean(0), test).mean()
    )


def audit(
    name: str, keys: dict[str, Any], label: str, rounds: int, period: int
) -> list[dict[str, Any]]:
    """One method: rows of all seeds together, then of each alone."""
    prepared, machine = prepared_setting(SETTINGS[name] | keys | {"rounds": rounds})
    runs = list(prepared.runs())
    engine = make_engine(prepared, machine, runs)
    seen: dict[int, list[Guess]] = {ago: [] for ago in range(1, period)}
    for stop in range(period - 1, rounds + 1, period):
        for _ in train(engine, runs, stop):
            pass
        if stop < rounds // 3:
            continue
        for run in runs:
            for ago, members, others in guesses(prepared, run, period - 1):
                seen[ago].append(Guess(run.server.seed, auc(members, others), members, others))
    right = {run.server.seed: accuracy(prepared, run) for run in runs}
    alone = [[seed] for seed in right] if len(right) > 1 else []
    rows = []
    for seeds in [[*right], *alone]:
        for ago, visits in seen.items():
            mine = [one for one in visits if one.seed in seeds]
            aucs = np.array([one.auc for one in mine])
            members = np.concatenate([one.members for one in mine])
            others = np.concatenate([one.others for one in mine])
            rows.append({
                "data": name, "method": label, "seeds": ", ".join(map(str, seeds)), "rounds": rounds,
                "ago": ago, "visits": len(mine), "auc": round(float(aucs.mean()), 4),
                "spread": round(float(aucs.std()), 4), "tpr": round(found_at(members, others), 4),
                "accuracy": round(float(np.mean([right[seed] for seed in seeds])), 4),
            })  # fmt: skip
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", choices=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--period", type=int, default=5)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--sigma", type=float, nargs="*", default=[0.001, 0.01])
    parser.add_argument("--device", default="auto")


def main(chosen: argparse.Namespace) -> pd.DataFrame:
    local = {"batch": 64, "epochs": 10, "small_clients": "short"}
    keys = {"seeds": chosen.seeds, "device": chosen.device, "local": local}
    skipping = f"fedskip(period={chosen.period})"
    plans: dict[str, dict[str, Any]] = {one: {"methods": one} for one in ("fedavg", skipping)}
    for sigma in chosen.sigma:
        noise = {"methods": skipping, "privacy": {"clip": chosen.clip, "sigma": sigma}}
        plans[f"{skipping} sigma={sigma} clip={chosen.clip}"] = noise
    rows = []
    for label, more in plans.items():
        rows += audit(chosen.data, keys | more, label, chosen.rounds, chosen.period)
        print(f"{label} done", file=sys.stderr, flush=True)
    return pd.DataFrame(rows)
