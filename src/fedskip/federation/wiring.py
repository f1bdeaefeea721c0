"""A federation wired in one call: a task, its runs, and the plan by which the stacked engine trains them.

Studies, benchmarks, the contract, the tests and Flower's sites are wired here. On a server whose clients are
elsewhere, `Server` stands alone.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from fedskip.data import Partition
from fedskip.data.dataset import Dataset, Samples, TestTransform, TrainTransform
from fedskip.engine.arithmetic import EXACT, Arithmetic
from fedskip.engine.local import Local, Route, route
from fedskip.engine.plan import (
    CONTRAST_SIZES,
    MASKED,
    SHARE,
    SIZES,
    STREAM_SIZES,
    WORTH,
    Plan,
    busy_rows,
    limited,
    stack_sizes,
)
from fedskip.engine.stacked import Stack
from fedskip.engine.task import Job, Task
from fedskip.engine.upload_filters import UploadFilter
from fedskip.errors import InputError, require
from fedskip.federation.clients import Clients
from fedskip.federation.run import Run
from fedskip.federation.server import Server
from fedskip.methods.base import Method
from fedskip.models import key_dropout
from fedskip.models.metrics import Measure, Metric, metrics
from fedskip.models.metrics import loss as named_loss
from fedskip.models.vector import Layout

ClientSamples = Partition | Sequence[np.ndarray]  # the pool indices of each client
Routes = Callable[[int, int, int], Route]  # the steps of a visit, by its key, client and round
PLANNED = 16  # rounds of each run that the sizes of stacks are planned from


def make_task(
    module: nn.Module,
    data: Dataset | Samples,
    local: Local,
    *,
    loss: str | Measure = "cross_entropy",
    metric: str | Measure | tuple[Metric, ...] = "accuracy",
    device: str | torch.device = "cpu",
    arithmetic: Arithmetic = EXACT,
    full_batches: bool = False,
) -> Task:
    """What is learned: a model, its loss and metrics, and the samples, all on one device.

    Args:
        module: the model as it starts; it is copied.
        data: a data set, or its samples alone where they need no transforms.
        local: how a client trains.
        loss: its name, or a function that gives one number per sample.
        metric: its name, a function of that kind, or several metrics of which the first is the headline.
        arithmetic: the precision, and whether sums repeat their bits.
        full_batches: whether every client is known to fill a batch.
    """
    device, dtype = torch.device(device), arithmetic.dtype
    module = key_dropout(copy.deepcopy(module)).to(device, dtype)
    train_transform: TrainTransform | None = None
    test_transform: TestTransform | None = None
    if isinstance(data, Dataset):
        train_transform, test_transform = data.train_transform, data.test_transform
        data = data.samples
    if dtype != torch.float32:  # which transforms give
        train_transform, test_transform = (
            transform and (lambda *given, give=transform: give(*given).to(dtype))
            for transform in (train_transform, test_transform)
        )
    samples = data.to(device, dtype)
    rule = "must give samples"
    require("data.samples.to", hasattr(samples, "take"), rule, type(samples).__name__)
    return Task(
        module, Layout.of(module), named_loss(loss), metrics(metric), samples, local,
        train_transform, test_transform, arithmetic, full_batches=full_batches,
    )  # fmt: skip


def make_run(
    task: Task,
    clients: ClientSamples,
    method: Method,
    *,
    cohort: int,
    seed: int = 0,
    rounds: int | None = None,
    cohort_policy: str = "uniform",
    start: Tensor | None = None,
    fresh: Callable[[], Tensor] | None = None,
    routes: Routes | None = None,
    upload_filter: UploadFilter | None = None,
    guard: bool = False,
    name: str = "",
    eval_every: int = 1,
    keep_slots: bool = False,
) -> Run:
    """A run of one method before its first round.

    Args:
        task: what is learned.
        clients: the samples of each client, as pool indices: a `Partition`, or a list of arrays.
        method: how clients train and slots merge, such as `FedAvg(period=5)`.
        cohort: K, the clients that are visited in a round.
        seed: decides who is visited when, and the batches. Equal seeds pair methods.
        rounds: that the run is made for. A cosine decay depends on it, and a run that never merges is
            evaluated after the last one.
        cohort_policy: `uniform`, `fixed` or `cyclic`, see `draw_cohort`.
        start: the first model as a vector, (P,); by default the task's module as it is.
        fresh: gives another first model, for methods that start their state at random.
        routes: gives the steps of visits, where several runs share them.
        upload_filter, guard: see `Clients`.
        name: by default the method and the seed.
        eval_every, keep_slots: see `Run`.
    """
    require("clients", len(clients) > 0, "must be the samples of each client; there are none")
    rule = f"must be from 1 to {len(clients)}, the number of clients"
    require("cohort", 1 <= cohort <= len(clients), rule, cohort)
    x = task.layout.pack(task.module) if start is None else start
    server = Server(
        method, x, task.layout, clients=len(clients), slots=cohort, seed=seed, policy=cohort_policy,
        fresh=fresh,
    )  # fmt: skip
    return Run(
        server,
        make_clients(
            task, clients, method, x, rounds=rounds, routes=routes, upload_filter=upload_filter,
            guard=guard,
        ),
        name=name or f"{method.label}.s{seed}",
        eval_every=eval_every,
        rounds=rounds,
        keep_slots=keep_slots,
    )  # fmt: skip


def make_clients(
    task: Task,
    clients: ClientSamples,
    method: Method,
    like: Tensor,
    *,
    rounds: int | None = None,
    routes: Routes | None = None,
    upload_filter: UploadFilter | None = None,
    guard: bool = False,
) -> Clients:
    """The clients' half of a run; `like`: a vector on the device and in the precision of models."""
    local = task.local
    sizes = clients.sizes if isinstance(clients, Partition) else np.array([*map(len, clients)])
    if sizes.min() < local.fewest:
        client = int(sizes.argmin())
        rule = f"must fit every client; client {client} has {sizes[client]} samples"
        fix = "use a smaller one, or Local(small_clients='short')"
        raise InputError("local.batch", rule, local.batch, fix)
    return Clients(
        method, task.layout, sizes, routes or make_routes(clients, local, rounds), like,
        upload_filter=upload_filter, guard=guard,
    )  # fmt: skip


