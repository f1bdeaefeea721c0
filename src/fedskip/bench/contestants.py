"""What is compared: the engines, and FedAvg as one writes it by hand (`benchmarks/plain.py`)."""

import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from fedskip import config
from fedskip.data.catalogue import LoadedDatasets
from fedskip.engine import Engine, Stacked
from fedskip.engine.arithmetic import Arithmetic, torch_threads
from fedskip.errors import InputError
from fedskip.federation import Run, train
from fedskip.models import build
from fedskip.study.machine import Machine, arithmetic_of, resolve_device
from fedskip.study.prepare import Prepared, prepare
from fedskip.study.processes import Process, answers
from fedskip.study.setting_plan import make_engine

TURNS = 3

Play = Callable[
    [float], tuple[int, float]
]  # plays for at least some seconds, gives steps and seconds
Once = Callable[
    [], tuple[int, int]
]  # plays some rounds, gives steps and how often a step was traced


def setting_of(keys: dict[str, Any]) -> tuple[Prepared, Machine]:
    """The only setting of a study, and the machine as it uses it, with no more processes than seeds."""
    study = config.build(config.Tree(keys))
    device = torch.device(resolve_device(study.device))
    prepared = prepare(study.settings[0], LoadedDatasets(), device, arithmetic_of(study))
    machine = Machine.of(study, prepared)
    return prepared, replace(machine, processes=min(machine.processes, len(prepared.setting.seeds)))


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
    plain = _plain()
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
                steps += plain.fedavg_round(model, data, **arguments)
            synchronize(prepared.device)
            seconds += time.perf_counter() - started
        return steps, seconds

    return play


def as_written(prepared: Prepared) -> nn.Module:
    """The model without what this project changes in it: torch's own dropout costs less than a keyed one."""
    model = prepared.setting.model
    if isinstance(model, Mapping):
        return build(**{"classes": prepared.dataset.classes, **model})
    assert not isinstance(model, nn.Module)
    written: nn.Module = model()
    return written


def take_turns(contestants: Mapping[str, Play], least: float) -> dict[str, float]:
    """Client-steps per second of each contestant: the median over turns of at least `least` seconds."""
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


def _plain() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "plain.py"
    spec = importlib.util.spec_from_file_location("plain", path) if path.exists() else None
    if spec is None or spec.loader is None:
        fix = "run it in a checkout of fedskip"
        raise InputError("bench", "needs benchmarks/plain.py beside the package", ..., fix)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
