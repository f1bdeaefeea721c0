"""The paper's count of costs, measured: time and memory of the server, time, storage and traffic of a client.

Over T rounds, with S the time of a shuffle and A that of an aggregation:

    O_FedSkip = O_FedAvg + ((Delta - 1) / Delta) T (S - A)

Seconds are those that this process was computing on one machine; only ratios within a run can be compared.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedskip.data.dataset import Arrays
from fedskip.engine import Engine, Job, Local, Loop, Task
from fedskip.engine.local import Route, route
from fedskip.federation import Clients, Orders, Replies, Server
from fedskip.methods import FedAvg, FedDyn, FedNova, FedProx, Method, Moon, Scaffold, Terms
from fedskip.models import build
from fedskip.models.metrics import cross_entropy, metrics
from fedskip.models.vector import Layout
from fedskip.rng import stream, torch_scope

CLIENT = 64  # samples: one batch of the paper
LARGE = 10**7  # numbers of a model that is measured with the fewest slots, and less often
PERIODS = (1, 3, 5, 10)
SLOTS = (10, 20)
SKIP = 5  # the period of methods that are composed with skipping
METHODS: tuple[Method, ...] = (FedAvg(), FedProx(), Scaffold(), Moon(), FedNova(), FedDyn())


@dataclass(frozen=True)
class Case:
    """A model of the zoo, the shape of its inputs, and the local steps of a visit that is timed."""

    name: str
    shape: tuple[int, ...]
    steps: int
    options: tuple[tuple[str, Any], ...] = ()
    vocabulary: int = 0  # of tokens; 0: inputs are real numbers

    def task(self) -> Task:
        """The model, and random data of one client."""
        with torch_scope("costs", self.name):
            module = build(self.name, **dict(self.options))
        draw, size = stream("costs", self.name), (CLIENT, *self.shape)
        x = draw.integers(0, self.vocabulary, size) if self.vocabulary else draw.normal(size=size)
        inputs = torch.from_numpy(x) if self.vocabulary else torch.from_numpy(x).float()
        local = Local(batch=CLIENT, epochs=self.steps)
        pool = Arrays(inputs, torch.zeros(CLIENT, dtype=torch.long))
        return Task(module, Layout.of(module), cross_entropy, metrics("accuracy"), pool, local)


CASES = (
    Case("perceptron", (60,), steps=50), Case("cnn", (3, 32, 32), steps=10),
    Case("cnn-femnist", (1, 28, 28), steps=10), Case("lstm", (80,), steps=3, vocabulary=80),
    Case("resnet50", (3, 32, 32), steps=1),
)  # fmt: skip
Costs = dict[str, Any]


def check(
    models: Sequence[str] = (), slots: Sequence[int] = SLOTS, rounds: int = 120, turns: int = 7
) -> dict[str, pd.DataFrame]:
    """Measure all costs: `server`, `rounds`, `clients`, `memory`, and `about` the machine.

    `rounds` is T. What is compared takes turns; numbers are medians. Large models get a quarter of the
    rounds, and at most three turns.
    """
    cases = [case for case in CASES if not models or case.name in models]
    server: list[Costs] = []
    over: list[Costs] = []
    clients: list[Costs] = []
    with one_thread():
        for case in cases:
            task = case.task()
            large = task.layout.size > LARGE
            often, long = (min(turns, 3), rounds // 4) if large else (turns, rounds)
            for count in slots[:1] if large else slots:
                costs, lines = server_times(case.name, task, count, long, often)
                server.append(costs)
                over += lines
            clients += client_costs(case, task, often)
        memory = [row for method in everything() for row in memories(cases[0], method, slots)]
    about = {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "threads": 1,
        "turns": turns,
    }
    found = {
        "server": server,
        "rounds": over,
        "clients": clients,
        "memory": memory,
        "about": [about],
    }
    return {name: pd.DataFrame(rows) for name, rows in found.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def everything() -> list[Method]:
    """The paper's methods, and each with skipping; FedAvg with skipping is FedSkip."""
    return [replace(method, period=period) for period in (1, SKIP) for method in METHODS]


def predicted(period: int, rounds: int, shuffle: float, aggregation: float) -> float:
    """What FedSkip's server takes more than FedAvg's.

    >>> predicted(5, 100, 0.5, 1.5)
    -80.0
    """
    return (period - 1) / period * rounds * (shuffle - aggregation)


