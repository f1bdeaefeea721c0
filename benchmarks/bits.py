"""Does a changed fedskip give the same numbers, bit for bit? A fixed list of small studies, run through the command line.

    python benchmarks/bits.py record DIR                    # run every study with this code, keep the tables in DIR
    python benchmarks/bits.py compare DIR                   # run them again, compare with DIR
    python benchmarks/bits.py compare DIR --only 'grid*,own-code'
    python benchmarks/bits.py list

The code is the one that `python -m fedskip` finds: set PYTHONPATH to compare two source trees. Tables are equal if
they have the same rows in the same order and every cell is the same text, the column `seconds` aside. Columns that
were renamed on purpose stand in `RENAMED`.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save_file

TABLES = ("history.csv", "summary.csv", "clients.csv")
IGNORED = {"seconds"}
# columns with another name in the new code: recorded name -> new name
RENAMED: dict[str, str] = {"final": "merged"}

METHODS = [
    "fedavg", "feddyn(alpha=0.1)", "fednova", "fedavgm(beta=0.5)", "fedadam", "fedprox(mu=0.1)",
    "moon(mu=2.0)", "trimmedmean(trim=0.3)", "median", "normbounded(factor=0.5)", "scaffold",
    "scaffold(init=random)",
]  # fmt: skip
SKIPPING = [
    (m[:-1] + ", period=2)" if m.endswith(")") else f"{m}(period=2)") for m in METHODS if m != "fedavg"
] + ["fedskip(period=2)"]  # fmt: skip
PAIR = ["fedavg", "fedskip(period=2)"]

# Small data and a linear model, unless a study says otherwise
BASE: dict[str, Any] = {
    "data": "table.npz", "partition": "natural", "model": "linear", "cohort": 3, "rounds": 4, "methods": PAIR,
    "engine": "loop", "device": "cpu", "compile": False, "processes": 1,
    "local": {"lr": 0.1, "batch": 8, "epochs": 1, "small_clients": "short"},
}  # fmt: skip

IMAGES: dict[str, Any] = {"partition": "iid", "clients": 4, "cohort": 2, "rounds": 2}
MODELS = [
    {"name": "linear"},
    {"name": "mlp", "model": {"name": "mlp", "hidden": [6, 5]}},
    {"name": "perceptron", "model": "perceptron"},
    {"name": "cnn", "data": "colour.npz", "model": {"name": "cnn", "side": 16}} | IMAGES,
    {
        "name": "cnn-headless",
        "data": "colour.npz",
        "model": {"name": "cnn", "side": 16, "head": False},
    }
    | IMAGES,
    {"name": "cnn-femnist", "data": "grey.npz", "model": "cnn-femnist"} | IMAGES,
    {
        "name": "resnet50",
        "data": "colour.npz",
        "model": {"name": "resnet50", "width": 4, "blocks": [1, 1]},
    }
    | IMAGES,
    {
        "name": "lstm",
        "data": "text.npz",
        "model": {"name": "lstm", "hidden": 5, "embedding": 3, "layers": 1},
    }
    | IMAGES,
]
OWN_CODE = """
from dataclasses import dataclass

from torch import nn
from fedskip.methods import FedAvg

class Net(nn.Module):
    def __init__(self, inputs: int, classes: int, hidden: int = 7):
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(inputs, hidden), nn.Linear(hidden, classes), nn.Dropout(0.3)

    def features(self, x):
        z = self.drop(self.one(x.flatten(1)).relu())
        return self.two(z), z

    def forward(self, x):
        return self.features(x)[0]

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    title = "Mine"

def focal(output, target):
    chosen = output.log_softmax(1).gather(1, target[:, None])[:, 0]
    return -((1 - chosen.exp()) ** 2) * chosen

def margin(output, target):
    return output.gather(1, target[:, None])[:, 0] - output.mean(1)
"""

Step = Callable[[Path], None]


def cli(*arguments: str) -> Step:
    """A step that runs `fedskip` with these arguments in the study's folder."""

    def step(folder: Path) -> None:
        with (folder / "log.txt").open("a") as log:
            done = subprocess.run(_command(arguments), cwd=folder, stdout=log, stderr=log)
        if done.returncode:
            raise Failed(f"fedskip {' '.join(arguments)} ended with {done.returncode}")

    return step


