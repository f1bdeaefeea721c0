"""Both engines do what a plain loop does, agree with each other, and no row knows of another."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx

from fedskip import config, rng
from fedskip.bench import setting_of
from fedskip.cases import CASES
from fedskip.engine import Loop, Stacked, Task, Trained, Visits, make_engine
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.base import momentum_sum, route, steps_of
from fedskip.engine.evaluate import ACTIVATION, Evaluator
from fedskip.engine.memory import GIB, Memory
from fedskip.engine.plan import MASKED, SIZES, busy_rows, limited, table_sizes
from fedskip.engine.stacked import Table
from fedskip.engine.step import StackedStep, Uses, compiled, has_compiler
from fedskip.errors import InputError
from fedskip.federation import Run
from fedskip.machine import Machine
from fedskip.methods import FedAvg, FedNova, FedProx, Method, Moon, Scaffold
from fedskip.methods.base import State, Terms, Visit
from fedskip.models import key_dropout
from fedskip.spec import Local
from tiny import (
    CLIENTS,
    LOCAL,
    METHODS,
    MODELS,
    SKIPPING,
    SLOTS,
    Together,
    assert_agree,
    clients_of,
    kept_by_torch,
    make_run,
    make_task,
    named,
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


@pytest.fixture(autouse=True)
def _nothing_touches_torch_s_generator() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


# --- agreement -----------------------------------------------------------------------------------------


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


@pytest.fixture(scope="module")
def crowd() -> list[Run]:
    """Runs of all methods, trained in one batch."""
    task = task_of("perceptron")
    runs = runs_of(task, METHODS + SKIPPING, rounds=4)
    train_together(stacked_for(task, runs), runs, 4)
    return runs


@pytest.mark.parametrize("i", range(len(METHODS + SKIPPING)), ids=named(METHODS + SKIPPING))
def test_a_run_in_a_batch_equals_the_run_alone(crowd: list[Run], i: int) -> None:
    """Alone it has a smaller table and only the terms that it needs."""
    task = task_of("perceptron")
    [alone] = runs_of(task, [(METHODS + SKIPPING)[i]], rounds=4)
    terms = alone.clients.begin(alone.server.orders(0)).terms
    uses = Uses(pull=terms.mu is not None, linear=terms.linear is not None)
    train(stacked_for(task, [alone], uses), alone, 4)
    assert_agree([crowd[i]], [alone], rtol=1e-11, atol=1e-13)


def test_the_loop_is_plain_training() -> None:
    """As anyone would write it: a module, torch's SGD, the batches in order."""
    task = task_of("cnn", Local(lr=0.1, batch=4, epochs=2, weight_decay=0.01, momentum=0.8))
    [run] = runs_of(task, [FedAvg(period="never")], rounds=1)
    train(Loop(task), run, 1)
    for k in range(SLOTS):
        module = copy.deepcopy(task.module).train()
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.8, weight_decay=0.01)
        for batch in route(rng.visit_key(0, 0, k), clients_of()[k], task.local).batches:
            x, y = task.samples.take(torch.from_numpy(batch))
            optimiser.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimiser.step()
        torch.testing.assert_close(run.server.w[k], task.layout.pack(module), rtol=1e-12, atol=1e-14)


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
    if task.short_batches or local.clip:
        methods.append(Moon(mu=2.0))  # its contrast is averaged and clipped with the loss
    sizes = (3, 9, 7) if task.short_batches else CLIENTS
    loop, stacked = both(task, methods, rounds=3, sizes=sizes)
    assert_agree(stacked, loop, rtol=1e-9, atol=1e-12)


