"""Engines train visits. `make_engine` gives the one that a machine is to use."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fedskip.engine.base import Engine, Task, Trained, Visits, Work, steps_of
from fedskip.engine.loop import Loop
from fedskip.engine.plan import SIZES, busy_rows, table_sizes
from fedskip.engine.stacked import Stacked
from fedskip.engine.step import Uses

if TYPE_CHECKING:
    from fedskip.federation import Run
    from fedskip.machine import Machine
    from fedskip.prepare import Prepared

__all__ = ["Engine", "Loop", "Stacked", "Task", "Trained", "Visits", "Work", "make_engine"]

CONTRAST_SIZES = 3  # of all the sizes, where only some rows have a contrast
PLANNED = 16  # rounds of each run that the table sizes are planned from


def make_engine(prepared: Prepared, machine: Machine, runs: Sequence[Run]) -> Engine:
    """The machine's engine for these runs, before their first round."""
    if machine.engine == "loop":
        return Loop(prepared.task, machine.workers)
    uses = Uses()
    planned: dict[bool, list[list[np.ndarray]]] = {False: [], True: []}  # by whether rows have a contrast
    for run in runs:
        terms = run.clients.begin(run.server.orders(0)).terms
        uses |= Uses(pull=terms.mu is not None, linear=terms.linear is not None)
        planned[terms.contrast is not None].append(_stretches(run, prepared.task))
    few = CONTRAST_SIZES if planned[False] and planned[True] else 0
    return Stacked(
        prepared.task,
        table_sizes(busy_rows(planned[False]), limit=SIZES - few),
        table_sizes(busy_rows(planned[True]), limit=few or SIZES),
        uses=uses,
        compile=machine.compile,
        threads=machine.threads,
    )


def _stretches(run: Run, task: Task) -> list[np.ndarray]:
    """The steps that each slot takes between two meetings, over the first rounds, (K,) each."""
    steps = [
        np.array([steps_of(int(run.clients.sizes[c]), task.local) for c in run.server.orders(round).clients])
        for round in range(PLANNED)
    ]
    if run.server.method.sync == "round":
        return steps
    meetings = [0, *(t for t in range(1, PLANNED) if run.server.period.merges(t)), PLANNED]
    return [np.sum(steps[a:b], axis=0) for a, b in pairwise(meetings)]
