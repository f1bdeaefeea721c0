"""Which engine trains a module faster, by its layers: the benchmark behind `engine: auto`.

    python benchmarks/engines.py --out benchmarks/results/engines-cpu.csv
    python benchmarks/engines.py --device cuda --jobs 24 --out benchmarks/results/engines-h200.csv
    python benchmarks/engines.py --only mlp-64,linear --rows 10 --out some.csv      # a few of them

Every module is given as one's own. Its line has the client-steps per second of the `loop` engine on
one worker and of the `stacked` one in one process, for one or three runs of FedAvg with a cohort of
10 (10 or 30 rows), and their ratio. On a GPU, convolutions are stacked on four streams, too. Where
fedskip has the same module by name, that one is stacked as well: `own_to_bundled` is the ratio of
both.

Contestants take turns in one process, and each rate is the median of three turns after one that
warms up. Every module has a process of its own; `--jobs` of them compile side by side, and then
measure one after another. `study/choose_engine.py` has the rule that follows.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import speed
from fedskip.data.dataset import Arrays, Dataset
from fedskip.engine import Loop
from fedskip.errors import InputError, unknown
from fedskip.files import write_text
from fedskip.models.forms import parameter_counts
from fedskip.models.zoo import CNN, ResNet
from fedskip.study.machine import prepared_setting
from fedskip.version import device_name, versions
from speed import PflCNN

ROWS = {"cpu": (10, 30), "cuda": (10,)}  # more rows are better for a GPU
SECONDS = {"cpu": 0.5, "cuda": 0.15}  # of each contestant in a turn
CLIENTS, SAMPLES, COHORT, BATCH = 20, 320, 10, 64
STEPS = 5  # of a visit of the loop, whose rate does not depend on it
STREAMS = 4
WHO = ("loop", "stacked", "streams", "bundled")  # client-steps per second
RATIOS = {
    "stacked_to_loop": ("stacked", "loop"),
    "streams_to_loop": ("streams", "loop"),
    "own_to_bundled": ("stacked", "bundled"),
}


Norm = Callable[[int], nn.Module]


# --- the modules ----------------------------------------------------------------------------------


def mlp(inputs: int, *hidden: int, classes: int = 5, norm: Norm | None = None) -> nn.Module:
    """Dense layers with ReLU between them, as one writes them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(inputs, width), *([norm(width)] if norm else ()), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def conv(
    channels: Sequence[int], side: int, norm: Norm | None = None, classes: int = 10
) -> nn.Module:
    """3 × 3 convolutions with padding, ReLU and a pool after each, and a dense layer."""
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [
            nn.Conv2d(before, after, 3, padding=1),
            *([norm(after)] if norm else ()),
            nn.ReLU(),
        ]
        layers += [nn.MaxPool2d(2)]
        side //= 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * side * side, classes))


class Series(nn.Sequential):
    """Convolutions over time."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(3, 16, 5), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 32, 5), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 5),
        )  # fmt: skip


class Bag(nn.Module):
    """The mean of embeddings."""

    def __init__(self, words: int, width: int, classes: int = 5) -> None:
        super().__init__()
        self.words, self.dense = nn.Embedding(words, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.dense(self.words(x).mean(1))
        return found


class Recurrent(nn.Module):
    """The last state of an LSTM."""

    def __init__(self, words: int, width: int, hidden: int, classes: int = 5) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm, self.dense = nn.LSTM(width, hidden, batch_first=True), nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.dense(self.lstm(self.words(x))[0][:, -1])
        return found


class Encoder(nn.Module):
    """A layer or more of a transformer's encoder, and the mean over time."""

    def __init__(self, words: int, width: int, heads: int, layers: int, classes: int = 5) -> None:
        super().__init__()
        self.words, self.dense = nn.Embedding(words, width), nn.Linear(width, classes)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.dense(self.encoder(self.words(x)).mean(1))
        return found