def server_times(
    name: str, task: Task, slots: int, rounds: int, turns: int
) -> tuple[Costs, list[Costs]]:
    """Of a shuffle and of an aggregation; and of whole runs by period, beside what follows from the two.

    A is the time of a merge in FedAvg's run: ours, with the drift that it reports and K copies of the result.
    """
    server = make_server(task, FedAvg(), slots)
    single = [parts(server, round) for round in range(rounds)]
    cost = {part: median(found[part] for found in single) for part in single[0]}
    del server
    whole: dict[int, list[float]] = {period: [] for period in PERIODS}
    merges = []
    for _ in range(turns):
        for period, found in whole.items():
            took, merging = play(make_server(task, FedAvg(period=period), slots), rounds)
            found.append(took)
            if period == 1:
                merges.append(merging / rounds)
    cost["merge"] = median(merges)
    lines = [
        {
            "model": name, "slots": slots, "period": period, "rounds": rounds, "seconds": median(found),
            "difference": median(a - b for a, b in zip(found, whole[1], strict=True)),
            "predicted": predicted(period, rounds, cost["draw"], cost["merge"]),
            "predicted_moving": predicted(period, rounds, cost["move"], cost["merge"]),
        }
        for period, found in whole.items()
    ]  # fmt: skip
    return {"model": name, "numbers": task.layout.size, "slots": slots} | cost, lines


def client_costs(case: Case, task: Task, turns: int) -> list[Costs]:
    """Every method's visit as a multiple of FedAvg's of the same turn, and its bytes."""
    engine = Loop(task)  # one for all: it has three modules of its own
    parties = {method.label: Party(task, method, engine) for method in everything()}
    ratios: dict[str, list[float]] = {label: [] for label in parties}
    for _ in range(turns):
        took = {label: party.visit() for label, party in parties.items()}
        for label in parties:
            ratios[label].append(took[label] / took["FedAvg"])
    return [
        {"model": case.name, "method": label, "steps": case.steps, "ratio": median(ratios[label]),
         "ratio_low": min(ratios[label]), "ratio_high": max(ratios[label])} | party.bytes()
        for label, party in parties.items()
    ]  # fmt: skip


def memories(case: Case, method: Method, slots: Sequence[int]) -> list[Costs]:
    """Of the server, with each number of slots."""
    task = case.task()
    return [
        {"method": method.label, "slots": count} | server_memory(task, method, count)
        for count in slots
    ]


def beside(clients: pd.DataFrame) -> pd.DataFrame:
    """The models beside each other: a row for each method, its time with every model, and its bytes in models."""
    ratios = clients.pivot(index="method", columns="model", values="ratio")
    first = clients.drop_duplicates("method").set_index("method")
    model = first["down_bytes"]["FedAvg"]  # FedAvg sends the model and nothing else
    for kind in ("remembered", "visit", "down", "up"):
        ratios[kind] = first[f"{kind}_bytes"] / model
    order = [*clients["model"].unique(), "remembered", "visit", "down", "up"]
    return ratios.loc[clients["method"].unique(), order].reset_index()


# --- the server -----------------------------------------------------------------------------------------


def make_server(task: Task, method: Method, slots: int) -> Server:
    x = task.layout.pack(task.module)
    return Server(method, x, task.layout, clients=slots, slots=slots, seed=0)


def returned(server: Server, orders: Orders) -> Replies:
    """Replies of clients that have not trained: the server's work does not depend on what is in a model."""
    one, row = np.ones(len(orders.slots)), orders.x[:, : server.layout.trainable]
    upload = {f"delta_{name}": torch.zeros_like(row) for name in orders.sent}  # as SCAFFOLD's
    return Replies(orders.x, upload, one, one, one, orders.x.new_zeros(len(orders.slots)))


def play(server: Server, rounds: int) -> tuple[float, float]:
    """Seconds that the server works in so many rounds, and those of its merges."""
    began, merging = time.process_time(), 0.0
    for round in range(rounds):
        orders = server.orders(round)
        server.absorb(orders, returned(server, orders))
        if server.period.merges(round + 1):
            merging += seconds(partial(server.merge, round + 1))
    return time.process_time() - began, merging