def test_a_short_batch_is_averaged_over_the_samples_it_has() -> None:
    """Three samples and a batch of four: the step is that of the three."""
    task = task_of("perceptron", replace(LOCAL, small_clients="short", momentum=0.0, weight_decay=0.0))
    module = copy.deepcopy(task.module)
    x, y = task.samples.take(torch.arange(3))
    F.cross_entropy(module(x), y).backward()
    gradient = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
    expected = task.layout.pack(task.module) - 0.1 * gradient
    for run in (runs[0] for runs in both(task, [FedAvg(period="never")], rounds=1, sizes=(3, 9, 7))):
        torch.testing.assert_close(run.server.w[0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_clipping_bounds_the_gradient_but_not_the_terms(engine: str) -> None:
    task = task_of("perceptron", replace(LOCAL, clip=0.01, momentum=0.0, weight_decay=0.0, max_steps=1))

    class Shift(FedAvg):
        def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
            return Terms(linear=torch.ones_like(x))

    for method, shift in ((FedAvg(period="never"), 0.0), (Shift(period="never"), 1.0)):
        run = runs_of(task, [method])[0]
        train(Loop(task) if engine == "loop" else stacked_for(task, [run]), run, 1)
        moved = (run.server.w - run.server.x) / -0.1 - shift
        torch.testing.assert_close(moved.norm(dim=1), torch.full((2,), 0.01).double(), rtol=1e-3, atol=0)


# --- modules of other kinds ----------------------------------------------------------------------------


class Dropped(nn.Module):
    """Two dropouts, of elements and of channels, and a representation for MOON."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(1, 4, 3), nn.Linear(16, 3)
        self.channels, self.elements = nn.Dropout1d(0.4), nn.Dropout(0.5)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.elements(self.channels(self.one(x[:, None]).relu()).flatten(1))
        return self.two(z), z

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0]


def dropped(local: Local = LOCAL) -> Task:
    with rng.torch_scope("dropped"):
        module = key_dropout(Dropped())
    return make_task(module, pool((6,)), local)


def test_both_engines_draw_the_same_dropout() -> None:
    """Also where a batch is short."""
    task = dropped(replace(LOCAL, last_batch="keep"))
    loop, stacked = both(task, [FedAvg(), Moon(mu=2.0), FedAvg(period=2)])
    assert_agree(stacked, loop, rtol=1e-9, atol=1e-12)


def test_dropout_is_that_of_the_visit_and_its_step() -> None:
    """Step s of a visit uses the masks of the word mix(key, s): a plain loop that sets it comes out equal."""
    task = dropped(replace(LOCAL, epochs=3))
    [run] = runs_of(task, [FedAvg(period="never")])
    train(Loop(task), run, 1)
    module, without = copy.deepcopy(task.module).train(), copy.deepcopy(task.module).eval()
    key = rng.visit_key(0, 0, 0)
    for net in (module, without):
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        for step, batch in enumerate(route(key, clients_of()[0], task.local).batches):
            for name, buffer in net.named_buffers():
                assert name.endswith("word")
                buffer.copy_(rng.mix(rng.fold(torch.tensor(key)), step))
            x, y = task.samples.take(torch.from_numpy(batch))
            optimiser.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimiser.step()
    torch.testing.assert_close(run.server.w[0], task.layout.pack(module), rtol=1e-12, atol=1e-14)
    assert (run.server.w[0] - task.layout.pack(without)).abs().max() > 1e-3


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


def test_every_sample_of_every_step_has_a_word_of_its_own() -> None:
    seen: list[Tensor] = []

    def note(x: Tensor, word: Tensor) -> Tensor:
        assert word.shape == (len(x),)
        seen.append(word)
        return x

    task = replace(task_of("perceptron", replace(LOCAL, epochs=5)), train_transform=note)
    engine = Loop(task)
    seen.clear()
    train(engine, runs_of(task, [FedAvg()])[0], 2)
    words = torch.cat(seen)
    assert len(words) == 4 * 5 * (1 + 2 + 2 + 1)
    assert len(words.unique()) == len(words)


class Normed(nn.Module):
    """A small net with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.norm(self.one(x)).relu()
        return self.two(z), z

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0]


def normed(local: Local = LOCAL, dtype: torch.dtype = torch.float64) -> Task:
    with rng.torch_scope("normed"):
        return make_task(Normed(), pool((6,)), local, dtype=dtype)


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
        Stacked(task, [2], compile=False)


# --- rows do not know of each other --------------------------------------------------------------------


def test_a_finished_row_is_frozen_whole() -> None:
    """Weights, momentum, BatchNorm's statistics and loss stay to the last bit."""
    task = normed()
    [run] = runs_of(task, [FedAvg()])
    visits = run.clients.begin(run.server.orders(0))
    step = StackedStep(task, Uses(), compile=False)
    d = task.layout.trainable
    draw = rng.stream("frozen")
    rows = {
        "y": visits.x.clone(),
        "v": torch.from_numpy(draw.normal(size=(2, d))),
        "loss": torch.tensor([[2.0], [3.0]], dtype=torch.float64),
        "active": torch.tensor([[True], [False]]),
        "word": torch.tensor([5, 6]),
    }
    index, eta = torch.arange(8).view(2, 4), torch.full((2, 1), 0.1, dtype=torch.float64)
    after = step(rows, index, eta, torch.zeros(2, dtype=torch.int64))
    for name in ("y", "v", "loss"):
        assert torch.equal(after[name][1], rows[name][1])
        assert not torch.equal(after[name][0], rows[name][0])
    assert not torch.equal(after["y"][0, d:], rows["y"][0, d:]), "the other row's statistics have moved"


def test_a_finished_row_stays_as_it_was_reported() -> None:
    """While longer visits at the same table go on."""

    class Noting(Together):
        def done(self, visits: Visits, ks: list[int], trained: Trained) -> None:
            reported.append((ks, trained.y))
            super().done(visits, ks, trained)

    reported: list[tuple[list[int], Tensor]] = []
    task = normed(replace(LOCAL, epochs=3))
    runs = runs_of(task, [FedAvg()], slots=3)
    engine = Stacked(task, [3], compile=False)
    engine.run(Noting(runs, 1))
    assert [ks for ks, _ in reported] == [[0, 2], [1]]
    for ks, y in reported:
        assert torch.equal(engine.plain.rows["y"][ks], y)


@pytest.mark.parametrize("sizes", [[], [1, 2, 3], [5]], ids=str)
def test_the_sizes_of_tables_do_not_show(sizes: list[int]) -> None:
    """However long a finished row is carried along, and however much room is empty."""
    task = normed(replace(LOCAL, epochs=3))
    loop, stacked = (runs_of(task, [FedAvg(period=2)], slots=3) for _ in range(2))
    train_together(Loop(task), loop, 2)
    engine = Stacked(task, sizes, compile=False)
    train_together(engine, stacked, 2)
    assert_agree(stacked, loop, rtol=1e-9, atol=1e-11)
    assert set(engine.plain.step.traced) <= {*sizes, 3}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_diverging_row_does_not_disturb_the_others(engine: str) -> None:
    task = task_of("perceptron", replace(LOCAL, epochs=4))
    wild = FedProx(mu=1e200)  # the first pull overflows the second
    methods: list[Method] = [FedAvg(), wild, Scaffold(), FedProx(mu=0.1)]
    calm = runs_of(task, [FedProx(mu=1.0) if method is wild else method for method in methods])
    stormy = runs_of(task, methods)
    for runs in (calm, stormy):
        train_together(Loop(task) if engine == "loop" else stacked_for(task, runs), runs, 2)
    assert not stormy[1].server.x.isfinite().all()
    for i in (0, 2, 3):
        assert stormy[i].server.x.isfinite().all()
        assert torch.equal(stormy[i].server.x, calm[i].server.x)


@pytest.mark.parametrize(
    "task", [task_of("cnn", dtype=torch.float32), normed(dtype=torch.float32)], ids=["cnn", "BatchNorm"]
)
def test_the_loop_does_not_depend_on_its_workers(task: Task) -> None:
    """To the last bit, in float32."""
    methods: list[Method] = [FedAvg(period=2), Moon(mu=2.0), Scaffold()]
    expected = runs_of(task, methods)
    train_together(Loop(task, 1), expected, 2)
    for workers in (2, 3):
        found = runs_of(task, methods)
        train_together(Loop(task, workers), found, 2)
        for a, b in zip(found, expected, strict=True):
            assert all(torch.equal(t, state_of(b)[name]) for name, t in state_of(a).items())


def test_engines_leave_the_number_of_threads_as_it_was() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        both(task_of("perceptron"), [FedAvg()])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
def test_a_compiled_step_equals_the_plain_one() -> None:
    task = task_of("perceptron", dtype=torch.float32)
    methods: list[Method] = [FedAvg(), FedProx(mu=0.5), Scaffold()]
    plain, fast = runs_of(task, methods), runs_of(task, methods)
    train_together(stacked_for(task, plain), plain, 2)
    engine = stacked_for(task, fast, compile=True)
    before = kept_by_torch()
    train_together(engine, fast, 2)
    assert_agree(fast, plain, rtol=1e-4, atol=1e-5)
    [compute] = engine.plain.step.traced.values()
    assert not isinstance(compute, torch.fx.GraphModule), "it was really compiled"
    assert kept_by_torch() > before, "the next process will not compile it again"


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
def test_code_is_compiled_for_one_shape() -> None:
    """Also where nothing in the graph says its shape; with open ones a ResNet took 1.7 times as long."""
    pictures = torch.arange(864.0).reshape(2, 3, 12, 12)
    graph = make_fx(lambda x: (F.max_pool2d(x.relu(), 2).sum(),))(pictures)
    (total,), [code] = run_and_get_code(lambda: compiled(graph, [pictures])(pictures))
    torch.testing.assert_close(total, graph(pictures)[0])
    assert not re.search(r"\bs\d+\b", code), "no size is a variable"


def test_a_step_that_does_not_compile_is_refused() -> None:
    graph = make_fx(torch.sin)(torch.ones(2))
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
        node.target = torch.ops.aten.mm.default
    with pytest.raises(InputError, match=r"compile does not work .* Set compile=false; torch says"):
        compiled(graph, [torch.ones(2)])


def test_without_a_compiler_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = CASES["synthetic"].study(10, device="cpu")
    spec, prepared = config.build(config.Tree(keys)), setting_of(keys)
    for found in (False, True):
        monkeypatch.setattr("fedskip.machine.has_compiler", lambda found=found: found)
        assert Machine.of(spec, prepared).compile == found
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no C++ compiler" in caplog.text


class Counting(nn.Module):
    """Its steps shrink with the batches it has seen in a visit."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        output: Tensor = self.linear(x) / self.seen
        return output


def test_counters_begin_anew_in_every_visit() -> None:
    """Or results would depend on which worker had which visit."""
    with rng.torch_scope("counting"):
        task = make_task(Counting(), pool((6,)), LOCAL)
    one, two = runs_of(task, [FedAvg()]), runs_of(task, [FedAvg()])
    train_together(Loop(task), one, 3)
    train_together(Loop(task, workers=2), two, 3)
    assert torch.equal(one[0].server.x, two[0].server.x)


def test_kernels_are_chosen_once_for_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's flags are the process's: workers that set them would undo each other's choice."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    inside = set()
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        task = task_of("perceptron")
        loss = task.loss

        def watched(output: Tensor, target: Tensor) -> Tensor:
            inside.add(torch.are_deterministic_algorithms_enabled())
            return loss(output, target)

        task = replace(task, loss=watched, arithmetic=Arithmetic("fp32", deterministic=False))
        for _ in range(5):
            runs = runs_of(task, [FedAvg(), FedProx(mu=0.5)])
            train_together(Loop(task, workers=2), runs, 2)
        assert inside == {False}
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(before)


# --- what engines refuse -------------------------------------------------------------------------------


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


def test_a_term_that_was_not_planned_for_is_refused() -> None:
    """Rather than dropped without a word."""
    task = task_of("perceptron")
    for method in (FedProx(), Scaffold()):
        [run] = runs_of(task, [method])
        with pytest.raises(ValueError, match="same kinds of terms in every round"):
            train(stacked_for(task, [run], Uses()), run, 1)


def test_batchnorm_with_short_batches_is_refused() -> None:
    task = normed(replace(LOCAL, last_batch="keep"))
    with pytest.raises(InputError, match="cannot be 'stacked' for BatchNorm with short batches"):
        Stacked(task, [2], compile=False)
    tracking = nn.InstanceNorm1d(1, track_running_stats=True)
    with rng.torch_scope("tracking"):
        net = nn.Sequential(nn.Unflatten(1, (1, 6)), tracking, nn.Flatten(), nn.Linear(6, 3))
    task = make_task(net, pool((6,)), replace(LOCAL, last_batch="keep"))
    with pytest.raises(InputError, match="cannot be 'stacked' for BatchNorm with short batches"):
        Stacked(task, [2], compile=False)


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


# --- routes --------------------------------------------------------------------------------------------


@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 12),
    epochs=st.integers(1, 4),
    last_batch=st.sampled_from(["drop", "keep"]),
    small_clients=st.sampled_from(["drop", "short"]),
    max_steps=st.none() | st.integers(1, 9),
)
def test_a_route_is_a_fresh_order_of_the_client_s_samples_each_epoch(
    size: int, batch: int, epochs: int, last_batch: Any, small_clients: Any, max_steps: int | None
) -> None:
    local = Local(
        batch=batch, epochs=epochs, last_batch=last_batch, small_clients=small_clients, max_steps=max_steps
    )
    mine = 100 + 3 * np.arange(size)
    if size < batch and last_batch == "drop" and small_clients == "drop":
        assert steps_of(size, local) == 0
        return
    whole = -(-size // batch) if last_batch == "keep" or size < batch else size // batch
    made = route(5, mine, local)
    assert made.steps == steps_of(size, local) == min(epochs * whole, max_steps or 10**6)
    assert made.batches.shape == (made.steps, batch)
    for start in range(0, made.steps - whole + 1, whole):
        epoch = made.batches[start : start + whole].ravel()
        used = epoch[epoch >= 0]
        assert len(set(used)) == len(used) == min(size, whole * batch)
        assert set(used) <= set(mine)
        assert (epoch[len(used) :] == -1).all(), "only the end of an epoch is filled up"


def test_epochs_differ_and_keys_decide() -> None:
    local = Local(batch=10, epochs=2)
    one, again, other = (route(key, np.arange(20), local).batches for key in (1, 1, 2))
    assert (one == again).all()
    assert (one != other).any()
    assert (one[:2] != one[2:]).any()


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("decay", ["constant", "cosine", "step(every=1, factor=0.1)"])
def test_a_is_the_weight_of_a_constant_gradient(rho: float, decay: str) -> None:
    """Roll the recursion out: v <- rho v + 1, y <- y - eta v, from y = 0."""
    made = route(
        0, np.arange(12), Local(lr=0.3, momentum=rho, batch=2, epochs=3, decay=decay), round=1, rounds=5
    )
    v = y = 0.0
    for eta in made.eta:
        v = rho * v + 1
        y -= eta * v
    assert made.a == pytest.approx(-y, rel=1e-12)


def test_a_with_a_constant_rate_is_eta_times_fednova_s() -> None:
    for tau, rho in ((1, 0.9), (7, 0.9), (500, 0.9), (7, 0.0)):
        closed = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
        assert momentum_sum(np.full(tau, 0.01), rho) == pytest.approx(0.01 * closed, rel=1e-12)


def test_the_rate_falls_within_a_visit_too() -> None:
    made = route(
        0, np.arange(4), Local(lr=2.0, batch=2, epochs=1, decay="inverse(half=1)"), round=3, rounds=9
    )
    assert made.eta == pytest.approx([2 / (1 + 3), 2 / (1 + 3.5)])


# --- tables --------------------------------------------------------------------------------------------

histograms = st.dictionaries(st.integers(1, 60), st.integers(1, 50), min_size=1, max_size=7).map(Counter)


def work(histogram: Counter[int], sizes: Sequence[int]) -> int:
    """Rows computed: each step takes the smallest table that fits."""
    return sum(steps * min(size for size in sizes if size >= rows) for rows, steps in histogram.items())


@given(histograms, st.integers(1, 8), st.sampled_from([0.0, 0.05, 0.15, 0.5]))
@settings(max_examples=150)
def test_table_sizes_are_the_fewest_that_will_do_and_the_best_of_their_number(
    histogram: Counter[int], limit: int, masked: float
) -> None:
    sizes = table_sizes(histogram, limit, masked)
    useful, largest = work(histogram, [*histogram]), max(histogram)

    def best(number: int) -> int:
        """The least work with so many tables, by trying all; sizes between those that occur cannot help."""
        rest = [size for size in histogram if size < largest]
        return min(work(histogram, [*chosen, largest]) for chosen in combinations(rest, number - 1))

    assert sizes == sorted(set(sizes))
    assert sizes[-1] == largest
    assert len(sizes) <= min(limit, len(histogram))
    assert work(histogram, sizes) == min(best(number) for number in range(1, len(sizes) + 1))
    if len(sizes) < min(limit, len(histogram)):
        assert work(histogram, sizes) * (1 - masked) <= useful * (1 + 1e-12)
    if len(sizes) > 1:
        assert best(len(sizes) - 1) * (1 - masked) > useful


def test_table_sizes_of_a_large_study() -> None:
    rows = rng.stream("tables").integers(1, 300, 2000)
    histogram = Counter(rows.tolist())
    sizes = table_sizes(histogram)
    assert 1 < len(sizes) <= SIZES == 8
    assert work(histogram, sizes) * (1 - MASKED) <= rows.sum()
    skewed = Counter(np.minimum(2 ** rng.stream("skewed").integers(0, 12, 2000), 1500).tolist())
    assert len(table_sizes(skewed, masked=0.0)) == SIZES, "never more, even if more would mask less"
    assert table_sizes(Counter()) == []


stretches = st.lists(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), max_size=3), max_size=3)


@given(stretches)
def test_busy_rows_are_those_of_a_simulation(runs: list[list[list[int]]]) -> None:
    """Tick by tick: a run starts a stretch when its last one has wholly ended."""
    expected: Counter[int] = Counter()
    left = [[list(stretch) for stretch in run] for run in runs]
    while any(left):
        busy = sum(steps > 0 for run in left if run for steps in run[0])
        expected[busy] += 1
        for run in left:
            if run:
                run[0] = [steps - 1 for steps in run[0]]
                if max(run[0]) <= 0:
                    run.pop(0)
    assert busy_rows([[np.array(stretch) for stretch in run] for run in runs]) == expected


def test_an_engine_is_planned_for_the_rows_that_will_be_there() -> None:
    task = task_of("perceptron")
    methods: list[Method] = [FedAvg(), FedAvg(period=3), FedProx(), Moon()]
    runs = [
        make_run(task, clients_of(), method, slots=3, seed=seed) for method in methods for seed in range(2)
    ]
    prepared, machine = (
        SimpleNamespace(task=task),
        SimpleNamespace(engine="stacked", compile=False, threads=1, streams=0, kernels=False),
    )
    engine: Any = make_engine(prepared, machine, runs)  # type: ignore[arg-type]
    assert engine.plain.sizes[-1] == 18
    assert engine.contrast.sizes[-1] == 6
    assert len(engine.plain.sizes) <= SIZES
    assert engine.plain.step.uses == Uses(pull=True)
    planned = {*engine.plain.sizes}
    train_together(engine, runs, 4)
    assert {*engine.plain.step.traced} <= planned, "no table was needed that was not planned"
    machine.engine, machine.workers = "loop", 2
    assert isinstance(make_engine(prepared, machine, runs), Loop)  # type: ignore[arg-type]


# --- as many rows as there is room for ------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3, 5])
def test_rows_beyond_the_limit_wait(limit: int) -> None:
    """They come out the same, and no batch is larger than it may be."""
    methods = [FedAvg(), FedProx(mu=0.5), Scaffold(), FedAvg(period=3)]
    task = task_of("perceptron")
    few, all_at_once = runs_of(task, methods), runs_of(task, methods)
    engine = stacked_for(task, few)
    engine.plain.limit, engine.plain.sizes = limit, [limit]
    train_together(engine, few, 6)
    assert max(engine.plain.step.traced) <= limit
    train_together(stacked_for(task, all_at_once), all_at_once, 6)
    assert_agree(few, all_at_once, rtol=1e-10, atol=1e-12)


def test_the_plan_knows_the_limit() -> None:
    assert limited(Counter({100: 10, 7: 2}), 40) == Counter({40: 20, 20: 10, 7: 2})
    assert limited(Counter({100: 10}), None) == Counter({100: 10})


@pytest.mark.parametrize("reverse", [False, True])
def test_the_table_with_the_least_room_rules(reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of("perceptron")
    runs = [make_run(task, clients_of(), m, slots=3, seed=s) for m in (FedAvg(), Moon()) for s in range(4)]
    room = {False: Memory(row=GIB, step=9 * GIB, free=100 * GIB), True: Memory(GIB, 30 * GIB, 100 * GIB)}
    asked = []

    def measured(table: Table, first: Visits, remembered: int, share: float) -> Memory:
        asked.append(remembered)
        return replace(room[table.step.uses.contrast], share=share)

    monkeypatch.setattr("fedskip.engine.measure", measured)
    monkeypatch.setattr("fedskip.engine.Stacked", lambda _, *args, **keys: Stacked(task, *args, **keys))
    there = SimpleNamespace(device=torch.device("cuda"), local=task.local)
    prepared: Any = SimpleNamespace(task=there, setting=SimpleNamespace(rounds=100))
    machine: Any = SimpleNamespace(engine="stacked", compile=False, threads=1, streams=0, kernels=False)
    engine: Any = make_engine(prepared, machine, runs[::-1] if reverse else runs)
    assert engine.rows == engine.plain.limit == engine.contrast.limit == 1
    assert {line.split(" of ")[0] for line in engine.needs} == {
        "up to 1 rows in a batch, 10.0", "up to 1 rows in a batch, 31.0",
    }  # fmt: skip
    assert asked == [4 * 3 * len(CLIENTS) * 8 * task.layout.size] * 2, "what MOON's clients remember"
    engine = make_engine(prepared, machine, runs, rows=1000)
    assert engine.rows is None, "a limit that is none"
    assert engine.plain.limit is None


def test_how_many_rows_fit() -> None:
    """A batched row needs its step's memory for itself; rows on streams share that of the streams."""
    batched = Memory(row=1 * GIB, step=3 * GIB, free=100 * GIB)
    streamed = replace(batched, streams=4)
    assert (batched.rows, streamed.rows) == (20, 68)
    assert batched(20) == streamed(68) == 80 * GIB
    assert replace(batched, free=1).rows == 1, (
        "a row too large for the card fails there, with torch's message"
    )


# --- rows that are computed one by one ------------------------------------------------------------------


@pytest.mark.parametrize("contrast", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_row_by_itself_is_a_row_of_a_batch(name: str, contrast: bool) -> None:
    """On a GPU the rows of large models run side by side on streams, without vmap."""
    task = task_of(name)
    [run] = runs_of(task, [Moon(mu=2.0) if contrast else FedAvg()], slots=1)
    visits = run.clients.begin(run.server.orders(0))
    found = []
    for alone in (False, True):
        engine = Stacked(task, [1], [1], compile=False)
        table = engine.contrast if contrast else engine.plain
        if alone:
            table.step.streams = [object()]  # type: ignore[list-item]
        rows = table.rows_of(visits, [0])
        index = torch.from_numpy(visits.routes[0].batches[:1])
        eta = torch.full((1, 1), 0.1, dtype=torch.float64)
        found.append(table.step._together(rows, index, eta, torch.zeros(1, dtype=torch.int64)))
    for key, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][key], rtol=1e-9, atol=1e-11, msg=key)


