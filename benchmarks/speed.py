"""Client-steps per second of the engines, and their ratio to FedAvg written by hand.

    python benchmarks/speed.py synthetic --rows 100
    python benchmarks/speed.py cnn --rows 100 --device cuda --precision bf16

N rows are N/10 seeds of FedAvg with a cohort of 10 (N/50 and 50 for pfl-cifar10). All rates count
client-steps that were asked for; rows computed only because a stack has fixed sizes do not count.
Machines are noisy, so the contestants take turns, and each rate is the median over the turns. On a
GPU it also says which share of the card that uses. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedskip.data import Dataset
from fedskip.data.synthetic import random_images, random_text
from fedskip.engine import Engine, Loop, Stacked, Task
from fedskip.engine.arithmetic import Arithmetic, torch_threads
from fedskip.errors import InputError
from fedskip.federation import Run, train
from fedskip.models import build
from fedskip.models.forms import functional
from fedskip.study.machine import Machine, prepared_setting, resolve_device
from fedskip.study.prepare import Prepared
from fedskip.study.processes import Process, answers
from fedskip.study.setting_plan import make_engine
from fedskip.version import versions
from plain import fedavg_round

TURNS = 3
SECONDS = {"cpu": 4.0, "cuda": 1.0}  # of each contestant in a turn; GPUs are less noisy

# plays for at least some seconds, gives steps and seconds
Play = Callable[[float], tuple[int, float]]
# plays some rounds, gives steps and how often a step was traced
Once = Callable[[], tuple[int, int]]

# --- cases ----------------------------------------------------------------------------------------


class PflCNN(nn.Sequential):
    """The network of pfl-research's CIFAR-10 benchmark; 1,626,442 parameters."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Dropout(0.25), nn.Flatten(),
            nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
        )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What is measured: a study's keys, and those that the stacked engine has on a GPU.

    There its visits are as long as in a study. Those of `plain` and `loop`, which take a hundred
    times as long, stay short: their rates hardly depend on it.
    """

    keys: dict[str, Any]
    data: Callable[[], Dataset] | None = None
    on_gpu: dict[str, Any] = field(default_factory=dict)
    cohort: int = 10
    rounds: int = 2  # that the stacked engine plays at a time

    def study(self, rows: int, **more: Any) -> dict[str, Any]:
        """The keys of a study with `rows` rows: a cohort for each seed."""
        keys = self.keys if self.data is None else self.keys | {"data": self.data()}
        keys = keys | {"methods": "fedavg", "rounds": 1_000_000, "seeds": rows // self.cohort}
        return keys | {"cohort": self.cohort, "engine": "stacked", **more}


def visits(steps: int) -> dict[str, Any]:
    """Visits of `steps` steps to clients of 1000 samples."""
    return {"local": {"epochs": -(-steps // 15), "max_steps": steps}}


IID = {"partition": "iid", "clients": 50}
CASES = {
    # 50 rounds lie between two checkpoints of the paper's 1000
    "synthetic": Case({"data": "synthetic", "model": "perceptron"}, rounds=50),
    "cnn": Case(IID | {"model": "cnn"} | visits(15), random_images, on_gpu=visits(150)),
    "cnn-femnist": Case(
        IID | {"model": "cnn-femnist"} | visits(15),
        partial(random_images, classes=62, shape=(1, 28, 28)),
        on_gpu=visits(150),
    ),
    "lstm": Case(IID | {"model": "lstm"} | visits(5), random_text, on_gpu=visits(60)),
    "resnet50": Case(
        IID | {"model": "resnet50"} | visits(5),
        partial(random_images, classes=100),
        on_gpu=visits(15),
    ),
    # 1000 clients of 50 images, a cohort of 50, one epoch in batches of 10
    "pfl-cifar10": Case(
        {
            "partition": "iid", "clients": 1000, "model": PflCNN,
            "local": {"epochs": 1, "batch": 10, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0},
        },
        partial(random_images, clients=1000, size=50),
        cohort=50,
    ),
}  # fmt: skip


# --- contestants ----------------------------------------------------------------------------------


def once(engine: Engine, runs: list[Run], rounds: int = 1) -> Once:
    """Plays the next rounds of all runs."""

    def done() -> tuple[int, int]:
        stacks = engine.stacks.values() if isinstance(engine, Stacked) else ()
        return sum(run.steps for run in runs), sum(len(stack.stepper.code) for stack in stacks)

    def play() -> tuple[int, int]:
        steps, traced = done()
        for _ in train(engine, runs, runs[0].round + rounds):
            pass  # what comes of it is evaluated by nobody
        synchronize(runs[0].server.x.device)
        return done()[0] - steps, done()[1] - traced

    return play


def stacked(prepared: Prepared, machine: Machine, rounds: int) -> Once:
    """All runs of the setting, spread over the machine's processes."""
    runs = list(prepared.runs())
    shares = [runs[i :: machine.processes] for i in range(machine.processes)]
    plays = [once(make_engine(prepared, machine, share), share, rounds) for share in shares]
    return apart(plays) if len(plays) > 1 else plays[0]


