"""A step of many rows as a CUDA graph: recorded once for each number of rows, then replayed.

Everything that a step reads lies at fixed addresses: the rows, the indices of a block of steps, and the
number of the step, which the graph itself counts up. So a block of steps is one copy to the device and as
many replays, and the host waits for nothing.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from fedskip.engine.stacked.step import STATE, Matrices

ALIGNED = 16  # bytes that cuDNN and compiled kernels read at a time
Step = Callable[[Matrices, Tensor, Tensor, Tensor], object]


class Graphs:
    """The graphs of one step function; the largest number of rows is fixed."""

    def __init__(
        self,
        step: Step,
        steps: int,
        recording: Callable[[int], AbstractContextManager[None]],
        spaced_rows: bool = False,
    ) -> None:
        """`step(rows, index, eta, count)` changes the rows in place; a block has at most `steps` steps.

        `recording`: entered with the rows of a graph while it is recorded.
        `spaced_rows`: each begins where kernels for one tensor expect it, as the step takes them one by one.
        """
        self.step, self.steps, self.like = step, steps, spaced if spaced_rows else torch.zeros_like
        self.recording = recording
        self.rows: Matrices = {}
        self.block: tuple[Tensor, ...] = ()
        self.at = torch.empty(0)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.pool: Any = None

    def __call__(self, rows: Matrices, block: tuple[Tensor, ...]) -> Matrices:
        """Take the steps of a block: index (s, n, B), eta (s, n, 1) and count (s, n), on the host or not."""
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

    def _lay_out(self, rows: Matrices, block: tuple[Tensor, ...]) -> None:
        device = rows["y"].device
        self.graphs, self.pool = {}, None
        self.rows = {name: self.like(t) for name, t in rows.items()}
        self.block = tuple(
            torch.zeros((self.steps * part[0].numel(),), dtype=part.dtype, device=device)
            for part in block
        )
        self.shapes = [part.shape[2:] for part in block]
        self.at = torch.zeros(1, dtype=torch.int64, device=device)

    def _first(self, n: int) -> Matrices:
        return {name: t[:n] for name, t in self.rows.items()}

    def _block(self, n: int) -> list[Tensor]:
        """The places of the block for n rows: each a contiguous start of its buffer."""
        sized = zip(self.block, self.shapes, strict=True)
        return [flat[: self.steps * n * s.numel()].view(self.steps, n, *s) for flat, s in sized]

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
