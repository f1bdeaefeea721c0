"""What holds on a GPU: engines agree, bits repeat, studies resume, memory stays. Skipped without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedskip
from fedskip.data.synthetic import random_images, random_text
from fedskip.engine import Loop, Stacked, Task
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.evaluate import Evaluator
from fedskip.methods import FedAvg, Method, Moon, Scaffold
from fedskip.records.folder import Folder
from fedskip.rng import torch_scope
from studies import numbers, weights
from tiny import (
    ALL_TERMS,
    LOCAL,
    METHODS,
    MODELS,
    SKIPPING,
    assert_agree,
    clients_of,
    first_job,
    kept_by_torch,
    make_task,
    pool,
    runs_of,
    task_of,
    train_together,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
GPU = torch.device("cuda")


def on_gpu(name: str, dtype: torch.dtype = torch.float64, precision: str = "fp32") -> Task:
    return moved(replace(task_of(name, dtype=dtype), arithmetic=Arithmetic(precision)))


def moved(task: Task) -> Task:
    module = task.module.to(GPU)
    return replace(
        task, module=module, samples=task.samples.to(GPU, next(module.parameters()).dtype)
    )


def stacked(
    task: Task, methods: Sequence[Method], *, compile: bool = False, streams: int = 0
) -> Stacked:
    sizes = [2 * len(methods)]
    plan = replace(
        ALL_TERMS, sizes=sizes, contrast_sizes=sizes, compile=compile, streams=streams, kernels=True
    )
    return Stacked(task, plan)


@pytest.mark.parametrize("name", MODELS)
def test_engines_agree(name: str) -> None:
    """Every method and skipping, to float64's rounding."""
    methods = [*METHODS, *SKIPPING]
    task = on_gpu(name)
    one, other = runs_of(task, methods), runs_of(task, methods)
    train_together(stacked(task, methods), one, 4)
    train_together(Loop(task), other, 4)
    assert_agree(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["cnn", "resnet50", "lstm"])
def test_rows_on_streams_agree(name: str) -> None:
    methods = [FedAvg(), Moon(mu=2.0), Scaffold()]
    task = on_gpu(name)
    one, other = runs_of(task, methods), runs_of(task, methods)
    train_together(stacked(task, methods, streams=2), one, 4)
    train_together(Loop(task), other, 4)
    assert_agree(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("name", "streams"), [("cnn", 0), ("resnet50", 2)])
def test_compiled_agrees(name: str, streams: int) -> None:
    task = on_gpu(name, torch.float32)
    one, other = runs_of(task, [FedAvg()]), runs_of(task, [FedAvg()])
    before = kept_by_torch()
    train_together(stacked(task, [FedAvg()], compile=True, streams=streams), one, 3)
    assert kept_by_torch() > before, "the next process will not compile it again"
    train_together(Loop(task), other, 3)
    assert_agree(one, other, rtol=1e-2, atol=1e-4)


