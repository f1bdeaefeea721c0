"""What the stacked engine has to know before its first step: made from the runs, stored with the study."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# numbers of rows; each is a compile on a CPU, a captured graph on a GPU
SIZES = 8
CONTRAST_SIZES = 3  # of all the sizes, where only some rows have a contrast
STREAM_SIZES = 20  # on streams, where rows share the code of one: each is a graph, none a compile
# steps of a row that another size must save on a CPU; compiling it takes about as long
WORTH = 150_000
MASKED = 0.12  # the share of the work that may go into rows that are not active
SHARE = 0.8  # of a GPU's free memory, for rows; evaluation and merges need some, too
GIB = 1 << 30


@dataclass(frozen=True)
class Plan:
    """How rows are stacked. The same plan gives the same bits."""

    # numbers of rows that are computed at a time: of those without a contrast, and of those with one
    sizes: Sequence[int] = ()
    contrast_sizes: Sequence[int] = ()
    pull: bool = False  # whether some runs have mu and an anchor
    linear: bool = False  # whether some have a linear term
    rows: int | None = None  # the most at a time, where memory or the study sets a limit
    compile: bool = True
    threads: int = 1
    streams: int = 0  # on which rows are computed side by side; 0: all together
    kernels: bool = False  # small convolutions and recurrent layers by kernels of our own
    needs: tuple[str, ...] = ()  # memory, in words


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
        return rows * self.row + min(rows, self.streams or rows) * self.step

    def line(self, rows: int) -> str:
        """What a study needs, for people.

        >>> Footprint(row=1 << 20, step=9 << 20, free=100 * GIB).line(1000)
        'up to 1,000 rows at a time, 9.8 of 100.0 GiB of GPU memory'
        """
        need, have = self.of(rows) / GIB, self.free / GIB
        return f"up to {rows:,} rows at a time, {need:.1f} of {have:.1f} GiB of GPU memory"


def busy_rows(runs: Sequence[Sequence[np.ndarray]]) -> Counter[int]:
    """How many steps are taken with how many busy rows.

    `runs[i][t]` holds the steps of the visits of run i in its t-th stretch; a run starts a stretch when
    its last one has wholly ended, and no run waits for another.
    """
    ends = []  # (time, +1 or -1 busy rows)
    for stretches in runs:
        clock = 0
        for steps in stretches:
            ends += [(clock, len(steps))] + [(clock + int(s), -1) for s in steps]
            clock += int(max(steps, default=0))
    histogram: Counter[int] = Counter()
    busy, before = 0, 0
    for time, change in sorted(ends):
        histogram[busy] += time - before
        busy, before = busy + change, time
    del histogram[0]
    return +histogram


def limited(histogram: Counter[int], limit: int | None) -> Counter[int]:
    """The same work where at most `limit` rows are computed at a time: the others wait for their turn."""
    limited_counts: Counter[int] = Counter()
    for rows, steps in histogram.items():
        turns, rest = divmod(rows, limit or rows)
        limited_counts[min(rows, limit or rows)] += turns * steps
        if rest:
            limited_counts[rest] += steps
    return limited_counts


def stack_sizes(
    histogram: Counter[int], limit: int = SIZES, masked: float = MASKED, worth: float = 0.0
) -> tuple[int, ...]:
    """The fewest numbers of rows, at most `limit`, that keep the masked share of the work small.

    None is added that saves less than `worth` steps of a row. Dynamic programming over the numbers that
    occur: cost[j] is the least work with the j-th as the largest size so far.

    >>> stack_sizes(Counter({100: 10, 99: 10, 10: 80}))
    (10, 100)
    >>> stack_sizes(Counter({100: 10, 99: 10, 10: 80}), worth=10_000)  # the 10 saves 80 * 90 = 7,200
    (100,)
    """
    counts = sorted(histogram)
    if not counts:
        return ()
    steps = np.array([histogram[n] for n in counts], dtype=float)
    useful = float(steps @ counts)
    total = np.concatenate([[0.0], np.cumsum(steps)])
    rows = np.array(counts)
    cost = rows * total[1:]  # one size for all
    smaller = np.tril(np.ones((len(rows), len(rows)), dtype=bool), -1)
    # for each further size: the largest number that the smaller sizes serve
    back: list[np.ndarray] = []
    while cost[-1] * (1 - masked) > useful and len(back) + 1 < min(limit, len(rows)):
        # numbers up to i as cheaply as before, those in (i, j] at rows[j]
        split = cost[None, :] + rows[:, None] * (total[1:, None] - total[None, 1:])
        split = np.where(smaller, split, np.inf)
        if cost[-1] - split[-1].min() < worth:
            break
        back.append(np.where(split.min(1) < cost, split.argmin(1), -1))
        cost = np.minimum(cost, split.min(1))
    sizes, j = [counts[-1]], len(counts) - 1
    for before in reversed(back):
        if before[j] >= 0:
            j = int(before[j])
            sizes.append(counts[j])
    return tuple(sorted(sizes))
