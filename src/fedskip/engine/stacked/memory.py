"""How many rows fit a GPU: measured on a step of one row before the first round, then fixed for the study."""

from dataclasses import dataclass

import torch

from fedskip.engine.stacked.stack import Stack
from fedskip.engine.task import Job

SHARE = 0.8  # of the free memory, for rows; evaluation and merges need some, too
COPIES = (
    3  # of a row at the most: as laid out, where graphs read it, and while seats or graphs change
)
GIB = 1 << 30


@dataclass(frozen=True)
class Footprint:
    """What rows take of a GPU's memory, in bytes."""

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

    def of(self, rows: int) -> int:
        """What this number of rows takes."""
        return rows * self.row + (min(rows, self.streams) if self.streams else rows) * self.step

    def line(self, rows: int) -> str:
        """What a study needs, for people.

        >>> Footprint(row=1 << 20, step=9 << 20, free=100 * GIB).line(1000)
        'up to 1,000 rows at a time, 9.8 of 100.0 GiB of GPU memory'
        """
        need, have = self.of(rows) / GIB, self.free / GIB
        return f"up to {rows:,} rows at a time, {need:.1f} of {have:.1f} GiB of GPU memory"


def measure(stack: Stack, job: Job, remembered: int = 0, share: float = SHARE) -> Footprint:
    """The memory of the rows of a stack, from the first step of a visit.

    `remembered`: bytes that will go to what clients remember.
    """
    stepper = stack.stepper
    rows, index, eta, count = stack.opening(job)
    device = rows["y"].device
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with torch.no_grad(), torch.cuda.device(device), stack.task.arithmetic.kernels():
        stepper.once(rows, index, eta, count)
    peak = torch.cuda.max_memory_allocated(device) - before
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = max(0, torch.cuda.mem_get_info(device)[0] + unused - remembered)
    row = COPIES * sum(t.nbytes for t in rows.values()) + rows["y"].nbytes
    return Footprint(row, peak, free, len(stepper.streams), share)
