"""`fedskip bench`: client-steps per second of the engines, and what share of a GPU that uses.

N rows are N/10 seeds of FedAvg with a cohort of 10 (N/50 and 50 for pfl-cifar10). All rates count
client-steps that were asked for; rows computed only because a stack has fixed sizes do not count. Machines
are noisy, so the contestants take turns and each rate is the median over the turns.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedskip.bench import contestants as parties
from fedskip.bench.cases import CASES
from fedskip.engine import Loop, Task
from fedskip.engine.arithmetic import Arithmetic
from fedskip.errors import InputError, option, unknown
from fedskip.models.forms import functional
from fedskip.study.machine import resolve_device
from fedskip.study.prepare import Prepared
from fedskip.version import versions

SECONDS = {"cpu": 4.0, "cuda": 1.0}  # of each contestant in a turn; GPUs are less noisy


def measure(name: str, rows: int = 100, device: str = "cpu", **how: Any) -> None:
    """Run one case, `how` being keys of a study; the last line printed is a JSON object."""
    if name not in CASES:
        raise unknown("bench", name, CASES)
    case = CASES[name]
    if rows < case.cohort or rows % case.cohort:
        raise InputError(
            option("rows"), f"must be a multiple of {case.cohort}, one cohort for each seed", rows
        )
    device = resolve_device(device)
    keys = case.study(rows, device=device, **how)
    one_by_one, alone = parties.setting_of(keys | {"engine": "loop", "streams": None})
    prepared, machine = parties.setting_of(keys if device == "cpu" else keys | case.on_gpu)
    least = SECONDS[torch.device(device).type]
    print(
        f"{name}: {rows} rows on {machine.device_name}, {parties.TURNS} turns of {least:.0f} s each"
    )
    once = {
        "loop": parties.once(Loop(one_by_one.task), [next(one_by_one.runs())]),
        "stacked": parties.stacked(prepared, machine, case.rounds),
    }
    if alone.workers > 1:
        spread = Loop(one_by_one.task, alone.workers)
        once[f"loop_{alone.workers}_workers"] = parties.once(spread, [next(one_by_one.runs())])
    contestants = {"plain": parties.plain_contestant(one_by_one)}
    rate = parties.take_turns(
        contestants | {who: parties.contestant(it) for who, it in once.items()}, least
    )
    facts = machine.facts() | {"device": machine.device_name}
    shown = ("compile", "device", "precision", "deterministic", "streams", "processes")
    result = {
        "case": name, "rows": rows, **{key: facts[key] for key in shown},
        **{f"{who}_steps_per_s": round(per_second, 1) for who, per_second in rate.items()},
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
