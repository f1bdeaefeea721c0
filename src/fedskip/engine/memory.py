"""How many rows fit a GPU: measured on a step of one row before the first round, then fixed for the study."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedskip.engine.base import Visits, current
from fedskip.engine.stacked import Table

SHARE = 0.8  # of the free memory, for rows; evaluation and merges need some, too
COPIES = 3  # of a row at the most: as laid out, where graphs read it, and while seats or graphs change
GIB = 1 << 30


@dataclass(frozen=True)
class Memory:
    """What rows take, in bytes."""

    row: int  # that each row keeps: weights, momentum and terms, a few times, and the model as received
    step: int  # that a step of one row needs while it is computed
    free: int  # on the GPU
    streams: int = 0  # steps of one row that are computed at a time; 0: all
    share: float = SHARE  # of the free memory that rows may take

    @property
    def rows(self) -> int:
        """How many rows fit."""
        room = int(self.share * self.free)
        if self.streams:
            return max(1, (room - self.streams * self.step) // self.row)
        return max(1, room // (self.row + self.step))

    def __call__(self, rows: int) -> int:
        """What so many rows take."""
        return rows * self.row + (min(rows, self.streams) if self.streams else rows) * self.step

    def line(self, rows: int) -> str:
        """What a study needs, for people.

        >>> Memory(row=1 << 20, step=9 << 20, free=100 * GIB).line(1000)
        'up to 1,000 rows in a batch, 9.8 of 100.0 GiB of GPU memory'
        """
        need, have = self(rows) / GIB, self.free / GIB
        return f"up to {rows:,} rows in a batch, {need:.1f} of {have:.1f} GiB of GPU memory"


def measure(table: Table, visits: Visits, remembered: int = 0, share: float = SHARE) -> Memory:
    """The memory of the rows of a table, from the first step of a visit.

    `remembered`: bytes that will go to what clients remember.
    """
    step = table.step
    rows, index, eta, count = table.opening(visits)
    device = rows["y"].device
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with torch.no_grad(), current(device), step.task.arithmetic.kernels():
        step.once(rows, index, eta, count)
    peak = torch.cuda.max_memory_allocated(device) - before
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = max(0, torch.cuda.mem_get_info(device)[0] + unused - remembered)
    row = COPIES * sum(t.nbytes for t in rows.values()) + rows["y"].nbytes
    return Memory(row, peak, free, len(step.streams), share)
