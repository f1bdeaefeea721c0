"""How the stacked engine trains some runs: planned from their first rounds, before the first step."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from fedskip.engine.local import Local
from fedskip.engine.stacked.memory import SHARE, Footprint, measure
from fedskip.engine.stacked.plan import (
    CONTRAST_SIZES,
    MASKED,
    SIZES,
    STREAM_SIZES,
    WORTH,
    Plan,
    busy_rows,
    limited,
    stack_sizes,
)
from fedskip.engine.stacked.stack import Stack
from fedskip.engine.task import Job, Task
from fedskip.federation.run import Run

PLANNED = 16  # rounds of each run that the sizes are planned from


def make_plan(
    task: Task,
    runs: Sequence[Run],
    rounds: int,
    *,
    compile: bool = True,
    threads: int = 1,
    streams: int = 0,
    kernels: bool = False,
    rows: int | None = None,
) -> Plan:
    """The plan by which the stacked engine trains these runs, which are made for `rounds` rounds.

    Args:
        compile, threads, streams, kernels: as in `Plan`.
        rows: how many it may compute at a time; None: as many as fit a GPU, and all on a CPU. Where all
            fit, there is no limit.
    """
    first: dict[bool, Job] = {}  # by whether rows have a contrast
    stretches: dict[bool, list[list[np.ndarray]]] = {False: [], True: []}
    plan = Plan(compile=compile, threads=threads, streams=streams, kernels=kernels)
    for run in runs:
        orders = run.server.orders(0)
        terms, routes = run.clients.begin(orders)
        pull, linear, contrast = (t is not None for t in (terms.mu, terms.linear, terms.contrast))
        plan = replace(plan, pull=plan.pull or pull, linear=plan.linear or linear)
        first[contrast] = Job(orders.x, terms, routes)
        stretches[contrast].append(steps_ahead(run, task.local))
    busy: dict[bool, Counter[int]] = {
        contrast: busy_rows(stretches[contrast]) for contrast in (False, True)
    }
    most = {contrast: max(busy[contrast]) for contrast in first}
    if task.device.type == "cuda":
        footprints = _footprints(task, plan, runs, rounds, first)
        rows = rows or min(footprint.rows for footprint in footprints.values())
        needs = (fp.line(min(most[contrast], rows)) for contrast, fp in footprints.items())
        plan = replace(plan, needs=tuple(needs))
    limit = rows if rows is not None and rows < max(most.values()) else None
    plain, contrasted = (
        (SIZES - CONTRAST_SIZES, CONTRAST_SIZES) if len(first) > 1 else (SIZES, SIZES)
    )
    masked = MASKED
    if streams:
        plain, contrasted, masked = STREAM_SIZES, STREAM_SIZES, 0.0
    worth = 0.0  # of a size, in steps of a row over the rounds that the plan is made from
    if compile and task.device.type == "cpu":
        worth = WORTH * PLANNED / rounds
    return replace(
        plan,
        sizes=stack_sizes(limited(busy[False], limit), plain, masked, worth),
        contrast_sizes=stack_sizes(limited(busy[True], limit), contrasted, masked, worth),
        rows=limit,
    )


def _footprints(
    task: Task, plan: Plan, runs: Sequence[Run], rounds: int, first: dict[bool, Job]
) -> dict[bool, Footprint]:
    """What rows without and with a contrast take of the GPU, from the first steps of their visits."""
    remembered = sum(run.clients.most_bytes(rounds * run.server.slots) for run in runs)
    return {
        contrast: measure(Stack(task, plan, contrast), job, remembered, SHARE / len(first))
        for contrast, job in first.items()
    }


def steps_ahead(run: Run, local: Local) -> list[np.ndarray]:
    """The steps that each slot takes between two meetings, over the first rounds, (K,) each."""
    steps = [
        np.array(
            [local.steps(int(run.clients.sizes[client])) for client in run.server.cohort(round)]
        )
        for round in range(PLANNED)
    ]
    return [np.sum(steps[a:b], axis=0) for a, b in pairwise(run.meetings(PLANNED))]