def parts(server: Server, round: int) -> dict[str, float]:
    """Play a round, and give the seconds of a shuffle in two ways, and of the barest aggregation.

    `draw`: the order in which slots go to clients, which is all that ours does; `move`: the K models copied
    into that order; `average`: the weighted mean of the slots and nothing else.
    """
    orders = server.orders(round)
    server.absorb(orders, returned(server, orders))
    w, p = server.w, torch.full((server.slots,), 1 / server.slots)
    order = torch.as_tensor(server.cohort(round))
    return {
        "draw": seconds(lambda: server.cohort(round)),
        "move": seconds(lambda: w.index_select(0, order)),
        "average": seconds(lambda: p @ w),
    }


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def server_memory(task: Task, method: Method, slots: int) -> dict[str, float]:
    """How many models the server holds: between rounds, at most in a round, and what is needed in principle.

    In a round the K models on their way to and from clients are not counted. In principle a server that
    merges every round needs a running sum, one that skips needs its K slots; both the model last sent out.
    """
    server = make_server(task, method, slots)
    model = server.x.nbytes
    state = sum(t.nbytes for t in server.state.values()) / model
    orders = server.orders(0)
    replies = returned(server, orders)
    travelling = sum(t.nbytes for t in (orders.x, *replies.upload.values()))
    with Peak(
        [server.w, server.x, orders.x, *server.state.values(), *replies.upload.values()]
    ) as absorbing:
        server.absorb(orders, replies)
    with Peak(
        [server.w, server.x, orders.x, *server.state.values(), *replies.upload.values()]
    ) as merging:
        server.merge(1)
    held = sum(t.nbytes for t in (server.w, server.x, *server.state.values())) / model
    return {
        "held": held, "peak_skip": (absorbing.most - travelling) / model,
        "peak_merge": (merging.most - travelling) / model,
        "needed": 1 + state + (1 if server.period.merges(1) else slots),
    }  # fmt: skip


class Peak(TorchDispatchMode):
    """The most bytes that tensors hold at a time: those given, and all that are made inside."""

    def __init__(self, held: Sequence[Tensor]) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._note(held)
        self.most = self._now()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self._note(leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor))
        self.most = max(self.most, self._now())
        return found

    def _note(self, tensors: Any) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            seen = StorageWeakRef(storage)
            self.alive[seen.cdata] = seen, storage.nbytes()

    def _now(self) -> int:
        self.alive = {
            key: (seen, size) for key, (seen, size) in self.alive.items() if not seen.expired()
        }
        return sum(size for _, size in self.alive.values())


# --- a client -------------------------------------------------------------------------------------------


class Party:
    """A server with one slot and its one client, which has been visited before."""

    def __init__(self, task: Task, method: Method, engine: Engine) -> None:
        everyone = np.arange(CLIENT)

        def routes(key: int, client: int, round: int) -> Route:
            return route(key, everyone, task.local)

        self.server, self.engine, self.round = make_server(task, method, 1), engine, 0
        self.clients = Clients(method, task.layout, np.array([CLIENT]), routes, self.server.x)
        self.terms = Terms()
        self.visit()

    def visit(self) -> float:
        """One more visit; gives the seconds that it took the client."""
        orders = self.server.orders(self.round)
        with self.engine.open():
            began = time.process_time()
            self.terms, routes = self.clients.begin(orders)
            self.engine.join([Job(orders.x, self.terms, routes)])
            [trained] = self.engine.advance()
            replies = self.clients.end(orders, routes, trained.y, trained.loss)
            took = time.process_time() - began
        self.server.absorb(orders, replies)
        self.round += 1
        if self.server.period.merges(self.round):
            self.server.merge(self.round)
        return took

    def bytes(self) -> dict[str, int]:
        """Of one client: what it keeps between visits, what it needs beside its model in one, its traffic."""
        remembered, _ = self.clients.memory.save()
        terms, model = self.terms, self.server.x.nbytes
        extra = [t for t in (terms.anchor, terms.linear) if t is not None]
        frozen = (
            2 * model if terms.contrast is not None else 0
        )  # the received model, and the previous one
        return {
            "remembered_bytes": sum(rows.nbytes for rows in remembered.values()),
            "visit_bytes": sum(t.nbytes for t in extra) + frozen,
            "down_bytes": self.server.bytes_down // self.round,
            "up_bytes": self.server.bytes_up // self.round,
        }
