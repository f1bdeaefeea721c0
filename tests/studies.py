"""A study small enough to run in a second, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedskip import Arrays, Dataset, FedAvg, Study
from fedskip.config import RECORD, StudySpec, Tree, build, dump, load_yaml
from fedskip.engine.local import Local
from fedskip.methods import State, Terms, Visit
from fedskip.methods.grammar import parse_many, text
from fedskip.records.history import HISTORY, SUMMARY
from fedskip.records.table import Row, Table, to_rows
from fedskip.report.results import Metric, Results, SettingInfo

METHODS = "fedavg, fedskip(period=3), scaffold, moon, feddyn, fednova(period=2)"


def toy(clients: int = 8, size: int = 24, seed: int = 0) -> Dataset:
    """Two classes in the plane, clients shifted against each other."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(clients), size)
    x = rng.normal(size=(len(owner), 2)) + rng.normal(size=(clients, 2))[owner]
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(np.int64)
    train = np.arange(len(owner)) % 3 > 0
    samples = Arrays(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    return Dataset(
        "toy", samples, lambda seed: (np.flatnonzero(train), np.flatnonzero(~train)), 2, owner
    )


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 4), nn.Linear(4, 2)

    def features(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.tanh(self.one(x))
        return self.two(z), z

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.features(x)[0]


def study(out: Path, **keys: object) -> Study:
    defaults = {
        "data": toy(), "model": Net, "partition": "natural", "cohort": 4, "local": {"batch": 4, "epochs": 1},
        "methods": METHODS, "rounds": 7, "seeds": 2, "compile": False,
    }  # fmt: skip
    return Study(out, **(defaults | keys))


def numbers(out: Path) -> list[dict[str, object]]:
    """The history without its clock."""
    return [
        {k: v for k, v in row.items() if k != "seconds"} for row in Table.read(out / "history.csv")
    ]


def as_table(frame: pd.DataFrame) -> Table:
    """The rows of a DataFrame of results, with None where a cell is empty."""
    return Table(frame.columns, to_rows(frame))


def weights(out: Path) -> dict[str, bytes]:
    return {
        f"{path.name}:{name}": tensor.numpy().tobytes()
        for path in sorted((out / "models").iterdir())
        for name, tensor in load_file(path).items()
    }


def numbered() -> Dataset:
    """Numbers in the place of classes."""
    full = toy()
    samples = Arrays(full.samples.x, full.samples.x.sum(1))  # type: ignore[attr-defined]
    return Dataset("sums", samples, full.split, owner=full.owner)


@dataclass(frozen=True, kw_only=True)
class Halved(FedAvg):
    """A method with an objective of its own."""

    title: ClassVar[str] = "Halved"

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(objective=lambda module, x, y, loss: loss(module(x), y).mean() / 2)


def written(folder: Path, text: str) -> Tree:
    file = folder / "study.yaml"
    file.write_text(text)
    return load_yaml(file)


def dataset(**defaults: Any) -> Dataset:
    samples = Arrays(torch.zeros(4, 2), torch.zeros(4))
    return Dataset(
        name="tiny",
        samples=samples,
        split=lambda seed: (np.arange(3), np.arange(3, 4)),
        defaults=defaults,
    )


DEFAULTS = {
    "model.name": "cnn",
    "model.head": True,
    "partition.kind": "dirichlet",
    "partition.beta": 0.5,
    "clients": 10,
    "cohort": 5,
    "rounds": 100,
    "local.lr": 0.1,
}


STUDY = """\
name: demo
engine: loop
data: {name: synthetic, train_fraction: 0.6}
partition: {kind: dirichlet, beta: 0.5}
local:
  lr: 1e-2
  batch: 32
methods:
  - fedavg
  - fedprox(mu=[0.001, 0.01])
rounds: 20
seeds: [3, 4]
settings:
  - name: base
  - name: skewed
    partition.beta: 0.1
    local: {epochs: 1}
  - {name: pooled, reference: true, partition.kind: pooled, cohort: 1, methods: "fedavg moon", rounds: 5}
"""


def read_back(spec: StudySpec, folder: Path) -> StudySpec:
    """Through a file of a study that was begun, in which lists of lists are no grid."""
    return build(written(folder, f"{dump(spec)}{RECORD}: {{study: digest}}\n"))


# --- results that can be checked by hand ---------------------------------------------------------------


def run(
    method: str, seed: int, last: float | None, *, setting: str = "a", final: float | None = None,
    diverged: bool = False,
) -> Row:  # fmt: skip
    """A row of the summary."""
    numbers = {
        "last": last,
        "best": last,
        "mean_tail": last,
        "merged": final,
        "bytes_total": 122_000,
    }
    about = {
        "setting": setting,
        "run": f"{setting}.{method}.s{seed}",
        "method": method,
        "seed": seed,
    }
    return about | numbers | {"period": 1, "merges": 5, "rounds": 5, "diverged": diverged}


def curve(method: str, seed: int, scores: Mapping[int, float], *, setting: str = "a") -> list[Row]:
    """Rows of the history: test accuracies by round."""
    about = {
        "setting": setting,
        "run": f"{setting}.{method}.s{seed}",
        "method": method,
        "seed": seed,
    }
    return [
        about
        | {"round": r, "merges": i, "bytes_down": 100 * r, "bytes_up": 10 * r}
        | {
            "test_accuracy": s,
            "val_accuracy": None,
            "train_loss": s,
            "drift_mean": s,
            "seconds": 1.0,
        }
        for i, (r, s) in enumerate(scores.items(), 1)
    ]


def recorded(
    out: Path,
    runs: Sequence[Row],
    settings: Sequence[str] = ("a",),
    rows: Sequence[Row] = (),
    **keys: Any,
) -> Results:
    """The results of a study in which these runs were made; one called centralised is a reference."""
    some = {"data": "synthetic", "methods": "fedavg", "partition": "natural", "model": "perceptron"}
    some |= {"cohort": 1, "rounds": 5} | keys
    made = []
    for name in settings:
        test = 1000 + len(name)
        division = {
            "test": test,
            "evaluated": min(keys.get("eval_samples", test), test),
            "clients": 20,
        }
        about = some | {"name": name, "reference": name == "centralised"}
        noted = {"divisions": dict.fromkeys(range(9), division)}
        made.append(SettingInfo.of(about, out, {name: noted}))
    summary, history = (
        Table(dict.fromkeys([*columns, *(name for row in some for name in row)]), some).frame()
        for columns, some in ((SUMMARY, runs), (HISTORY, rows))
    )
    return Results(out, "demo", made, summary, history)


def by_metric(results: Results, metric: Metric) -> Results:
    """The same numbers, as those of a metric."""
    settings = [replace(one, metrics=[metric], metric=metric) for one in results.settings]
    return replace(results, settings=settings)


def of_cifar10(
    out: Path, methods: str, scores: Mapping[str, Sequence[float]], rounds: int = 200, **keys: Any
) -> Results:
    """The paper's CIFAR-10 with ten clients: the scores of methods by seed, and drifts of 2 and 3."""
    runs: list[Row] = []
    rows: list[Row] = []
    for label, found in scores.items():
        for seed, score in enumerate(found):
            runs.append(run(label, seed, score) | {"rounds": rounds})
            rows += [
                row | {"drift_mean": 2.0 + seed, "drift_broadcast": 3.0 + seed}
                for row in curve(label, seed, {1: 0.1, rounds: score})
            ]
    some = {"data": {"name": "cifar10"}, "model": {"name": "cnn"}, "clients": 10, "cohort": 10}
    some |= {
        "partition": {"kind": "dirichlet", "beta": 0.5},
        "local": vars(Local(small_clients="short")),
    }
    texts = [text(method) for method in parse_many(methods)]
    return recorded(out, runs, rows=rows, rounds=rounds, methods=texts, **(some | keys))
