"""Ways to run the step: traced and compiled for each number of rows; on a GPU recorded, or on streams.

Tracing keeps vmap and grad out of the inner loop, and gives every number of rows its own code, with no
guards to check and no limit on recompiling.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fedskip.engine.stacked.gradients import Gradients
from fedskip.engine.stacked.graph import Graphs
from fedskip.engine.stacked.plan import Plan
from fedskip.engine.stacked.step import STATE, Matrices, step
from fedskip.engine.task import Notify, Task
from fedskip.errors import InputError, first_line

Code = Callable[..., tuple[Tensor, ...]]
BLOCK = 256  # steps whose indices are sent to the device together


class Stopwatch:
    """Runs while a step is traced, compiled or recorded; it can be read at any time."""

    def __init__(self) -> None:
        self.begun: set[tuple[int, bool]] = (
            set()
        )  # steps, by their rows and whether these have a contrast
        self.running = False
        self.notify: Notify = lambda rows: (
            None
        )  # gets the rows of a step when it begins, and a 0 when it ends
        self._total, self._since = 0.0, 0.0

    @contextmanager
    def __call__(self, rows: int, contrast: bool) -> Iterator[None]:
        if self.running:  # recording a graph compiles its step
            yield
            return
        self.begun.add((rows, contrast))
        self._since, self.running = time.monotonic(), True
        self.notify(rows)
        try:
            yield
        finally:
            self.running = False
            self._total += time.monotonic() - self._since
            self.notify(0)

    @property
    def seconds(self) -> float:
        return self._total + (time.monotonic() - self._since if self.running else 0.0)


class Stepper:
    """Takes steps with the rows of a stack."""

    def __init__(
        self, task: Task, plan: Plan, contrast: bool = False, watch: Stopwatch | None = None
    ) -> None:
        self.task = task
        self.preparing = partial(
            watch or Stopwatch(), contrast=contrast
        )  # entered with the rows of a step
        self.in_place = (
            task.device.type == "cuda"
        )  # what a recorded graph reads lies at fixed addresses
        gradients = Gradients(
            task, contrast, alone=plan.streams > 0,
            patches=self.in_place and not plan.streams, kernels=plan.kernels,
        )  # fmt: skip
        self.step = partial(step, task, gradients)
        self.compile = plan.compile and not gradients.odd
        self.code: dict[int, Code] = {}  # by the number of rows
        self.streams = [torch.cuda.Stream(task.device) for _ in range(plan.streams)]
        self.graphs = None
        if self.in_place:
            self.graphs = Graphs(self.take, BLOCK, self.preparing, spaced_rows=plan.streams > 0)

    def advance(self, rows: Matrices, block: tuple[Tensor, Tensor, Tensor]) -> Matrices:
        """Take the steps of a block: index (s, n, B), eta (s, n, 1) and count (s, n)."""
        with self.task.arithmetic.kernels():
            if self.graphs is not None:
                return self.graphs(rows, block)
            for index, eta, count in zip(*block, strict=True):
                rows = self.take(rows, index, eta, count)
        return rows

    def take(self, rows: Matrices, index: Tensor, eta: Tensor, count: Tensor) -> Matrices:
        """Take one step: index (n, B), eta (n, 1) and count (n,)."""
        if not self.streams:
            return self._together(rows, index, eta, count)
        here = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(here)
        for i in range(len(index)):
            with torch.cuda.stream(self.streams[i % len(self.streams)]):
                one = {name: t[i : i + 1] for name, t in rows.items()}
                self._together(one, index[i : i + 1], eta[i : i + 1], count[i : i + 1])
        for stream in self.streams:
            here.wait_stream(stream)
        return rows

    def once(self, rows: Matrices, index: Tensor, eta: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        """One step, neither traced nor recorded, to try it or to measure it."""
        batch = self.task.samples.take(index.clamp(min=0))
        return self.step(rows, *batch, index, eta, count)

    def _together(self, rows: Matrices, index: Tensor, eta: Tensor, count: Tensor) -> Matrices:
        # gathered before the compiled part: torch's own kernel is twice as fast as a generated one
        short = self.task.local.short_batches
        batch = self.task.samples.take(index.clamp(min=0) if short else index)
        inputs = [*rows.values(), *batch, index, eta, count]
        if len(index) not in self.code:
            with self.preparing(len(index)):
                flat = partial(self._flat, list(rows))
                self.code[len(index)] = traced(flat, inputs, compile=self.compile)
        new = self.code[len(index)](*inputs)
        return rows if self.in_place else rows | dict(zip(STATE, new, strict=True))

    def _flat(self, names: list[str], *tensors: Tensor) -> tuple[Tensor, ...]:
        """The step as a function of tensors alone; on a GPU it writes its results where the rows lie."""
        rows = dict(zip(names, tensors, strict=False))
        new = self.step(rows, *tensors[len(names) :])
        if not self.in_place:
            return new
        for name, tensor in zip(STATE, new, strict=True):
            rows[name].copy_(tensor)
        return ()


def traced(function: Code, inputs: Sequence[Tensor], *, compile: bool) -> Code:
    """The function for just the shapes of these inputs."""
    graph = make_fx(function)(*inputs)
    if compile:
        return compiled(graph, inputs)
    graph.graph.eliminate_dead_code()  # words that nothing draws from, say
    graph.recompile()
    return graph


def compiled(graph: GraphModule, inputs: Sequence[Tensor]) -> Code:
    """Code of TorchInductor for just these shapes, which torch keeps on disk for the next process."""
    import torch._inductor  # seconds to import, so only where it is used
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # torch traces once more, with other strides than the tensors had here: what was a view may need a copy
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default
    graph.recompile()
    # the cache takes no graph without an environment for open shapes, which stays empty
    fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    shaped: list[Any] = [fake.from_tensor(tensor, static_shapes=True) for tensor in inputs]
    try:
        code: Code = torch._inductor.compile(graph, shaped, options={"size_asserts": False})
    except Exception as error:  # of the compiler, which has many kinds
        fix = f"set compile=false; torch says: {first_line(error)}"
        raise InputError("compile", "does not work for this model", True, fix) from error
    return code


def has_compiler() -> bool:
    """Whether TorchInductor will find a C++ compiler."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))
