"""The loop is plain training, however many workers it has."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskip import rng
from fedskip.engine import Local, Loop, Task
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.local import route
from fedskip.methods import FedAvg, FedProx, Method, Moon, Scaffold
from tiny import (
    LOCAL,
    SLOTS,
    clients_of,
    dropped,
    make_task,
    normed,
    pool,
    runs_of,
    state_of,
    task_of,
    train,
    train_together,
)  # fmt: skip


def test_the_loop_is_plain_training() -> None:
    """As anyone would write it: a module, torch's SGD, the batches in order. Equal to the bit."""
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
        assert torch.equal(run.server.w[k], task.layout.pack(module))


def test_dropout_is_that_of_the_visit_and_its_step() -> None:
    """Step s of a visit uses the masks of the word mix(key, s): a plain loop that sets it comes out equal."""
    task = dropped(replace(LOCAL, epochs=3))
    [run] = runs_of(task, [FedAvg(period="never")])
    train(Loop(task), run, 1)
    module, without = copy.deepcopy(task.module).train(), copy.deepcopy(task.module).eval()
    key = rng.visit_key(0, 0, 0)
    for net in (module, without):
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        for number, batch in enumerate(route(key, clients_of()[0], task.local).batches):
            for name, buffer in net.named_buffers():
                assert name.endswith("word")
                buffer.copy_(rng.mix(rng.fold(torch.tensor(key)), number))
            x, y = task.samples.take(torch.from_numpy(batch))
            optimiser.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimiser.step()
    torch.testing.assert_close(run.server.w[0], task.layout.pack(module), rtol=1e-12, atol=1e-14)
    assert (run.server.w[0] - task.layout.pack(without)).abs().max() > 1e-3


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


@pytest.mark.parametrize(
    "task",
    [task_of("cnn", dtype=torch.float32), normed(dtype=torch.float32)],
    ids=["cnn", "BatchNorm"],
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
