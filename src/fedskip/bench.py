"""How fast the engines are, as a ratio to `benchmarks/plain.py` in the same process.

N rows are N/10 seeds of FedAvg with a cohort of 10 (N/50 and 50 for pfl-cifar10). All rates count
client-steps that were asked for; rows computed only because a table has fixed sizes do not count. Machines
are noisy, so the contestants take turns and each rate is the median over the turns.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedskip import config
from fedskip.cases import CASES
from fedskip.engine import Engine, Loop, make_engine
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.base import Task, current, torch_threads
from fedskip.engine.stacked import Stacked
from fedskip.engine.step import functional
from fedskip.errors import InputError, unknown
from fedskip.federation import Rounds, Run
from fedskip.machine import Machine, arithmetic_of, resolve_device, versions
from fedskip.models import build
from fedskip.prepare import Prepared, prepare
from fedskip.processes import Forked, Tell, answers

TURNS = 3
SECONDS = {"cpu": 4.0, "cuda": 1.0}  # of each contestant in a turn; GPUs are less noisy


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


Play = Callable[[float], tuple[int, float]]  # plays for so long, gives steps and seconds
Once = Callable[[], tuple[int, int]]  # plays some rounds, gives steps and how often a step was traced


def once(engine: Engine, runs: list[Run], rounds: int = 1) -> Once:
    work = Rounds(runs)

    def play() -> tuple[int, int]:
        before, traced, work.until = work.steps, _traced(engine), work.until + rounds
        engine.run(work)
        synchronize(runs[0].server.x.device)
        return work.steps - before, _traced(engine) - traced

    return play


def apart(plays: list[Once]) -> Once:
    """Each in a process of its own."""
    forked = [Forked(partial(_answering, play)) for play in plays]

    def play() -> tuple[int, int]:
        for each in forked:
            each.ask(None)
        steps, traced = zip(*(found for _, found in answers(forked)), strict=True)
        return sum(steps), sum(traced)

    return play


def _answering(play: Once, tell: Tell) -> Callable[[None], tuple[int, int]]:
    return lambda _: play()


def contestant(once: Once) -> Play:
    """Plays again and again. What was spent on tracing or compiling is left out."""

    def play(least: float) -> tuple[int, float]:
        steps, seconds = 0, 0.0
        while seconds < least:
            started = time.perf_counter()
            found, traced = once()
            if not traced:
                steps, seconds = steps + found, seconds + time.perf_counter() - started
        return steps, seconds

    return play


def _traced(engine: Engine) -> int:
    if not isinstance(engine, Stacked):
        return 0
    return sum(len(table.step.traced) for table in engine.tables)


def setting_of(keys: dict[str, Any]) -> Prepared:
    """The only setting of a study."""
    spec = config.build(config.Tree(keys))
    return prepare(spec.settings[0], torch.device(resolve_device(spec.device)), arithmetic_of(spec))


def with_keys(prepared: Prepared, keys: dict[str, Any]) -> Prepared:
    """The same data for a study with other visits."""
    setting = config.build(config.Tree(keys)).settings[0].filled(prepared.dataset.defaults)
    return replace(prepared, setting=setting, task=replace(prepared.task, local=setting.local))


def machine_of(keys: dict[str, Any], prepared: Prepared) -> Machine:
    """The machine as a study uses it, with no more processes than seeds."""
    machine = Machine.of(config.build(config.Tree(keys)), prepared)
    return replace(machine, processes=min(machine.processes, len(prepared.setting.seeds)))


def runs_of(prepared: Prepared) -> list[Run]:
    setting = prepared.setting
    return [prepared.run(method, seed) for method in setting.methods for seed in setting.seeds]


def stacked(prepared: Prepared, machine: Machine, rounds: int) -> Once:
    """All runs of the setting, spread over the machine's processes."""
    runs = runs_of(prepared)
    shares = [runs[i :: machine.processes] for i in range(machine.processes)]
    plays = [once(make_engine(prepared, machine, share), share, rounds) for share in shares]
    return apart(plays) if len(plays) > 1 else plays[0]


def take_turns(contestants: Mapping[str, Play], least: float) -> dict[str, float]:
    """Client-steps per second of each contestant: the median over turns of at least so many seconds."""
    rates: dict[str, list[float]] = {who: [] for who in contestants}
    for turn in range(TURNS + 1):
        for who, play in contestants.items():
            steps, seconds = play(least)
            if turn:  # the first turn warms caches
                rates[who].append(steps / seconds)
        if turn:
            print("  ".join(f"{who} {rates[who][-1]:,.0f}/s" for who in contestants), flush=True)
    return {who: statistics.median(found) for who, found in rates.items()}


