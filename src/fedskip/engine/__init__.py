"""Engines train visits. `make_engine` gives the one that a machine is to use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fedskip.engine.base import Engine, Task, Trained, Visits, Work, steps_of
from fedskip.engine.loop import Loop
from fedskip.engine.memory import SHARE, measure
from fedskip.engine.plan import SIZES, busy_rows, limited, table_sizes
from fedskip.engine.stacked import Stacked
from fedskip.engine.step import Uses

if TYPE_CHECKING:
    from fedskip.federation import Run
    from fedskip.machine import Machine
    from fedskip.prepare import Prepared

__all__ = ["Engine", "Loop", "Stacked", "Task", "Trained", "Visits", "Work", "make_engine"]

CONTRAST_SIZES = 3  # of all the sizes, where only some rows have a contrast
PLANNED = 16  # rounds of each run that the table sizes are planned from


def make_engine(prepared: Prepared, machine: Machine, runs: Sequence[Run], rows: int | None = None) -> Engine:
    """The machine's engine for these runs, before their first round.

    `rows`: how many may be in a batch; None: as many as fit a GPU, and all on a CPU. Where all fit, there is
    no limit.
    """
    task = prepared.task
    if machine.engine == "loop":
        return Loop(task, machine.workers)
    uses = Uses()
    planned: dict[bool, list[list[np.ndarray]]] = {False: [], True: []}  # by whether rows have a contrast
    visits: dict[bool, Visits] = {}
    for run in runs:
        first = run.clients.begin(run.server.orders(0))
        terms = first.terms
        uses |= replace(Uses.of(terms), contrast=False)
        visits[terms.contrast is not None] = first
        planned[terms.contrast is not None].append(_stretches(run, task))
    engine = Stacked(
        task,
        [],
        uses=uses,
        compile=machine.compile,
        threads=machine.threads,
        streams=machine.streams,
        kernels=machine.kernels,
    )
    sizes = dict.fromkeys(visits, SIZES)
    if len(visits) > 1:
        sizes = {False: SIZES - CONTRAST_SIZES, True: CONTRAST_SIZES}
    busy = {contrast: busy_rows(planned[contrast]) for contrast in visits}
    tables = {contrast: engine.contrast if contrast else engine.plain for contrast in visits}
    most = {contrast: max(busy[contrast]) for contrast in visits}
    if task.device.type == "cuda":
        remembered = sum(run.clients.most_bytes(prepared.setting.rounds * run.server.slots) for run in runs)
        memory = {c: measure(tables[c], visits[c], remembered, SHARE / len(visits)) for c in visits}
        rows = rows or min(found.rows for found in memory.values())
        engine.needs = [found.line(min(most[c], rows)) for c, found in memory.items()]
    engine.rows = rows if rows is not None and rows < max(most.values()) else None
    for contrast, table in tables.items():
        table.limit = engine.rows
        table.sizes = table_sizes(limited(busy[contrast], engine.rows), limit=sizes[contrast])
    return engine


def _stretches(run: Run, task: Task) -> list[np.ndarray]:
    """The steps that each slot takes between two meetings, over the first rounds, (K,) each."""
    steps = [
        np.array([steps_of(int(run.clients.sizes[c]), task.local) for c in run.server.cohort(round)])
        for round in range(PLANNED)
    ]
    return [np.sum(steps[a:b], axis=0) for a, b in pairwise(run.meetings(PLANNED))]