def make_routes(clients: ClientSamples, local: Local, rounds: int | None, kept: int = 0) -> Routes:
    """The steps of visits to these clients; the last `kept` are remembered for runs that share them."""
    if rounds is None and local.decay.startswith("cosine"):
        raise InputError("rounds", "must be given with a cosine decay, which depends on it")

    @functools.lru_cache(maxsize=kept)
    def routes(key: int, client: int, round: int) -> Route:
        return route(key, clients[client], local, round, rounds or 1)

    return routes


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
    # by whether rows have MOON's contrast
    first: dict[bool, Job] = {}
    stretches: dict[bool, list[list[np.ndarray]]] = {False: [], True: []}
    plan = Plan(compile=compile, threads=threads, streams=streams, kernels=kernels)
    for run in runs:
        orders = run.server.orders(0)
        terms, routes = run.clients.begin(orders)
        pull, linear, contrast = (t is not None for t in (terms.mu, terms.linear, terms.contrast))
        plan = replace(plan, pull=plan.pull or pull, linear=plan.linear or linear)
        first[contrast] = Job(orders.x, terms, routes)
        stretches[contrast].append(steps_ahead(run, task.local))
    busy = {contrast: busy_rows(stretches[contrast]) for contrast in (False, True)}
    most = {contrast: max(busy[contrast]) for contrast in first}
    if task.device.type == "cuda":
        remembered = sum(run.clients.most_bytes(rounds * run.server.slots) for run in runs)
        footprints = {
            contrast: Stack(task, plan, contrast).footprint(job, remembered, SHARE / len(first))
            for contrast, job in first.items()
        }
        rows = rows or min(footprint.rows for footprint in footprints.values())
        needs = (fp.line(min(most[contrast], rows)) for contrast, fp in footprints.items())
        plan = replace(plan, needs=tuple(needs))
    limit = rows if rows is not None and rows < max(most.values()) else None
    numbers = {False: SIZES, True: SIZES}  # of sizes
    masked = MASKED
    if len(first) > 1:
        numbers = {False: SIZES - CONTRAST_SIZES, True: CONTRAST_SIZES}
    if streams:
        numbers, masked = {False: STREAM_SIZES, True: STREAM_SIZES}, 0.0
    worth = 0.0  # of a size, in steps of a row over the rounds that the plan is made from
    if compile and task.device.type == "cpu":
        worth = WORTH * PLANNED / rounds
    sizes, contrast_sizes = (
        stack_sizes(limited(busy[contrast], limit), numbers[contrast], masked, worth)
        for contrast in (False, True)
    )
    return replace(plan, sizes=sizes, contrast_sizes=contrast_sizes, rows=limit)


def steps_ahead(run: Run, local: Local) -> list[np.ndarray]:
    """The steps that each slot takes between two meetings, over the first rounds, (K,) each."""
    steps = [
        np.array(
            [local.steps(int(run.clients.sizes[client])) for client in run.server.cohort(round)]
        )
        for round in range(PLANNED)
    ]
    return [np.sum(steps[a:b], axis=0) for a, b in pairwise(run.meetings(PLANNED))]