def apart(plays: list[Once]) -> Once:
    """Each in a process of its own, which is asked for a play by its number."""
    processes = [Process(lambda tell: lambda number: plays[number]()) for _ in plays]

    def play() -> tuple[int, int]:
        for number, process in enumerate(processes):
            process.ask(number)
        steps, traced = zip(*(answer for _, _, answer in answers(processes)), strict=True)
        return sum(steps), sum(traced)

    return play


def contestant(once: Once) -> Play:
    """Plays again and again. What was spent on tracing or compiling is left out."""

    def play(least: float) -> tuple[int, float]:
        steps, seconds = 0, 0.0
        while seconds < least:
            started = time.perf_counter()
            done, traced = once()
            if not traced:
                steps, seconds = steps + done, seconds + time.perf_counter() - started
        return steps, seconds

    return play


def plain_contestant(prepared: Prepared) -> Play:
    """Rounds of the hand-written FedAvg on the same clients."""
    task, local = prepared.task, prepared.setting.local
    model = as_written(prepared).to(prepared.device)
    clients = prepared.division(0).clients
    names = ("lr", "momentum", "weight_decay", "batch", "epochs", "max_steps")
    arguments = {name: getattr(local, name) for name in names}
    rng = np.random.default_rng(0)
    precision = task.arithmetic.precision
    kernels = Arithmetic(precision, deterministic=False)  # as written by hand
    autocast = torch.autocast(prepared.device.type, torch.bfloat16, enabled=precision == "bf16")

    def play(least: float) -> tuple[int, float]:
        steps, seconds = 0, 0.0
        while seconds < least:
            cohort = rng.choice(len(clients), prepared.setting.cohort, replace=False)
            data = [
                task.samples.take(torch.from_numpy(clients[c]).to(prepared.device)) for c in cohort
            ]
            started = time.perf_counter()
            with torch_threads(1), kernels.kernels(), autocast:
                steps += fedavg_round(model, data, **arguments)
            synchronize(prepared.device)
            seconds += time.perf_counter() - started
        return steps, seconds

    return play


def as_written(prepared: Prepared) -> nn.Module:
    """The model without our changes: torch's own dropout costs less than a keyed one."""
    model = prepared.setting.model
    if isinstance(model, Mapping):
        return build(**{"classes": prepared.dataset.classes, **model})
    assert not isinstance(model, nn.Module)
    written: nn.Module = model()
    return written


def take_turns(contestants: Mapping[str, Play], least: float) -> dict[str, float]:
    """Client-steps per second of each contestant: the median over turns of `least` seconds."""
    rates: dict[str, list[float]] = {who: [] for who in contestants}
    for turn in range(TURNS + 1):
        for who, play in contestants.items():
            steps, seconds = play(least)
            if turn:  # the first turn warms caches
                rates[who].append(steps / seconds)
        if turn:
            print("  ".join(f"{who} {rates[who][-1]:,.0f}/s" for who in contestants), flush=True)
    return {who: statistics.median(each) for who, each in rates.items()}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# --- the measurement ------------------------------------------------------------------------------