class Sigmoid(nn.Module):
    """`perceptron` as one writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(60, 5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.dense(x).sigmoid()
        return found


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (60,)  # of a sample
    words: int = 0  # samples are ids below it
    steps: int = 20  # of a visit
    bundled: dict[str, Any] = field(default_factory=dict)  # the same module by its name here


VECTOR, GREY, COLOUR, TEXT = (784,), (1, 28, 28), (3, 32, 32), (20,)
group, batch = partial(nn.GroupNorm, 4), nn.BatchNorm2d
CASES = {
    "linear": Case(partial(mlp, 60), bundled={"name": "linear"}),
    "perceptron": Case(Sigmoid, bundled={"name": "perceptron"}),
    "linear-784": Case(partial(mlp, 784, classes=10), VECTOR),
    "linear-10000": Case(partial(mlp, 10_000), (10_000,)),
    "mlp-32": Case(partial(mlp, 60, 32)),
    "mlp-64": Case(partial(mlp, 60, 64), bundled={"name": "mlp"}),
    "mlp-64-64-64-64": Case(partial(mlp, 60, 64, 64, 64, 64)),
    "mlp-256": Case(partial(mlp, 60, 256), bundled={"name": "mlp", "hidden": [256]}),
    "mlp-784-128": Case(partial(mlp, 784, 128, classes=10), VECTOR),
    "mlp-256-256": Case(partial(mlp, 60, 256, 256)),
    "mlp-1024": Case(partial(mlp, 60, 1024)),
    "mlp-4096": Case(partial(mlp, 60, 4096), steps=10),
    "mlp-1024-1024": Case(partial(mlp, 60, 1024, 1024), steps=5),
    "layer-norm-64": Case(partial(mlp, 60, 64, 64, norm=nn.LayerNorm)),
    "batch-norm-64": Case(partial(mlp, 60, 64, 64, norm=nn.BatchNorm1d)),
    "embedding-80": Case(partial(Bag, 80, 8), TEXT, 80),
    "embedding-5000": Case(partial(Bag, 5000, 32), TEXT, 5000),
    "conv-8x8": Case(partial(conv, (1, 4, 8), 8), (1, 8, 8)),
    "conv-28x28": Case(partial(conv, (1, 8, 16), 28), GREY, steps=5),
    "conv-series": Case(Series, (3, 50)),
    "conv-group-norm": Case(partial(conv, (1, 8, 16), 28, norm=group), GREY, steps=5),
    "conv-batch-norm": Case(partial(conv, (1, 8, 16), 28, norm=batch), GREY, steps=5),
    "cnn": Case(CNN, COLOUR, steps=5, bundled={"name": "cnn"}),
    "cnn-pfl": Case(PflCNN, COLOUR, steps=3),
    "resnet-thin": Case(partial(ResNet, 10, False, 8, (1, 1, 1, 1)), COLOUR, steps=3),
    "resnet-18m": Case(partial(ResNet, 10, False, 64, (2, 2, 2, 2)), COLOUR, steps=2),
    "lstm": Case(partial(Recurrent, 80, 8, 32), TEXT, 80, steps=10),
    "encoder-1": Case(partial(Encoder, 80, 32, 4, 1), TEXT, 80, steps=10),
    "encoder-2": Case(partial(Encoder, 80, 64, 4, 2), TEXT, 80, steps=5),
}
GPU_ONLY = {"resnet-18m"}  # a step takes seconds on a core
CPU_ONLY = {  # between those that are larger and smaller
    "linear-784", "linear-10000", "mlp-32", "mlp-64-64-64-64", "mlp-784-128", "mlp-256-256",
}  # fmt: skip
LEFT_OUT = {"cpu": GPU_ONLY, "cuda": CPU_ONLY}


def data(case: Case) -> Dataset:
    """Random samples: speed does not depend on what is in them."""
    rng, samples = np.random.default_rng(0), CLIENTS * SAMPLES + BATCH
    drawn: Any
    if case.words:
        drawn = rng.integers(0, case.words, (samples, *case.shape))
    else:
        drawn = rng.standard_normal((samples, *case.shape), dtype=np.float32)
    arrays = Arrays(torch.from_numpy(drawn), torch.from_numpy(rng.integers(0, 5, samples)))
    train, test = np.split(np.arange(samples), [-BATCH])
    return Dataset("noise", arrays, lambda seed: (train, test), classes=5)


# --- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A module on a device, with each of some numbers of rows."""

    name: str
    rows: tuple[int, ...]
    device: str
    seconds: float

    def study(self, rows: int, **more: Any) -> dict[str, Any]:
        case = CASES[self.name]
        return {
            "data": data(case), "partition": "iid", "clients": CLIENTS, "cohort": COHORT,
            "model": case.make, "methods": "fedavg", "rounds": 1_000_000, "seeds": rows // COHORT,
            "local": {
                "epochs": -(-case.steps * BATCH // SAMPLES),
                "max_steps": case.steps, "batch": BATCH,
            },
            "device": self.device, "processes": 1, "engine": "stacked", **more,
        }  # fmt: skip

    def contestants(self) -> Iterator[tuple[str, speed.Play]]:
        """Those that can train the module, each made ready by two rounds."""
        case = CASES[self.name]
        local = {"max_steps": min(case.steps, STEPS), "batch": BATCH}
        prepared, _ = prepared_setting(self.study(COHORT, engine="loop", local=local))
        once = {"loop": lambda: speed.once(Loop(prepared.task), [next(prepared.runs())])}
        for rows in self.rows:
            once[f"stacked {rows}"] = partial(self.stacked, rows, streams=0)
            if self.device != "cpu" and parameter_counts(prepared.task.module)["convolution"]:
                once[f"streams {rows}"] = partial(self.stacked, rows, streams=STREAMS)
            if case.bundled:
                once[f"bundled {rows}"] = partial(self.stacked, rows, streams=0, model=case.bundled)
        for who, make in once.items():
            try:
                play = make()
                play()
            except (
                InputError,
                RuntimeError,
            ) as error:  # of the stacked engine, which cannot train some
                print(f"{self.name}: {who} cannot: {str(error).splitlines()[0]}", flush=True)
            else:
                yield who, speed.contestant(play)

    def stacked(self, rows: int, **more: Any) -> speed.Once:
        return speed.stacked(*prepared_setting(self.study(rows, **more)), 2)

    def measured(self, contestants: dict[str, speed.Play]) -> list[dict[str, Any]]:
        """A line for each number of rows."""
        rate = speed.take_turns(contestants, self.seconds)
        size = sum(parameter_counts(CASES[self.name].make()).values())
        lines = []
        for rows in self.rows:
            names = {"loop": "loop"} | {who: f"{who} {rows}" for who in WHO[1:]}
            here = {who: rate[name] for who, name in names.items() if name in rate}
            line: dict[str, Any] = {"module": self.name, "numbers": size, "rows": rows}
            line |= {who: f"{here[who]:.4g}" if who in here else "" for who in WHO}
            for name, (a, b) in RATIOS.items():
                line[name] = f"{here[a] / here[b]:.2f}" if a in here and b in here else ""
            lines.append(line)
        return lines


def serve(point: Point, pipe: Connection) -> None:
    """In a process of its own: makes ready, waits for its turn, and measures."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(1)
    started = time.perf_counter()
    contestants = dict(point.contestants())
    pipe.send(f"ready after {time.perf_counter() - started:.0f} s")
    pipe.recv()
    pipe.send(point.measured(contestants))


def measure(points: Sequence[Point], jobs: int) -> Iterator[list[dict[str, Any]]]:
    """The lines of each point, `jobs` of them made ready side by side."""
    context = get_context("spawn")
    for first in range(0, len(points), jobs):
        served = []
        for point in points[first : first + jobs]:
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(point, there))
            process.start()
            there.close()
            served.append((point, process, here))
        ready = [
            (point, pipe, _heard(pipe)) for point, _, pipe in served
        ]  # all of them, before one measures
        for point, pipe, words in ready:
            print(f"{point.name}: {words or 'failed'}", flush=True)
            if words:
                pipe.send("go")
                yield _heard(pipe) or []
        for _, process, _ in served:
            process.join()


def _heard(pipe: Connection) -> Any:
    """What a process says, or None if it has ended."""
    try:
        return pipe.recv()
    except EOFError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Which engine is faster, by what a module is made of."
    )
    parser.add_argument("--device", choices=tuple(ROWS), default="cpu")
    parser.add_argument("--out", type=Path, required=True, help="a CSV file")
    parser.add_argument("--only", help="some of the modules, with commas")
    parser.add_argument("--rows", type=int, nargs="+", help="multiples of 10")
    parser.add_argument("--seconds", type=float, help="of each contestant in a turn")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile side by side")
    given = parser.parse_args()
    here = [name for name in CASES if name not in LEFT_OUT[given.device]]
    names = given.only.split(",") if given.only else here
    for name in names:
        if name not in CASES:
            sys.exit(f"error: {unknown('--only', name, CASES)}")
    seconds = given.seconds or SECONDS[given.device]
    rows = tuple(given.rows or ROWS[given.device])
    points = [Point(name, rows, given.device, seconds) for name in names]
    used = versions()
    about = f"# {device_name(given.device)}, torch {used['torch']}, fedskip {used['fedskip']}\n"
    started, lines = time.perf_counter(), []
    for found in measure(points, given.jobs):
        lines += found
        if not lines:
            continue  # the first ones could not be measured
        table = io.StringIO()
        writer = csv.DictWriter(table, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        write_text(given.out, about + table.getvalue())
    print(f"\n{given.out}, after {time.perf_counter() - started:.0f} s:\n{given.out.read_text()}")


if __name__ == "__main__":
    main()
