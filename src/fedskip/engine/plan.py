"""How many rows a batched step may have: few sizes, so that little is compiled, and little is masked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

SIZES = 8  # each is a compile on a CPU, a captured graph on a GPU
MASKED = 0.12  # the share of the work that may go into rows that are not active


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
    """The same work where there is room for so many rows: the others wait for their turn."""
    found: Counter[int] = Counter()
    for rows, steps in histogram.items():
        turns, rest = divmod(rows, limit or rows)
        found[min(rows, limit or rows)] += turns * steps
        if rest:
            found[rest] += steps
    return found


def table_sizes(histogram: Counter[int], limit: int = SIZES, masked: float = MASKED) -> list[int]:
    """The fewest row counts, at most `limit`, that keep the masked share of the work small.

    Dynamic programming over the row counts that occur: cost[j] is the least work with the j-th as the
    largest table so far.

    >>> table_sizes(Counter({100: 10, 99: 10, 10: 80}))
    [10, 100]
    """
    counts = sorted(histogram)
    if not counts:
        return []
    steps = np.array([histogram[n] for n in counts], dtype=float)
    useful = float(steps @ counts)
    total = np.concatenate([[0.0], np.cumsum(steps)])
    rows = np.array(counts)
    cost = rows * total[1:]  # one table for all
    smaller = np.tril(np.ones((len(rows), len(rows)), dtype=bool), -1)
    back: list[np.ndarray] = []  # for each further table: the largest count that the smaller tables serve
    while cost[-1] * (1 - masked) > useful and len(back) + 1 < min(limit, len(rows)):
        # counts up to i as cheaply as before, those in (i, j] at rows[j]
        split = np.where(smaller, cost[None, :] + rows[:, None] * (total[1:, None] - total[None, 1:]), np.inf)
        back.append(np.where(split.min(1) < cost, split.argmin(1), -1))
        cost = np.minimum(cost, split.min(1))
    sizes, j = [counts[-1]], len(counts) - 1
    for before in reversed(back):
        if before[j] >= 0:
            j = int(before[j])
            sizes.append(counts[j])
    return sorted(sizes)