def measure(name: str, rows: int = 100, device: str = "cpu", **how: Any) -> None:
    """Run one case, `how` being keys of a study; the last line printed is a JSON object."""
    case = CASES[name]
    if rows < case.cohort or rows % case.cohort:
        raise InputError(
            "rows", f"must be a multiple of {case.cohort}, one cohort for each seed", rows
        )
    device = resolve_device(device)
    keys = case.study(rows, device=device, **how)
    one_by_one, alone = prepared_setting(keys | {"engine": "loop", "streams": None})
    prepared, machine = prepared_setting(keys if device == "cpu" else keys | case.on_gpu)
    least = SECONDS[torch.device(device).type]
    print(f"{name}: {rows} rows on {machine.device_name}, {TURNS} turns of {least:g} s each")
    plays = {
        "loop": once(Loop(one_by_one.task), [next(one_by_one.runs())]),
        "stacked": stacked(prepared, machine, case.rounds),
    }
    if alone.workers > 1:
        spread = Loop(one_by_one.task, alone.workers)
        plays[f"loop_{alone.workers}_workers"] = once(spread, [next(one_by_one.runs())])
    contestants = {who: contestant(play) for who, play in plays.items()}
    rate = take_turns({"plain": plain_contestant(one_by_one), **contestants}, least)
    facts = machine.facts() | {"device": machine.device_name}
    shown = ("compile", "device", "precision", "deterministic", "streams", "processes")
    loops = [who for who in rate if who.startswith("loop")]
    result = {
        "case": name, "rows": rows, **{key: facts[key] for key in shown},
        **{f"{who}_steps_per_s": round(per_second, 1) for who, per_second in rate.items()},
        "speedup": round(rate["stacked"] / rate["plain"], 2),
        **{f"{who}_speedup": round(rate[who] / rate["plain"], 2) for who in loops},
        "torch": versions()["torch"],
    }  # fmt: skip
    if device != "cpu":
        result |= utilisation(prepared, rate["stacked"])
    print(json.dumps(result))


def utilisation(prepared: Prepared, rate: float) -> dict[str, float]:
    """FLOP/s and bytes/s of the steps themselves, beside what the card reaches on a large product
    and copy.

    Bytes are the fewest that a step must move: its weights and momentum read and written, its batch
    read.
    """
    task, dtype = prepared.task, prepared.task.arithmetic.dtype
    flop, batch_bytes = cost_of(task)
    moved = 4 * dtype.itemsize * task.layout.size + batch_bytes
    half = task.arithmetic.precision == "bf16"
    a = torch.randn(8192, 8192, device=prepared.device, dtype=torch.bfloat16 if half else dtype)
    b = torch.empty(2**28, device=prepared.device)
    kernels = Arithmetic(task.arithmetic.precision, deterministic=False).kernels()
    with kernels, torch.cuda.device(prepared.device):
        product, copied = _seconds(lambda: a @ a), _seconds(lambda: b.clone())
    return {
        "flop_per_step": flop, "tflops": flop * rate / 1e12,
        "tflops_ceiling": 2 * 8192**3 / product / 1e12,
        "gb_per_s": moved * rate / 1e9, "gb_per_s_ceiling": 2 * b.numel() * 4 / copied / 1e9,
    }  # fmt: skip


def cost_of(task: Task) -> tuple[int, int]:
    """The floating-point operations of a step, and the bytes of its batch."""
    x, y = task.samples.take(torch.arange(task.local.batch, device=task.device))
    module = functional(task.module).train()  # of a fused LSTM torch counts nothing
    with FlopCounterMode(display=False) as counter:
        task.loss(module(x), y).mean().backward()
    return counter.get_total_flops(), x.nbytes


def _seconds(work: Callable[[], Any], times: int = 20) -> float:
    work()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / times


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    onoff = argparse.BooleanOptionalAction
    parser.add_argument("name", choices=CASES)
    parser.add_argument("--rows", type=int, default=100, help="models that train at the same time")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--compile", action=onoff, default=True)
    parser.add_argument("--deterministic", action=onoff, default=True)
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16", "fp64"))
    parser.add_argument("--streams", type=int, help="CUDA streams; 0: all models together")
    parser.add_argument("--processes", type=int, help="processes of the stacked engine")
    try:
        measure(**vars(parser.parse_args()))
    except InputError as error:
        sys.exit(f"error: {error}")