def as_written(prepared: Prepared) -> nn.Module:
    """The model without what this project changes in it: torch's own dropout costs less than a keyed one."""
    model = prepared.setting.model
    if isinstance(model, Mapping):
        return build(**{"classes": prepared.dataset.classes, **model})
    assert not isinstance(model, nn.Module)
    written: nn.Module = model()
    return written


def plain_contestant(prepared: Prepared) -> Play:
    """Rounds of the hand-written FedAvg on the same clients."""
    plain = _plain()
    task, local = prepared.task, prepared.setting.local
    model = as_written(prepared).to(prepared.device)
    clients = prepared.division(0).clients
    arguments = {
        k: getattr(local, k) for k in ("lr", "momentum", "weight_decay", "batch", "epochs", "max_steps")
    }
    rng = np.random.default_rng(0)
    precision = task.arithmetic.precision
    kernels = Arithmetic(precision, deterministic=False)  # as written by hand
    autocast = torch.autocast(prepared.device.type, torch.bfloat16, enabled=precision == "bf16")

    def play(least: float) -> tuple[int, float]:
        steps, seconds = 0, 0.0
        while seconds < least:
            cohort = rng.choice(len(clients), prepared.setting.cohort, replace=False)
            data = [task.samples.take(torch.from_numpy(clients[c]).to(prepared.device)) for c in cohort]
            started = time.perf_counter()
            with torch_threads(1), kernels.kernels(), autocast:
                steps += plain.fedavg_round(model, data, **arguments)
            synchronize(prepared.device)
            seconds += time.perf_counter() - started
        return steps, seconds

    return play


def main(
    name: str,
    *,
    rows: int = 100,
    compile: bool = True,
    device: str = "cpu",
    precision: str | None = None,
    deterministic: bool = True,
    streams: int | None = None,
    processes: int | None = None,
) -> None:
    """Run one case; the last line printed is a JSON object."""
    if name not in CASES:
        raise unknown("bench", name, CASES)
    case = CASES[name]
    if rows < case.cohort or rows % case.cohort:
        raise InputError("--rows", f"must be a multiple of {case.cohort}, one cohort for each seed", rows)
    device = resolve_device(device)
    keys = case.study(
        rows, device=device, compile=compile, streams=streams, precision=precision,
        deterministic=deterministic, processes=processes,
    )  # fmt: skip
    one_by_one = prepared = setting_of(keys)
    if device != "cpu":
        keys |= case.on_gpu
        prepared = with_keys(one_by_one, keys)
    machine = machine_of(keys, prepared)
    workers = machine_of(keys | {"engine": "loop", "streams": None}, prepared).workers
    least = SECONDS[torch.device(device).type]
    print(f"{name}: {rows} rows on {machine.device_name}, {TURNS} turns of {least:.0f} s each")
    contestants = {
        "plain": plain_contestant(one_by_one),
        "loop": contestant(once(Loop(one_by_one.task), runs_of(one_by_one)[:1])),
        "stacked": contestant(stacked(prepared, machine, case.rounds)),
    }
    if workers > 1:
        spread = once(Loop(prepared.task, workers), runs_of(prepared)[:1])
        contestants[f"loop_{workers}_workers"] = contestant(spread)
    rate = take_turns(contestants, least)
    result = {
        "case": name, "rows": rows, "compile": machine.compile, "device": machine.device_name,
        "precision": machine.precision, "deterministic": machine.deterministic, "streams": machine.streams,
        "processes": machine.processes,
        **{f"{who}_steps_per_s": round(found, 1) for who, found in rate.items()},
        "speedup": round(rate["stacked"] / rate["plain"], 2),
        **{f"{who}_speedup": round(rate[who] / rate["plain"], 2) for who in rate if who.startswith("loop")},
        "torch": versions()["torch"],
    }  # fmt: skip
    if device != "cpu":
        result |= utilisation(prepared, rate["stacked"])
    print(json.dumps(result))


def utilisation(prepared: Prepared, rate: float) -> dict[str, float]:
    """FLOP/s and bytes/s of the steps themselves, beside what the card reaches on a large product and copy.

    Bytes are the fewest that a step must move: its weights and momentum read and written, its batch read.
    """
    task, dtype = prepared.task, prepared.dtype
    flop, batch_bytes = cost_of(task)
    moved = 4 * dtype.itemsize * task.layout.size + batch_bytes
    half = task.arithmetic.precision == "bf16"
    a = torch.randn(8192, 8192, device=prepared.device, dtype=torch.bfloat16 if half else dtype)
    b = torch.empty(2**28, device=prepared.device)
    with Arithmetic(task.arithmetic.precision, deterministic=False).kernels(), current(prepared.device):
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


def _plain() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "plain.py"
    spec = importlib.util.spec_from_file_location("plain", path) if path.exists() else None
    if spec is None or spec.loader is None:
        raise InputError(
            "bench", "needs benchmarks/plain.py beside the package", ..., "run it in a checkout of fedskip"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
