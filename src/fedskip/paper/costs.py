"""One cost at a time, measured: seconds of the server and of a visit, bytes that clients and server hold.

Seconds are those that this process was computing: other work on the machine does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedskip.data.base import Arrays
from fedskip.engine import Engine, Job, Local, Task
from fedskip.engine.local import Route, route
from fedskip.federation import Clients, Orders, Replies, Server
from fedskip.methods import Method, Terms
from fedskip.models import build
from fedskip.models.measures import accuracy, cross_entropy
from fedskip.models.vector import Layout, on
from fedskip.rng import stream, torch_scope

CLIENT = 64  # samples: one batch of the paper


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
        return Task(module, Layout.of(module), cross_entropy, accuracy, pool, local)


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
    order = on(w.device, server.cohort(round))
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
    with Peak([server.w, server.x, orders.x, *server.state.values(), *replies.upload.values()]) as absorbing:
        server.absorb(orders, replies)
    with Peak([server.w, server.x, orders.x, *server.state.values(), *replies.upload.values()]) as merging:
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
        self.alive = {key: (seen, size) for key, (seen, size) in self.alive.items() if not seen.expired()}
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
        frozen = 2 * model if terms.contrast is not None else 0  # the received model, and the previous one
        return {
            "remembered_bytes": sum(rows.nbytes for rows in remembered.values()),
            "visit_bytes": sum(t.nbytes for t in extra) + frozen,
            "down_bytes": self.server.bytes_down // self.round,
            "up_bytes": self.server.bytes_up // self.round,
        }
