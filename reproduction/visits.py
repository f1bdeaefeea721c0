"""What happens in visits: how large gradients get, and how much a model tells samples apart.

    python -m reproduction visits table3/cifar10-p50 --methods "fedavg, fedskip(period=3)" --seed 1 --rounds 12
    python -m reproduction visits fig5/p100-beta0.5 --methods "fedskip(period=15)" --seed 0 1 --out v.csv

Plays one of the paper's settings by the loop, in float32 on a CPU, and writes a row for each visit:

- gradient, largest: the median and the largest norm of the gradients of its steps, with the method's terms;
  above_10: how many are larger than 10
- loss: mean over the steps; before, after: the norm of the model as it was received, and as it was trained
- told_before, told_after: how far its outputs differ between test samples, as the standard deviation of an
  output over samples, mean over outputs: near 0, a model gives the same answer to everything
- active_before, active_after: the share of units behind a ReLU that are not 0, in the layer with the fewest
- accuracy_before: of the model as it was received, on the same test samples

With --instead 11:12 client 11 has the samples of client 12, and all else is the same; --cohort says how many
slots there are; --clip cuts gradients to this norm, before they are noted.
"""

from __future__ import annotations

import argparse
import copy
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedskip.engine import Job, Loop
from fedskip.engine.loop import Trainer
from fedskip.engine.task import Task
from fedskip.federation import train
from fedskip.study.machine import Machine, prepared_setting
from fedskip.study.prepare import Prepared
from reproduction.columns import columns

LOOKED_AT = 500  # test samples
LARGE = 10.0  # what the studies called `clip` cut gradients to
COLUMNS = (
    "setting", "method", "seed", "round", "slot", "client", "samples", "steps", "loss", "gradient", "largest",
    "above_10", "before", "after", "told_before", "told_after", "active_before", "active_after",
    "accuracy_before",
)  # fmt: skip


class Noting(Trainer):
    """Trains a visit, and notes how large the gradient is in each step."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.norms = list[float]()

    def _step(self, eta: float, momenta: list[Tensor | None]) -> None:
        gradients = [p.grad.norm() for p in self.parameters.values() if p.grad is not None]
        self.norms.append(float(torch.stack(gradients).norm()))
        super()._step(eta, momenta)


class Watched(Loop):
    """Trains visits one by one, with a row for each."""

    def __init__(self, prepared: Prepared, machine: Machine, name: str) -> None:
        super().__init__(prepared.task, machine.workers)
        self.prepared, self.name, self.rows = prepared, name, list[dict[str, Any]]()

    def visit(self, job: Job, k: int) -> tuple[Tensor, Tensor]:
        trainer = Noting(self.task)
        y, loss = trainer.visit(job.x[k], job.terms.row(k), job.routes[k])
        norms, server, orders = torch.tensor(trainer.norms), job.run.server, job.orders
        client = int(orders.clients[k])
        before, after = (self.look(model, server.seed) for model in (job.x[k], y))
        self.rows.append({
            "setting": self.name, "method": server.method.label, "seed": server.seed,
            "round": orders.round + 1, "slot": int(orders.slots[k]), "client": client,
            "samples": int(job.run.clients.sizes[client]), "steps": len(norms),
            "loss": _short(float(loss) / len(norms)), "gradient": _short(float(norms.median())),
            "largest": _short(float(norms.max())), "above_10": int((norms > LARGE).sum()),
            "before": _short(float(job.x[k].norm())), "after": _short(float(y.norm())),
            "told_before": before[0], "told_after": after[0],
            "active_before": before[1], "active_after": after[1], "accuracy_before": before[2],
        })  # fmt: skip
        return y, loss

    @torch.no_grad()
    def look(self, model: Tensor, seed: int) -> tuple[float, float, float]:
        """What a model (P,) makes of test samples: how far it tells them apart, active units, accuracy."""
        task, shares = self.task, list[float]()
        module = copy.deepcopy(task.module).eval()
        task.layout.load(module, model)
        for part in module.modules():
            if isinstance(part, nn.ReLU):
                part.register_forward_hook(
                    lambda _, __, out: shares.append(float((out > 0).float().mean()))
                )
        x, y = task.samples.take(torch.as_tensor(self.prepared.division(seed).test[:LOOKED_AT]))
        output = module(x if task.test_transform is None else task.test_transform(x))
        right = float((output.argmax(1) == y).float().mean())
        return _short(float(output.std(0).mean())), _short(min(shares, default=1.0)), _short(right)


def _short(number: float) -> float:
    """To five digits: what is enough to look at."""
    return float(f"{number:.5g}")


def swapped(prepared: Prepared, instead: str) -> Prepared:
    """With A:B, client A has the samples of client B."""
    one, other = map(int, instead.split(":"))
    divisions = {}
    for seed, division in prepared.divisions.items():
        clients = np.arange(len(division.clients))
        clients[one] = other
        divisions[seed] = replace(division, clients=division.clients.select(clients))
    return replace(prepared, divisions=divisions)


def watched(
    name: str, methods: str, seed: int, rounds: int,
    instead: str | None = None, cohort: int | None = None, clip: float | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The visits of all methods at a seed, in the order of rounds and slots."""
    keys: dict[str, Any] = dict(columns()[name].keys)
    del keys["name"]
    keys |= {
        "methods": methods,
        "seeds": [seed],
        "rounds": rounds,
        "engine": "loop",
        "device": "cpu",
    }
    if cohort is not None:
        keys["cohort"] = cohort
    if clip is not None:
        keys["local"] = keys["local"] | {"clip": clip}
    prepared, machine = prepared_setting(keys)
    prepared = swapped(prepared, instead) if instead else prepared
    engine, runs = Watched(prepared, machine, name), list(prepared.runs())
    for run, _ in train(engine, runs, rounds):
        print(
            f"{run.server.method.label}: round {run.round} of {rounds}", file=sys.stderr, flush=True
        )
    order = [run.server.method.label for run in runs]
    return sorted(
        engine.rows, key=lambda row: (order.index(row["method"]), row["round"], row["slot"])
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("setting", choices=list(columns()), metavar="STUDY/SETTING")
    parser.add_argument("--methods", default="fedavg, fedskip(period=5)")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--instead", metavar="A:B")
    parser.add_argument("--cohort", type=int)
    parser.add_argument("--clip", type=float)


def main(chosen: argparse.Namespace) -> pd.DataFrame:
    rows = []
    for seed in chosen.seed:
        rows += watched(
            chosen.setting, chosen.methods, seed, chosen.rounds, chosen.instead, chosen.cohort, chosen.clip
        )  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)
