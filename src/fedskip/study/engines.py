"""The engine of a group of runs; for the stacked one, the plan that follows from the runs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from fedskip.engine import Engine, Job, Local, Loop, Plan, Stacked
from fedskip.engine.stacked.memory import SHARE, Footprint, measure
from fedskip.engine.stacked.plan import (
    CONTRAST_SIZES,
    MASKED,
    SIZES,
    STREAM_SIZES,
    WORTH,
    busy_rows,
    limited,
    stack_sizes,
)
from fedskip.engine.stacked.stack import Stack
from fedskip.federation import Run
from fedskip.records.provenance import Facts
from fedskip.study.machine import Machine
from fedskip.study.prepare import Prepared

PLANNED = 16  # rounds of each run that the sizes are planned from


Sizes = tuple[Sequence[int], Sequence[int]]  # numbers of rows, of those without and with a contrast


def make_engine(
    prepared: Prepared,
    machine: Machine,
    runs: Sequence[Run],
    rows: int | None = None,
    planned: Sizes | None = None,
) -> Engine:
    """The machine's engine for these runs, before their first round.

    `planned`: the sizes that they began with, if they did: a study that goes on for longer keeps them.
    """
    if machine.engine == "loop":
        return Loop(prepared.task, machine.workers)
    plan = make_plan(prepared, machine, runs, rows)
    if planned is not None:
        plan = replace(plan, sizes=planned[0], contrast_sizes=planned[1])
    return Stacked(prepared.task, plan)


def noted_sizes(machine: Facts, group: int, groups: int) -> Sizes | None:
    """The sizes of a group, if they were noted for as many groups."""
    noted = [machine.get(name) for name in ("sizes", "contrast_sizes")]
    found = [sizes[group] for sizes in noted if isinstance(sizes, list) and len(sizes) == groups]
    whole = all(isinstance(sizes, list) and all(type(n) is int for n in sizes) for sizes in found)
    return (found[0], found[1]) if len(found) == len(noted) and whole else None


def make_plan(prepared: Prepared, machine: Machine, runs: Sequence[Run], rows: int | None = None) -> Plan:
    """How the stacked engine is to train these runs.

    `rows`: how many it may compute at a time; None: as many as fit a GPU, and all on a CPU. Where all fit,
    there is no limit.
    """
    first: dict[bool, Job] = {}  # by whether rows have a contrast
    stretches: dict[bool, list[list[np.ndarray]]] = {False: [], True: []}
    plan = Plan(
        compile=machine.compile, threads=machine.threads, streams=machine.streams, kernels=machine.kernels
    )
    for run in runs:
        orders = run.server.orders(0)
        terms, routes = run.clients.begin(orders)
        pull, linear, contrast = (t is not None for t in (terms.mu, terms.linear, terms.contrast))
        plan = replace(plan, pull=plan.pull or pull, linear=plan.linear or linear)
        first[contrast] = Job(orders.x, terms, routes)
        stretches[contrast].append(steps_ahead(run, prepared.task.local))
    busy: dict[bool, Counter[int]] = {contrast: busy_rows(stretches[contrast]) for contrast in (False, True)}
    most = {contrast: max(busy[contrast]) for contrast in first}
    if prepared.device.type == "cuda":
        footprints = _footprints(prepared, plan, runs, first)
        rows = rows or min(found.rows for found in footprints.values())
        needs = (found.line(min(most[contrast], rows)) for contrast, found in footprints.items())
        plan = replace(plan, needs=tuple(needs))
    limit = rows if rows is not None and rows < max(most.values()) else None
    plain, contrasted = (SIZES - CONTRAST_SIZES, CONTRAST_SIZES) if len(first) > 1 else (SIZES, SIZES)
    masked = MASKED
    if machine.streams:
        plain, contrasted, masked = STREAM_SIZES, STREAM_SIZES, 0.0
    worth = 0.0  # of a size, in steps of a row over the rounds that the plan is made from
    if machine.compile and prepared.device.type == "cpu":
        worth = WORTH * PLANNED / prepared.setting.rounds
    return replace(
        plan,
        sizes=stack_sizes(limited(busy[False], limit), plain, masked, worth),
        contrast_sizes=stack_sizes(limited(busy[True], limit), contrasted, masked, worth),
        rows=limit,
    )


def _footprints(
    prepared: Prepared, plan: Plan, runs: Sequence[Run], first: dict[bool, Job]
) -> dict[bool, Footprint]:
    """What rows without and with a contrast take of the GPU, from the first steps of their visits."""
    rounds = prepared.setting.rounds
    remembered = sum(run.clients.most_bytes(rounds * run.server.slots) for run in runs)
    return {
        contrast: measure(Stack(prepared.task, plan, contrast), job, remembered, SHARE / len(first))
        for contrast, job in first.items()
    }


def steps_ahead(run: Run, local: Local) -> list[np.ndarray]:
    """The steps that each slot takes between two meetings, over the first rounds, (K,) each."""
    steps = [
        np.array([local.steps(int(run.clients.sizes[client])) for client in run.server.cohort(round)])
        for round in range(PLANNED)
    ]
    return [np.sum(steps[a:b], axis=0) for a, b in pairwise(run.meetings(PLANNED))]