@pytest.mark.parametrize("name", ["perceptron", "cnn", "lstm"])
def test_bf16_is_near_fp32(name: str) -> None:
    """The model computes in bfloat16; weights, terms and merges do not."""
    engines = ("stacked",) if name == "lstm" else ("loop", "stacked")  # torch's LSTM has no bf16 on some CPUs
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


def test_bf16_with_batch_norm_needs_streams() -> None:
    task = replace(task_of("resnet50", dtype=torch.float32), arithmetic=Arithmetic("bf16"))
    with pytest.raises(InputError, match=r"streams must be 1 or more for BatchNorm in bf16.*streams=4"):
        Stacked(task, [2], compile=False)


# --- what a trace holds --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "compile", [False, pytest.param(True, marks=pytest.mark.skipif(not has_compiler(), reason="no compiler"))]
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


def test_the_pool_is_not_part_of_the_trace() -> None:
    """Batches are gathered before the traced step, so the trace holds no data."""
    task = task_of("perceptron")
    [run] = runs_of(task, [FedAvg()])
    engine = stacked_for(task, [run])
    train(engine, run, 1)
    [graph] = engine.plain.step.traced.values()
    assert isinstance(graph, torch.fx.GraphModule)
    held = [getattr(graph, node.target) for node in graph.graph.nodes if node.op == "get_attr"]
    assert all(t.numel() < task.samples.x.numel() for t in held)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "chunk"), [("perceptron", 2500), ("resnet50", 25)])
def test_chunks_of_an_evaluation_fit_a_cache(name: str, chunk: int) -> None:
    """Small activations come in many samples, large ones in few; and it is the same to the scores."""
    task = task_of(name)
    evaluator, models = Evaluator(task, stacked=False), task.layout.pack(task.module)[None]
    if name == "resnet50":
        evaluator._largest = 1 << 20  # of the real one, on CIFAR
    index = torch.arange(len(task.samples))
    assert evaluator._chunk(models, index) == chunk
    whole = evaluator(models, index.numpy())
    evaluator._largest = ACTIVATION
    parts = evaluator(models, index.numpy())
    np.testing.assert_allclose([whole.metric, whole.loss], [parts.metric, parts.loss], rtol=1e-12)
