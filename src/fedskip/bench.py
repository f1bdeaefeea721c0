"""How fast the engines are, as a ratio to `benchmarks/plain.py` in the same process.

N rows are N/10 seeds of FedAvg with a cohort of 10. All rates count client-steps that were asked for;
rows computed only because a table has fixed sizes do not count. Machines are noisy, so the contestants
take turns and each rate is the median over the turns.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from fedskip import config
from fedskip.data import Arrays, Dataset
from fedskip.engine import Engine, Loop, make_engine
from fedskip.engine.base import torch_threads
from fedskip.engine.stacked import Stacked
from fedskip.errors import InputError, unknown
from fedskip.federation import Rounds, Run
from fedskip.machine import Machine, versions
from fedskip.prepare import Prepared, prepare

TURNS = 3
ROUNDS = 10  # played at a time; a study goes further from one checkpoint to the next
SECONDS = 4.0  # of each contestant in a turn


def images(clients: int = 50, size: int = 1000) -> Dataset:
    """Random pixels in the shape of CIFAR-10: speed does not depend on what is in the picture."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((clients * size, 3, 32, 32), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, clients * size))
    everyone = np.arange(clients * size)
    return Dataset("random-images", Arrays(x, y), lambda seed: (everyone, everyone[:100]), classes=10)


CASES: dict[str, dict[str, Any]] = {
    "synthetic": {"data": "synthetic", "model": "perceptron"},
    "cnn": {
        "data": images, "model": "cnn", "partition": "iid", "clients": 50,
        "local": {"epochs": 1, "max_steps": 15},
    },
}  # fmt: skip


def contestant(engine: Engine, runs: list[Run]) -> Callable[[], tuple[int, float]]:
    """Plays rounds for a while: gives steps and seconds. Rounds that traced or compiled are left out."""
    work = Rounds(runs)

    def play() -> tuple[int, float]:
        steps, seconds = 0, 0.0
        while seconds < SECONDS:
            before, traced, work.until = work.steps, _traced(engine), work.until + ROUNDS
            started = time.perf_counter()
            engine.run(work)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if _traced(engine) == traced:
                steps, seconds = steps + work.steps - before, seconds + time.perf_counter() - started
        return steps, seconds

    return play


def _traced(engine: Engine) -> int:
    if not isinstance(engine, Stacked):
        return 0
    return len(engine.plain.step.traced) + len(engine.contrast.step.traced)


def plain_contestant(prepared: Prepared) -> Callable[[], tuple[int, float]]:
    """Rounds of the hand-written FedAvg on the same clients."""
    plain = _plain()
    task, local = prepared.task, prepared.setting.local
    model = prepared.module(0, "init").to(prepared.device)
    clients = prepared.division(0).clients
    arguments = {
        k: getattr(local, k) for k in ("lr", "momentum", "weight_decay", "batch", "epochs", "max_steps")
    }
    rng = np.random.default_rng(0)

    def play() -> tuple[int, float]:
        steps, seconds = 0, 0.0
        while seconds < SECONDS:
            cohort = rng.choice(len(clients), prepared.setting.cohort, replace=False)
            data = [task.samples.take(torch.from_numpy(clients[c]).to(prepared.device)) for c in cohort]
            started = time.perf_counter()
            with torch_threads(1):
                steps += plain.fedavg_round(model, data, **arguments)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds += time.perf_counter() - started
        return steps, seconds

    return play


def main(
    name: str, *, rows: int = 100, compile: bool = True, device: str = "cpu", threads: int | None = None
) -> None:
    """Run one case; the last line printed is a JSON object."""
    if name not in CASES:
        raise unknown("bench", name, CASES)
    if rows < 10 or rows % 10:
        raise InputError("--rows", "must be a multiple of 10, one cohort for each seed", rows)
    case = dict(CASES[name])
    if callable(case["data"]):
        case["data"] = case["data"]()
    shared = {"methods": "fedavg", "rounds": 1_000_000, "seeds": rows // 10, "cohort": 10, "device": device}
    keys = case | shared | {"compile": compile, "threads": threads}
    spec = config.build(config.Tree(keys | {"engine": "stacked"}))
    prepared = prepare(spec.settings[0], torch.device(device), torch.float32)
    setting, module = prepared.setting, prepared.task.module
    machine = Machine.of(spec, module, None)
    workers = Machine.of(config.build(config.Tree(keys | {"engine": "loop"})), module, None).workers
    print(f"{name}: {rows} rows on {machine.device_name}, {TURNS} turns of {SECONDS:.0f} s each")

    def runs() -> list[Run]:
        return [prepared.run(method, seed) for method in setting.methods for seed in setting.seeds]

    stacked = runs()
    contestants = {
        "plain": plain_contestant(prepared),
        "loop": contestant(Loop(prepared.task), runs()),
        "stacked": contestant(make_engine(prepared, machine, stacked), stacked),
    }
    if workers > 1:
        contestants[f"loop_{workers}_workers"] = contestant(Loop(prepared.task, workers), runs())
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(TURNS + 1):
        for who, play in contestants.items():
            steps, seconds = play()
            if turn:  # the first turn warms caches
                rates[who].append(steps / seconds)
        if turn:
            print("  ".join(f"{who} {rates[who][-1]:,.0f}/s" for who in contestants), flush=True)
    rate = {who: statistics.median(found) for who, found in rates.items()}
    result = {
        "case": name, "rows": rows, "compile": machine.compile, "device": machine.device_name,
        **{f"{who}_steps_per_s": round(found, 1) for who, found in rate.items()},
        "speedup": round(rate["stacked"] / rate["plain"], 2),
        **{f"{who}_speedup": round(rate[who] / rate["plain"], 2) for who in rate if who.startswith("loop")},
        "torch": versions()["torch"],
    }  # fmt: skip
    print(json.dumps(result))


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