def test_compiled_products_of_patches_agree() -> None:
    """Of convolutions with too many channels for kernels of our own, pooled and not."""
    with torch_scope("wide"):
        module = nn.Sequential(
            nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 20, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(20, 17, 2), nn.Flatten(), nn.Linear(17, 3),
        )  # fmt: skip
    task = moved(make_task(module, pool((3, 8, 8)), LOCAL, dtype=torch.float32))
    one, other = runs_of(task, [FedAvg()]), runs_of(task, [FedAvg()])
    train_together(stacked(task, [FedAvg()], compile=True), one, 3)
    train_together(Loop(task), other, 3)
    assert_agree(one, other, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("name", ["cnn", "lstm"])
def test_the_gpu_agrees_with_the_cpu(name: str) -> None:
    here, there = task_of(name), on_gpu(name)
    one, other = runs_of(here, METHODS), runs_of(there, METHODS)
    train_together(Loop(here), one, 3)
    train_together(stacked(there, METHODS), other, 3)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.server.x, b.server.x.cpu(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("name", ["cnn", "lstm", "resnet50"])
def test_bits_repeat(name: str, precision: str) -> None:
    """With deterministic kernels, and in every precision; which is near that of fp32."""
    streams = 2 if name == "resnet50" else 0
    ends = []
    for _ in range(2):
        task = on_gpu(name, torch.float32, precision)
        runs = runs_of(task, METHODS)
        train_together(stacked(task, METHODS, streams=streams), runs, 3)
        ends.append(torch.stack([run.server.x for run in runs]))
    assert torch.equal(*ends)
    task = on_gpu(name, torch.float32)
    exact = runs_of(task, METHODS)
    train_together(stacked(task, METHODS, streams=streams), exact, 3)
    far = (ends[0] - torch.stack([run.server.x for run in exact])).norm() / ends[0].norm()
    assert far < {"fp32": 1e-6, "tf32": 0.02, "bf16": 0.1}[precision]


def test_flags_are_as_before_outside() -> None:
    before = torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled()
    with Arithmetic("fp32", deterministic=True).kernels():
        assert not torch.backends.cudnn.allow_tf32
        assert torch.are_deterministic_algorithms_enabled()
    assert (torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled()) == before


SMALL: dict[str, dict[str, Any]] = {
    "perceptron": {"data": "synthetic", "compile": False},
    "kernels": {"model": "cnn", "rows": 7},
    "recurrence": {"model": "lstm", "data": random_text(5, 32), "rows": 7},
    "streams": {
        "model": {"name": "resnet50", "width": 4, "blocks": [1, 1]},
        "streams": 2,
        "rows": 5,
    },
}


def study(out: Path, name: str, rounds: int) -> fedskip.Study:
    """Of all kinds of methods; with `rows` they do not fit one batch."""
    keys = {
        "methods": "fedavg, fedskip(period=3), scaffold, moon", "seeds": 2, "rounds": rounds,
        "checkpoint_every": 2, "eval_every": 2, "device": "cuda", "engine": "stacked",
        "local": {"epochs": 1, "batch": 8}, "cohort": 3,
    }  # fmt: skip
    if name != "perceptron":
        keys |= {"data": random_images(5, 32), "partition": "iid", "clients": 5}
    return fedskip.Study(out, **(keys | SMALL[name]))


@pytest.mark.parametrize("name", SMALL)
def test_resume_is_exact(name: str, tmp_path: Path) -> None:
    """A study that went on from its checkpoint has the bits of one that was never disturbed."""
    study(tmp_path / "whole", name, 6).run()
    study(tmp_path / "parts", name, 2).run()
    study(tmp_path / "parts", name, 2).resume(rounds=6)
    whole, parts = (
        {file.name: file.read_bytes() for file in (tmp_path / part / "models").iterdir()}
        for part in ("whole", "parts")
    )
    assert whole.keys() == parts.keys()
    assert [file for file in whole if whole[file] != parts[file]] == []
    [recorded] = Folder(tmp_path / "whole").record()["settings"].values()
    assert recorded["machine"]["rows"] == SMALL[name].get("rows")
    assert bool(recorded["machine"]["kernels"]) == (name in ("kernels", "recurrence"))


class Noisy(nn.Linear):
    """Draws from torch's own generator."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.5, self.training)


def test_a_module_that_draws_repeats_its_bits() -> None:
    """Its randomness is keyed by the visit, and the generator outside is left alone."""
    with torch_scope("noisy"):
        task = moved(make_task(Noisy(6, 3), pool((6,)), LOCAL, dtype=torch.float32))
    before = torch.cuda.get_rng_state()
    ends = []
    for _ in range(2):
        [run] = runs_of(task, [FedAvg()])
        train_together(Loop(task), [run], 3)
        ends.append(run.server.x)
        torch.cuda.manual_seed(1)
    assert torch.equal(*ends)
    torch.cuda.set_rng_state(before)
    train_together(Loop(task), runs_of(task, [FedAvg()]), 1)
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.parametrize("streams", [0, 2])
def test_memory_does_not_grow(streams: int) -> None:
    task = on_gpu("cnn", torch.float32)
    runs = runs_of(task, METHODS)
    engine = stacked(task, METHODS, streams=streams)
    evaluator = Evaluator(task, stacked=True)

    def play(rounds: int) -> None:
        for outcomes in train_together(engine, runs, rounds):
            models = [outcome.evaluated for outcome in outcomes if outcome.evaluated is not None]
            evaluator(torch.stack(models), clients_of()[0])

    play(4)
    first = torch.cuda.memory_allocated()
    play(30)
    assert torch.cuda.memory_allocated() <= first


def test_a_row_is_measured() -> None:
    task = on_gpu("cnn", torch.float32)
    [run] = runs_of(task, [FedAvg()])
    engine = stacked(task, [FedAvg()])
    footprint = engine.stacks[False].footprint(first_job(run))
    assert footprint.row >= 2 * 4 * task.layout.size
    assert footprint.step >= 4 * task.layout.size
    assert 1 < footprint.rows < footprint.free


@pytest.mark.parametrize("streams", [0, 2])
def test_weights_at_odd_places(streams: int) -> None:
    """Kernels that read 16 bytes at a time find every weight, wherever it lies in its row."""
    module = nn.Sequential(
        nn.Conv2d(3, 3, 1), nn.Conv2d(3, 5, 1), nn.Flatten(), nn.Linear(5 * 64, 3)
    )
    task = moved(make_task(module, pool((3, 8, 8)), LOCAL, dtype=torch.float32))
    one, other = runs_of(task, [FedAvg()]), runs_of(task, [FedAvg()])
    train_together(stacked(task, [FedAvg()], compile=True, streams=streams), one, 3)
    train_together(Loop(task), other, 3)
    assert_agree(one, other, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("compile", [False, True])
def test_groups_that_share_a_gpu_have_the_bits_of_groups_in_turn(
    tmp_path: Path, compile: bool
) -> None:
    """Two workers with half of a GPU each, one worker after another, and both groups in this process."""
    pytest.importorskip("ray")
    keys: dict[str, Any] = {
        "data": random_images(6, 100), "model": "cnn", "partition": "iid", "clients": 6, "cohort": 4, "rounds": 4,
        "methods": "fedavg, fedskip(period=2), scaffold, moon", "seeds": 1, "checkpoint_every": 2,
        "local": {"batch": 16, "epochs": 1}, "engine": "stacked", "groups": 2, "device": "cuda",
        "compile": compile,
    }  # fmt: skip
    for name, how in {
        "shared": {"cluster": "local", "per_device": 2, "rows": 8},
        "turns": {"cluster": "local", "rows": 8},
        "here": {"rows": 8},
    }.items():
        fedskip.Study(tmp_path / name, **keys, **how).run()
    assert weights(tmp_path / "shared") == weights(tmp_path / "turns") == weights(tmp_path / "here")
    assert numbers(tmp_path / "shared") == numbers(tmp_path / "turns") == numbers(tmp_path / "here")
