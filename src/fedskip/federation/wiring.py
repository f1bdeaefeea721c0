"""A federation wired in one call: a task and its runs, from data with clients, a method and a model.

Studies, benchmarks, the contract, the tests and Flower's sites are wired here. On a server whose clients are
elsewhere, `Server` stands alone.
"""

import copy
import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedskip.data import Partition
from fedskip.data.dataset import Dataset, Samples, TestTransform, TrainTransform
from fedskip.engine.arithmetic import EXACT, Arithmetic
from fedskip.engine.local import Local, Route, route
from fedskip.engine.task import Task
from fedskip.engine.upload_filters import UploadFilter
from fedskip.errors import InputError, require
from fedskip.federation.clients import Clients
from fedskip.federation.run import Run
from fedskip.federation.server import Server
from fedskip.methods.base import Method
from fedskip.models import key_dropout
from fedskip.models.losses import Measure
from fedskip.models.losses import loss as named_loss
from fedskip.models.metrics import Metric, metrics
from fedskip.models.vector import Layout

ClientSamples = Partition | Sequence[np.ndarray]  # the pool indices of each client
Routes = Callable[[int, int, int], Route]  # the steps of a visit, by its key, client and round


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
    device = torch.device(device)
    module = key_dropout(copy.deepcopy(module)).to(device, arithmetic.dtype)
    train_transform: TrainTransform | None = None
    test_transform: TestTransform | None = None
    if isinstance(data, Dataset):
        train_transform = in_dtype(arithmetic.dtype, data.train_transform)
        test_transform = in_dtype(arithmetic.dtype, data.test_transform)
        data = data.samples
    samples = data.to(device, arithmetic.dtype)
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
    if rounds is None and task.local.decay.startswith("cosine"):
        raise InputError("rounds", "must be given with a cosine decay, which depends on it")
    x = task.layout.pack(task.module) if start is None else start
    server = Server(
        method, x, task.layout, clients=len(clients), slots=cohort, seed=seed, policy=cohort_policy,
        fresh=fresh,
    )  # fmt: skip
    return Run(
        server,
        make_clients(
            task, clients, method, x, rounds=rounds or 1, routes=routes, upload_filter=upload_filter,
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
    rounds: int = 1,
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


def make_routes(clients: ClientSamples, local: Local, rounds: int, kept: int = 0) -> Routes:
    """The steps of visits to these clients; the last `kept` are remembered for runs that share them."""

    @functools.lru_cache(maxsize=kept)
    def routes(key: int, client: int, round: int) -> Route:
        return route(key, clients[client], local, round, rounds)

    return routes


def in_dtype(
    dtype: torch.dtype, transform: Callable[..., Tensor] | None
) -> Callable[..., Tensor] | None:
    """The transform, with its results in `dtype`."""
    if transform is None or dtype == torch.float32:
        return transform
    return lambda *arguments: transform(*arguments).to(dtype)
