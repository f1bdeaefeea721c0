"""Both engines agree, for every method and model and every way to train."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskip import rng
from fedskip.engine import Local, Loop, Plan, Stacked, Task
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.stepper import has_compiler
from fedskip.errors import InputError
from fedskip.federation import Run
from fedskip.methods import FedAvg, FedNova, FedProx, Method, Moon, Scaffold
from fedskip.methods.base import State, Terms, Visit
from tiny import (
    CLIENTS,
    LOCAL,
    METHODS,
    MODELS,
    SKIPPING,
    assert_agree,
    dropped,
    make_task,
    pool,
    runs_of,
    stacked_for,
    state_of,
    task_of,
    train,
    train_together,
)  # fmt: skip


def both(
    task: Task, methods: Sequence[Method], rounds: int = 2, **options: Any
) -> tuple[list[Run], list[Run]]:
    """The same runs, one by one in the loop and all at once in the stack."""
    loop, stacked = (runs_of(task, methods, rounds=rounds, **options) for _ in range(2))
    train_together(Loop(task), loop, rounds)
    train_together(stacked_for(task, stacked), stacked, rounds)
    return loop, stacked


@pytest.mark.parametrize("model", MODELS)
def test_engines_agree_for_every_method_and_model(model: str) -> None:
    task = task_of(model)
    loop, stacked = both(task, METHODS + SKIPPING)
    assert_agree(stacked, loop, rtol=1e-8, atol=1e-10)
    again = state_of(loop[METHODS.index(Moon(mu=2.0))])["memory.previous"]
    assert len(again) == 3, "MOON has met a client again, so its contrast was at work"


@pytest.mark.parametrize("model", MODELS)
def test_engines_agree_in_float32_for_a_round(model: str) -> None:
    task = task_of(model, dtype=torch.float32)
    methods = METHODS if model == "perceptron" else [FedProx(mu=0.5)]
    loop, stacked = both(task, methods, rounds=1)
    assert state_of(stacked[0])["server.x"].dtype == torch.float32
    assert_agree(stacked, loop, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "local",
    [
        replace(LOCAL, last_batch="keep", epochs=2),
        replace(LOCAL, small_clients="short", epochs=2),
        replace(LOCAL, clip=0.05),
        replace(LOCAL, decay="cosine"),
        replace(LOCAL, decay="step(every=1, factor=0.5)"),
        replace(LOCAL, decay="inverse(half=1)"),
        replace(LOCAL, momentum=0.0, weight_decay=0.0),
        replace(LOCAL, epochs=3, max_steps=4),
    ],
    ids=["keep", "short", "clip", "cosine", "step", "inverse", "plain", "max_steps"],
)
def test_engines_agree_for_every_way_to_train(local: Local) -> None:
    task = task_of("perceptron", local)
    methods: list[Method] = [FedAvg(), FedProx(mu=0.5), Scaffold(), FedNova(period=2)]
    if task.local.short_batches or local.clip:
        methods.append(Moon(mu=2.0))  # its contrast is averaged and clipped with the loss
    sizes = (3, 9, 7) if task.local.short_batches else CLIENTS
    loop, stacked = both(task, methods, rounds=3, sizes=sizes)
    assert_agree(stacked, loop, rtol=1e-9, atol=1e-12)


def test_a_short_batch_is_averaged_over_the_samples_it_has() -> None:
    """Three samples and a batch of four: the step is that of the three."""
    task = task_of(
        "perceptron", replace(LOCAL, small_clients="short", momentum=0.0, weight_decay=0.0)
    )
    module = copy.deepcopy(task.module)
    x, y = task.samples.take(torch.arange(3))
    F.cross_entropy(module(x), y).backward()
    gradient = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
    expected = task.layout.pack(task.module) - 0.1 * gradient
    for run in (
        runs[0] for runs in both(task, [FedAvg(period="never")], rounds=1, sizes=(3, 9, 7))
    ):
        torch.testing.assert_close(run.server.w[0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_clipping_bounds_the_gradient_but_not_the_terms(engine: str) -> None:
    task = task_of(
        "perceptron", replace(LOCAL, clip=0.01, momentum=0.0, weight_decay=0.0, max_steps=1)
    )

    class Shift(FedAvg):
        def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
            return Terms(linear=torch.ones_like(x))

    for method, shift in ((FedAvg(period="never"), 0.0), (Shift(period="never"), 1.0)):
        run = runs_of(task, [method])[0]
        train(Loop(task) if engine == "loop" else stacked_for(task, [run]), run, 1)
        moved = (run.server.w - run.server.x) / -0.1 - shift
        torch.testing.assert_close(
            moved.norm(dim=1), torch.full((2,), 0.01).double(), rtol=1e-3, atol=0
        )


def test_both_engines_draw_the_same_dropout() -> None:
    """Also where a batch is short."""
    task = dropped(replace(LOCAL, last_batch="keep"))
    loop, stacked = both(task, [FedAvg(), Moon(mu=2.0), FedAvg(period=2)])
    assert_agree(stacked, loop, rtol=1e-9, atol=1e-12)


def jitter(x: Tensor, word: Tensor) -> Tensor:
    """Every sample is shifted by its own draw."""
    return x + rng.uniform(word, 0).to(x.dtype)[:, None]


def test_both_engines_draw_the_same_augmentation() -> None:
    """Also where a batch is short."""
    plain = task_of("perceptron", replace(LOCAL, last_batch="keep"))
    task = replace(plain, train_transform=jitter)
    loop, stacked = both(task, [FedAvg(), Moon(mu=2.0), FedAvg(period=2)])
    assert_agree(stacked, loop, rtol=1e-9, atol=1e-12)
    [unmoved] = runs_of(plain, [FedAvg()])
    train(Loop(plain), unmoved, 2)
    assert (unmoved.server.x - loop[0].server.x).abs().max() > 1e-4


class Unit(nn.Module):
    """A representation of length one, which all-zero weights do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(6, 3)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output = self.dense(x)
        return output, output / output.norm(dim=1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0]


