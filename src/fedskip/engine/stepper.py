"""Ways to run the step: traced and compiled for each number of rows; on a GPU recorded, or on streams.

Tracing keeps vmap and grad out of the inner loop, and gives every number of rows its own code, with no
guards to check and no limit on recompiling.
"""

import functools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fedskip.engine.gradients import Gradients
from fedskip.engine.plan import Plan
from fedskip.engine.step import STATE, Matrices, step
from fedskip.engine.task import Notify, Task
from fedskip.errors import InputError, first_line

Code = Callable[..., tuple[Tensor, ...]]
Block = tuple[Tensor, ...]  # index (s, n, B), eta (s, n, 1) and count (s, n) of some steps
BLOCK = 256  # steps whose indices are sent to the device together
ALIGNED = 16  # bytes that cuDNN and compiled kernels read at a time


class Stopwatch:
    """Runs while a step is traced, compiled or recorded; it can be read at any time."""

    def __init__(self) -> None:
        # steps, by their rows and whether these have a contrast
        self.begun: set[tuple[int, bool]] = set()
        self.running = False
        # gets the rows of a step when it begins, and a 0 when it ends
        self.notify: Notify = lambda rows: None
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
        # entered with the rows of a step
        self.preparing = partial(watch or Stopwatch(), contrast=contrast)
        on_gpu = task.device.type == "cuda"
        self.in_place = on_gpu  # what a recorded graph reads lies at fixed addresses
        gradients = Gradients(
            task, contrast, alone=plan.streams > 0,
            patches=on_gpu and not plan.streams, kernels=plan.kernels,
        )  # fmt: skip
        self.step = partial(step, task, gradients)
        self.compile = plan.compile and not gradients.odd
        self.code: dict[int, Code] = {}  # by the number of rows
        self.streams = [torch.cuda.Stream(task.device) for _ in range(plan.streams)]
        self.graphs = Graphs(self.take, self.preparing, plan.streams > 0) if on_gpu else None

    def advance(self, rows: Matrices, block: Block) -> Matrices:
        """Take the steps of a block."""
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


class Graphs:
    """The step of many rows as CUDA graphs: recorded once for each number of rows, then replayed.

    Everything that a step reads lies at fixed addresses: the rows, the indices of a block of steps, and the
    number of the step, which the graph itself counts up. So a block of steps is one copy to the device and as
    many replays, and the host waits for nothing. The largest number of rows is fixed.
    """

    def __init__(
        self,
        step: Callable[[Matrices, Tensor, Tensor, Tensor], object],
        recording: Callable[[int], AbstractContextManager[None]],
        spaced_rows: bool = False,
    ) -> None:
        """`step(rows, index, eta, count)` changes the rows in place.

        `recording`: entered with the rows of a graph while it is recorded.
        `spaced_rows`: each begins where kernels for one tensor expect it, as the step takes them one by one.
        """
        self.step, self.recording = step, recording
        self.like = spaced if spaced_rows else torch.zeros_like
        self.rows: Matrices = {}
        self.block: Block = ()
        self.at = torch.empty(0)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.pool: Any = None

    def __call__(self, rows: Matrices, block: Block) -> Matrices:
        """Take the steps of a block, which lies on the host or not."""
        n, steps = len(rows["y"]), len(block[0])
        if not self.rows or n > len(self.rows["y"]):
            self._lay_out(rows, block)
        for name, here in self._first(n).items():
            if here.data_ptr() != rows[name].data_ptr():
                here.copy_(rows[name])
        for here, part in zip(self._block(n), block, strict=True):
            here[:steps].copy_(part, non_blocking=True)
        if n not in self.graphs:
            torch.cuda.synchronize()
            with self.recording(n):
                self._record(n)
        self.at.zero_()
        for _ in range(steps):
            self.graphs[n].replay()
        return self._first(n)

    def _lay_out(self, rows: Matrices, block: Block) -> None:
        device = rows["y"].device
        self.graphs, self.pool = {}, None
        self.rows = {name: self.like(t) for name, t in rows.items()}
        self.block = tuple(
            torch.zeros((BLOCK * part[0].numel(),), dtype=part.dtype, device=device)
            for part in block
        )
        self.shapes = [part.shape[2:] for part in block]
        self.at = torch.zeros(1, dtype=torch.int64, device=device)

    def _first(self, n: int) -> Matrices:
        return {name: t[:n] for name, t in self.rows.items()}

    def _block(self, n: int) -> list[Tensor]:
        """The places of the block for n rows: each a contiguous start of its buffer."""
        sized = zip(self.block, self.shapes, strict=True)
        return [flat[: BLOCK * n * s.numel()].view(BLOCK, n, *s) for flat, s in sized]

    def _record(self, n: int) -> None:
        here = self._first(n)
        kept = {name: here[name].clone() for name in STATE}
        side = _side(torch.cuda.current_device())
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiles, loads kernels and makes cuBLAS's workspaces
            for _ in range(2):
                self.at.zero_()
                self._once(n)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=side):
            self._once(n)
        self.pool = self.pool or graph.pool()
        self.graphs[n] = graph
        for name, t in kept.items():
            here[name].copy_(t)

    def _once(self, n: int) -> None:
        rows = self._first(n)
        index, eta, count = (part.index_select(0, self.at)[0] for part in self._block(n))
        self.step(rows, index, eta, count)
        self.at += 1


@functools.cache
def _side(device: int) -> torch.cuda.Stream:
    """The one stream on which graphs are recorded: torch keeps 64 MiB for cuBLAS with every stream."""
    return torch.cuda.Stream(device)


def spaced(tensor: Tensor) -> Tensor:
    """Zeros in the shape of a tensor; the rows of a matrix begin at multiples of 16 bytes."""
    if tensor.dim() != 2:
        return torch.zeros_like(tensor)
    n, width = tensor.shape
    unit = ALIGNED // tensor.element_size()
    return tensor.new_zeros((n, -(-width // unit) * unit))[:, :width]


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