def killed(*arguments: str, rows: int) -> Step:
    """A step that runs `fedskip` and kills it with SIGKILL once its history has so many rows."""

    def step(folder: Path) -> None:
        with (folder / "log.txt").open("a") as log:
            process = subprocess.Popen(
                _command(arguments), cwd=folder, stdout=log, stderr=log, start_new_session=True
            )
        history = folder / "out" / "history.csv"
        while process.poll() is None and _lines(history) <= rows:
            time.sleep(0.01)
        if process.poll() is not None:
            raise Failed("the study ended before it could be killed")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    return step


def reuse_partition(folder: Path) -> None:
    """Let the study use the partition that was saved by its first run."""
    saved = next((folder / "first").glob("partition-*-0.npz"))
    study = yaml.safe_load((folder / "study.yaml").read_text())
    study["partition"] = {"file": str(saved.relative_to(folder))}
    (folder / "study.yaml").write_text(yaml.safe_dump(study))


RUN = cli("run", "study.yaml", "--out", "out")


@dataclass(frozen=True)
class Case:
    """A study and the commands that it is run with."""

    name: str
    covers: str
    keys: dict[str, Any] = field(default_factory=dict)
    steps: tuple[Step, ...] = (RUN,)


def _settings(**settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a study, by their names."""
    return {
        "settings": [{"name": name.replace("_", "-")} | keys for name, keys in settings.items()]
    }


def _local(**settings: dict[str, Any]) -> dict[str, Any]:
    """Settings that differ in local training."""
    shared = {"lr": 0.1, "batch": 8, "epochs": 2, "small_clients": "short"}
    return _settings(**{name: {"local": shared | settings[name]} for name in settings})


STACKED: dict[str, Any] = {"engine": "stacked", "threads": 1}
LONG: dict[str, Any] = {
    "rounds": 60, "checkpoint_every": 5, "methods": [*PAIR, "scaffold(period=3)", "moon"], "seeds": 2,
    "data": "table.npz", "local": {"lr": 0.1, "batch": 4, "epochs": 6, "small_clients": "short"},
}  # fmt: skip
FILTERS: dict[str, Any] = {"methods": [*PAIR, "scaffold"], "rounds": 3} | _settings(
    private={"privacy": {"clip": 1.0, "sigma": 0.1}},
    flip={"attack": {"clients": 2, "scale": 3}},
    noise={"attack": {"clients": 2, "kind": "noise"}},
    guarded={"guard": "nonfinite", "local": {"lr": 1e12, "batch": 8, "epochs": 3}},
    diverged={"local": {"lr": 1e12, "batch": 8, "epochs": 3}},
)

CASES = [
    Case("methods-loop", "every method, loop engine", {"methods": METHODS}),
    Case("methods-stacked", "every method, stacked engine", STACKED | {"methods": METHODS}),
    Case("skipping-loop", "every method with skipping, loop", {"methods": SKIPPING, "rounds": 5}),
    Case("skipping-stacked", "every method with skipping, stacked", STACKED | {"methods": SKIPPING, "rounds": 5}),
    Case("models-loop", "every bundled model, loop", {"settings": MODELS, "methods": ["fedavg", "moon(period=2)"]}),
    Case("models-stacked", "every bundled model, stacked",
         STACKED | {"settings": MODELS, "methods": ["fedavg", "moon(period=2)"]}),
    Case("quickstart", "the bundled quickstart, SYNTHETIC, engine auto", {},
         (cli("run", "quickstart", "--rounds", "3", "--seeds", "1", "--out", "out"),)),
    Case("compiled", "stacked engine with a compiled step", STACKED | {"compile": True, "rounds": 2}),
    Case("partitions", "every partition, partition_seed", {
        "clients": 6, "rounds": 2, "seeds": 2, "partition": "iid"} | _settings(
            iid={}, dirichlet={"partition": {"kind": "dirichlet", "beta": 0.5, "min_size": 4}},
            dirichlet_plain={"partition": {"kind": "dirichlet_plain", "beta": 1.0, "min_size": 3}},
            shards={"partition": {"kind": "shards", "classes_per_client": 2}},
            quantity={"partition": {"kind": "quantity", "beta": 1.0, "min_size": 4}},
            natural={"partition": "natural"}, pooled={"partition": "pooled", "clients": 1, "cohort": 1},
            pinned={"partition_seed": 7})),
    Case("partition-file", "partition.file, a saved partition; --set, --methods, --seeds", {"rounds": 2},
         (cli("run", "study.yaml", "--out", "first"), reuse_partition,
          cli("run", "study.yaml", "--set", "partition_seed=0", "--seeds", "2", "--methods",
              "fedprox(mu=[0.1,1.0]), fedskip(period=3)", "--out", "out"))),
    Case("cohorts", "cohort policies, period rules and never",
         {"rounds": 7, "methods": ["fedavg", "fedskip(period=[2,3])", "fedskip(period='1x2,3')", "fedavg(period=never)"]}
         | _settings(uniform={}, fixed={"cohort_policy": "fixed"}, cyclic={"cohort_policy": "cyclic"},
                     one={"cohort_policy": "cyclic", "cohort": 1})),
    Case("local", "decay, momentum, clip, batches, max_steps, small clients, eval_every, eval_samples",
         {"rounds": 5, "eval_every": 2, "eval_samples": 20} | _local(
             step={"decay": "step(every=2, factor=0.5)"}, cosine={"decay": "cosine(floor=0.1)"},
             inverse={"decay": "inverse(half=3)"}, clip={"clip": 0.2}, keep={"last_batch": "keep"},
             momentum={"momentum": 0.5, "weight_decay": 0.01}, steps={"max_steps": 3},
             drop={"small_clients": "drop", "batch": 20})),
    Case("local-stacked", "decay, clip, last batches, stacked", STACKED | {"rounds": 4} | _local(
        cosine={"decay": "cosine"}, clip={"clip": 0.2}, keep={"last_batch": "keep"})),
    Case("filters", "privacy, attacks, guard, divergence; loop", FILTERS),
    Case("filters-stacked", "privacy, attacks, guard, divergence; stacked", STACKED | FILTERS),
    Case("scores", "validation, early stop, several metrics, slot_accuracy, client_accuracy, target, reference",
         {"rounds": 12, "seeds": 2, "validation": 0.2, "slot_accuracy": True, "client_accuracy": True, "target": 0.5,
          "metric": ["accuracy", "macro_f1", "auroc", "balanced_accuracy", "perplexity"],
          "methods": [*PAIR, "feddyn(alpha=0.1)"]}
         | _settings(plain={}, patience={"stop": {"patience": 3}}, target={"stop": {"target": 0.6}},
                     pooled={"reference": True, "partition": "pooled", "clients": 1, "cohort": 1, "methods": ["fedavg"]})),
    Case("scores-stacked", "validation, early stop, slots and clients, stacked",
         STACKED | {"rounds": 8, "validation": 0.2, "slot_accuracy": True, "client_accuracy": True,
                    "methods": [*PAIR, "feddyn(alpha=0.1)"]} | _settings(plain={}, patience={"stop": {"patience": 2}})),
    Case("tables", "own tables: text columns, standardised, regression, several labels, a test column",
         {"rounds": 3, "partition": "natural"} | _settings(
             patients={"data": {"name": "people.csv", "label": "ill", "client": "town", "standardize": True,
                                "test_fraction": 0.2, "drop": ["dose", "cough", "fever", "part"]}},
             split={"data": {"name": "people.csv", "label": "ill", "client": "town", "features": ["age", "smoker"],
                             "test": "part"}},
             regression={"data": {"name": "people.csv", "label": "dose", "client": "town", "features": ["age", "smoker"],
                                  "task": "regression", "standardize": True}, "loss": "squared_error",
                         "metric": ["rmse", "mae", "r2", "minus_squared_error"],
                         "local": {"lr": 0.01, "batch": 8, "epochs": 1}},
             labels={"data": {"name": "people.csv", "label": ["cough", "fever"], "client": "town",
                              "features": ["age", "smoker"], "standardize": True}, "loss": "binary_cross_entropy",
                     "metric": ["label_accuracy", "auroc"]},
             images={"data": {"name": "colour.npz", "standardize": True}, "partition": "iid", "clients": 4})),
    Case("own-code", "your own model (dropout), method, loss and metric; init from a file; fp64",
         {"model": "bits_code:Net", "loss": "bits_code:focal", "metric": ["accuracy", "bits_code:margin"],
          "methods": ["fedavg", "moon(period=2)", "bits_code:Mine(period=2)"], "precision": "fp64"}
         | _settings(plain={}, wide={"model": {"name": "bits_code:Net", "hidden": 9}},
                     init={"init": "init.safetensors"})),
    Case("own-code-stacked", "your own model (dropout) and loss, stacked", STACKED
         | {"model": "bits_code:Net", "loss": "bits_code:focal", "methods": ["fedavg", "moon(period=2)"]}),
    Case("grid", "a grid of settings with validation, a grid of a method, --only",
         {"rounds": 3, "validation": 0.2, "methods": ["fedprox(mu=[0.01,0.1])", "fedskip(period=2)"],
          "model": [{"name": "linear"}, {"name": "mlp", "hidden": [4]}],
          "local": {"lr": [0.01, 0.1, 1.0], "batch": 8, "epochs": 1, "small_clients": "short"}},
         (cli("run", "study.yaml", "--only", "*lr=0.*", "--out", "out"),)),
    Case("processes", "two processes, stacked, four methods, two seeds",
         STACKED | {"processes": 2, "seeds": 2, "methods": [*PAIR, "scaffold", "moon(period=2)"]}),
    Case("groups", "runs cut into three groups, at most four rows at a time",
         STACKED | {"groups": 3, "rows": 4, "seeds": 2, "methods": [*PAIR, "scaffold", "moon(period=2)"]}),
    Case("workers", "loop engine with two workers", {"workers": 2, "seeds": 2}),
    Case("extend", "extend by methods and by seeds", {"rounds": 3},
         (RUN, cli("extend", "out", "--methods", "scaffold, moon(mu=5)"), cli("extend", "out", "--seeds", "2"))),
    Case("killed", "SIGKILL and resume, loop", LONG,
         (killed("run", "study.yaml", "--out", "out", rows=60), cli("resume", "out"))),
    Case("killed-stacked", "SIGKILL and resume, stacked, two processes", LONG | STACKED | {"processes": 2},
         (killed("run", "study.yaml", "--out", "out", rows=60), cli("resume", "out"))),
    Case("longer", "resume --rounds", {"rounds": 5, "checkpoint_every": 2, "methods": SKIPPING},
         (RUN, cli("resume", "out", "--rounds", "8"))),
    Case("cluster", "a local Ray cluster, two groups", STACKED | {"seeds": 2, "methods": [*PAIR, "scaffold"]},
         (cli("run", "study.yaml", "--cluster", "local", "--groups", "2", "--out", "out"),)),
    Case("federation", "federation local: a server and three clients over Flower",
         {"rounds": 3, "seeds": [0], "data": "three.npz", "methods": ["scaffold(period=2)"]},
         (cli("federation", "local", "study.yaml", "-n", "3", "--out", "out"),)),
]  # fmt: skip


class Failed(Exception):
    """A command of a study did not do what it should."""


def make_data(folder: Path) -> None:
    """Write the data sets that the studies use."""
    draw = np.random.default_rng(35)
    x: Any

    def classes(x: Any, count: int = 4) -> Any:
        return (x.reshape(len(x), -1) @ draw.normal(size=(x[0].size, count))).argmax(1)

    def sizes(owners: int, least: int = 14) -> np.ndarray:
        return np.repeat(np.arange(owners), [least + 5 * i for i in range(owners)])

    owner = sizes(7)
    x = draw.normal(size=(len(owner), 6)).astype(np.float32)
    np.savez(folder / "table.npz", x=x, y=classes(x), client=owner)
    owner = sizes(3, 30)
    x = draw.normal(size=(len(owner), 6)).astype(np.float32)
    np.savez(folder / "three.npz", x=x, y=classes(x), client=owner)
    x = draw.integers(0, 256, (64, 3, 16, 16), np.uint8)
    np.savez(folder / "colour.npz", x=x, y=classes(x - 128.0))
    x = draw.integers(0, 256, (64, 1, 28, 28), np.uint8)
    np.savez(folder / "grey.npz", x=x, y=classes(x - 128.0))
    x = draw.integers(0, 80, (64, 5))
    np.savez(folder / "text.npz", x=x, y=x[:, 0] % 4)

    n = 160
    age, smoker = draw.integers(20, 90, n), draw.integers(0, 3, n)
    ill = age + 15 * smoker + draw.normal(0, 15, n) > 75
    towns = ["Aue", "Bonn", "Celle", "Daun"]
    rows = [["town", "age", "smoker", "part", "dose", "cough", "fever", "ill"]] + [
        [towns[i % 4], age[i], ("never", "former", "current")[smoker[i]],
         "test" if i % 5 == 0 else "train", round(0.1 * age[i] + smoker[i], 3), int(smoker[i] > 1), int(age[i] % 3 == 0),
         "yes" if ill[i] else "no"]
        for i in range(n)
    ]  # fmt: skip
    with (folder / "people.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)

    shapes = {"one.weight": (7, 6), "one.bias": (7,), "two.weight": (4, 7), "two.bias": (4,)}
    weights = {
        name: draw.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()
    }
    save_file(weights, folder / "init.safetensors")
    (folder / "bits_code.py").write_text(OWN_CODE)


def run_case(case: Case, data: Path, folder: Path) -> float:
    """Run a study in a folder; gives the seconds of processor time."""
    folder.mkdir(parents=True)
    for path in data.iterdir():
        shutil.copy(path, folder)
    (folder / "study.yaml").write_text(yaml.safe_dump({"name": "bits"} | BASE | case.keys))
    before = os.times()
    for step in case.steps:
        step(folder)
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def tables(folder: Path) -> dict[str, Path]:
    """The tables that a study has written, by their names."""
    out = folder / "out"
    out = out if (out / "history.csv").exists() else out / "run"
    return {name: out / name for name in TABLES if (out / name).exists()}


def difference(old: Path, new: Path) -> str:
    """The first difference of two tables in words; nothing if they are equal."""
    (names, rows), (new_names, new_rows) = _read(old), _read(new)
    names = [RENAMED.get(name, name) for name in names]
    if missing := set(names) ^ set(new_names):
        return f"columns differ: {', '.join(sorted(missing))}"
    for number, (row, new_row) in enumerate(zip(rows, new_rows, strict=False), 1):
        cells, new_cells = dict(zip(names, row, strict=True)), dict(zip(new_names, new_row, strict=True))  # fmt: skip
        for name in names:
            if name not in IGNORED and cells[name] != new_cells[name]:
                return f"row {number}, {name}: {cells[name]!r} was, {new_cells[name]!r} is"
    if len(rows) != len(new_rows):
        return f"{len(rows)} rows were, {len(new_rows)} are"
    return ""


def record(cases: Iterable[Case], folder: Path) -> bool:
    """Run studies and keep their tables."""
    ok = True
    with tempfile.TemporaryDirectory(prefix="bits-") as made:
        data = Path(made) / "data"
        data.mkdir()
        make_data(data)
        for case in cases:
            try:
                seconds = run_case(case, data, Path(made) / case.name)
            except Failed as error:
                ok = False
                _tell(case, f"FAILED: {error}", Path(made) / case.name)
                continue
            target = folder / case.name
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            rows = 0
            for name, path in tables(Path(made) / case.name).items():
                shutil.copy(path, target / name)
                rows += len(_read(path)[1])
            _tell(case, f"{rows} rows, {seconds:.0f} s")
    return ok


def compare(cases: Iterable[Case], folder: Path) -> bool:
    """Run studies again and compare their tables with recorded ones."""
    ok = True
    with tempfile.TemporaryDirectory(prefix="bits-") as made:
        data = Path(made) / "data"
        data.mkdir()
        make_data(data)
        for case in cases:
            old = {path.name: path for path in sorted((folder / case.name).glob("*.csv"))}
            try:
                seconds = run_case(case, data, Path(made) / case.name)
            except Failed as error:
                ok = False
                _tell(case, f"FAILED: {error}", Path(made) / case.name)
                continue
            new = tables(Path(made) / case.name)
            found = [
                f"{name}: {text}"
                for name in old
                if (text := difference(old[name], new[name]) if name in new else "is missing")
            ]
            if not old:
                found = ["nothing was recorded"]
            ok = ok and not found
            rows = sum(len(_read(path)[1]) for path in new.values())
            _tell(
                case,
                f"DIFFERS: {'; '.join(found)}" if found else f"equal, {rows} rows, {seconds:.0f} s",
            )
    return ok


def _tell(case: Case, text: str, folder: Path | None = None) -> None:
    print(f"{case.name:17} {case.covers:96} {text}", flush=True)
    if folder and (folder / "log.txt").exists():
        print("    " + "\n    ".join((folder / "log.txt").read_text().splitlines()[-12:]))


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(newline="") as file:
        names, *rows = csv.reader(file)
    return names, rows


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _command(arguments: Iterable[str]) -> list[str]:
    return [sys.executable, "-m", "fedskip", *arguments]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["record", "compare", "list"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", default="*", help="names of studies, with * and ?, and commas")
    chosen = parser.parse_args()
    cases = [
        case for case in CASES if any(fnmatchcase(case.name, n) for n in chosen.only.split(","))
    ]
    if not cases:
        parser.error(f"--only: no study is called {chosen.only!r}")
    if chosen.command == "list":
        for case in cases:
            _tell(case, "")
        return
    if chosen.folder is None:
        parser.error("DIR is missing")
    do = record if chosen.command == "record" else compare
    sys.exit(0 if do(cases, chosen.folder.resolve()) else 1)


if __name__ == "__main__":
    main()
