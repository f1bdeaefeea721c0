"""Ways to run the step give the same."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx

from fedskip.engine.stepper import Stopwatch, compiled, has_compiler
from fedskip.errors import InputError
from fedskip.methods import FedAvg, FedProx, Method, Scaffold
from tiny import (
    assert_agree,
    kept_by_torch,
    runs_of,
    stacked_for,
    task_of,
    train,
    train_together,
)  # fmt: skip


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
    [compute] = engine.stacks[False].stepper.code.values()
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


def test_a_stopwatch_counts_each_step_once_and_tells() -> None:
    """Also where recording a graph compiles its step, and where a graph is recorded again."""
    watch, told = Stopwatch(), list[tuple[int, bool]]()
    watch.notify = lambda rows: told.append((rows, watch.running))
    for rows in (7, 3, 7):
        with watch(rows, contrast=False), watch(1, contrast=False):
            assert watch.running
    with watch(7, contrast=True):
        before = watch.seconds
        assert before < watch.seconds, "it runs"
    assert watch.seconds == watch.seconds > before
    assert told == [(7, True), (0, False), (3, True), (0, False)] + [(7, True), (0, False)] * 2
    assert len(watch.begun) == 3


def test_a_stopwatch_stops_where_a_step_does_not_compile() -> None:
    watch = Stopwatch()
    with pytest.raises(InputError), watch(7, contrast=False):
        raise InputError("compile", "does not work")
    assert not watch.running


def test_the_pool_is_not_part_of_the_trace() -> None:
    """Batches are gathered before the traced step, so the trace holds no data."""
    task = task_of("perceptron")
    [run] = runs_of(task, [FedAvg()])
    engine = stacked_for(task, [run])
    train(engine, run, 1)
    [graph] = engine.stacks[False].stepper.code.values()
    assert isinstance(graph, torch.fx.GraphModule)
    held = [getattr(graph, node.target) for node in graph.graph.nodes if node.op == "get_attr"]
    assert all(t.numel() < task.samples.x.numel() for t in held)  # type: ignore[attr-defined]