def test_a_first_visit_of_moon_meets_no_model_of_zeros() -> None:
    with rng.torch_scope("unit"):
        task = make_task(Unit(), pool((6,)), LOCAL)
    loop, stacked = both(task, [Moon(mu=2.0), FedAvg()], rounds=1)
    assert torch.equal(loop[0].server.x, loop[1].server.x)
    assert_agree(stacked, loop, rtol=1e-9, atol=1e-12)


class Odd(nn.Module):
    """A frozen layer, a parameter that the loss never sees, a scalar, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 3).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scale * self.second(self.first(self.frozen(x)).tanh())
        return out


def test_odd_modules_train_alike() -> None:
    with rng.torch_scope("odd"):
        task = make_task(Odd(), pool((6,)), LOCAL)
    loop, stacked = both(task, [m for m in METHODS if not isinstance(m, Moon)])
    assert_agree(stacked, loop, rtol=1e-9, atol=1e-12)
    views = task.layout.views(loop[0].server.x)
    assert torch.equal(
        views["frozen.weight"], task.layout.views(task.layout.pack(task.module))["frozen.weight"]
    )
    assert (views["unused"] < 1).all(), "weight decay acts on it all the same"


class Noisy(nn.Module):
    """Draws from torch's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(F.dropout(x, 0.5, self.training))


def test_a_module_with_its_own_randomness_is_keyed_by_the_visit() -> None:
    with rng.torch_scope("noisy"):
        task = make_task(Noisy(), pool((6,)), LOCAL)
    ends = []
    for workers in (1, 2):
        with rng.torch_scope(workers):  # wherever the generator stands
            [run] = runs_of(task, [FedAvg()])
            train(Loop(task, workers), run, 2)
        ends.append(run.server.x)
    assert torch.equal(*ends)
    with pytest.raises(InputError, match=r"cannot be 'stacked'.*global generator"):
        Stacked(task, Plan(sizes=[2], compile=False))


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_diverging_row_does_not_disturb_the_others(engine: str) -> None:
    task = task_of("perceptron", replace(LOCAL, epochs=4))
    wild = FedProx(mu=1e38)  # the first pull overflows the second
    methods: list[Method] = [FedAvg(), wild, Scaffold(), FedProx(mu=0.1)]
    calm = runs_of(task, [FedProx(mu=1.0) if method is wild else method for method in methods])
    stormy = runs_of(task, methods)
    for runs in (calm, stormy):
        train_together(Loop(task) if engine == "loop" else stacked_for(task, runs), runs, 2)
    assert not stormy[1].server.x.isfinite().all()
    for i in (0, 2, 3):
        assert stormy[i].server.x.isfinite().all()
        assert torch.equal(stormy[i].server.x, calm[i].server.x)


def test_engines_leave_the_number_of_threads_as_it_was() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        both(task_of("perceptron"), [FedAvg()])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class Penalised(FedAvg):
    """FedAvg with an objective of its own: weight decay, written as a loss."""

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        def objective(module: nn.Module, inputs: Tensor, targets: Tensor, loss: Any) -> Tensor:
            size = sum(p.square().sum() for p in module.parameters())
            total: Tensor = loss(module(inputs), targets).mean() + 0.05 * size
            return total

        return Terms(objective=objective)


def test_an_objective_of_its_own_runs_in_the_loop_and_only_there() -> None:
    bare, decayed = (task_of("perceptron", replace(LOCAL, weight_decay=wd)) for wd in (0.0, 0.1))
    [own], [plain] = runs_of(bare, [Penalised()]), runs_of(decayed, [FedAvg()])
    train(Loop(bare), own, 2)
    train(Loop(decayed), plain, 2)
    torch.testing.assert_close(own.server.x, plain.server.x, rtol=1e-12, atol=1e-14)
    [refused] = runs_of(bare, [Penalised()])
    with pytest.raises(InputError, match="cannot be 'stacked' for a method with its own objective"):
        train(stacked_for(bare, [refused]), refused, 1)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_moon_needs_features(engine: str) -> None:
    with rng.torch_scope("bare"):
        task = make_task(nn.Linear(6, 3), pool((6,)), LOCAL)
    [run] = runs_of(task, [Moon()])
    with pytest.raises(InputError, match=r"features\(x\) -> \(output, z\)"):
        train(Loop(task) if engine == "loop" else stacked_for(task, [run]), run, 1)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_loss_that_is_not_per_sample_is_refused(engine: str) -> None:
    task = replace(task_of("perceptron"), loss=F.cross_entropy)
    [run] = runs_of(task, [FedAvg()])
    with pytest.raises(InputError, match="loss must give one number per sample"):
        train(Loop(task) if engine == "loop" else stacked_for(task, [run]), run, 1)


@pytest.mark.parametrize("name", ["perceptron", "cnn", "lstm"])
def test_bf16_is_near_fp32(name: str) -> None:
    """The model computes in bfloat16; weights, terms and merges do not."""
    engines = (
        ("stacked",) if name == "lstm" else ("loop", "stacked")
    )  # torch's LSTM has no bf16 on some CPUs
    ends = {}
    for precision in ("fp32", "bf16"):
        task = replace(task_of(name, dtype=torch.float32), arithmetic=Arithmetic(precision))
        for engine in engines:
            runs = runs_of(task, [FedAvg(), Scaffold(), Moon(mu=2.0)])
            train_together(Loop(task) if engine == "loop" else stacked_for(task, runs), runs, 2)
            ends[precision, engine] = torch.stack([run.server.x for run in runs])
            assert ends[precision, engine].dtype == torch.float32
    exact = ends["fp32", "stacked"]
    for engine in engines:
        far = (ends["bf16", engine] - exact).norm() / exact.norm()
        assert 1e-6 < far < 0.05, engine


@pytest.mark.parametrize(
    "compile",
    [False, pytest.param(True, marks=pytest.mark.skipif(not has_compiler(), reason="no compiler"))],
)
def test_a_loss_may_hold_tensors(compile: bool) -> None:
    """Class weights, say: they become part of the trace."""
    weights = torch.linspace(0.5, 2.0, 10, dtype=torch.float64)
    plain = task_of("perceptron")
    task = replace(plain, loss=lambda output, target: weights[target] * plain.loss(output, target))
    loop, stacked, unweighted = (runs_of(each, [FedAvg()]) for each in (task, task, plain))
    train_together(Loop(task), loop, 1)
    train_together(stacked_for(task, stacked, compile=compile), stacked, 1)
    train_together(Loop(plain), unweighted, 1)
    assert_agree(stacked, loop, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(loop[0].server.x, unweighted[0].server.x)
