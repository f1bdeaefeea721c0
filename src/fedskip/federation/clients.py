"""The clients' half of a run: their routes, and what each of them remembers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.engine.local import Route
from fedskip.engine.upload_filters import UploadFilter
from fedskip.errors import InputError
from fedskip.federation.server import Orders, Replies, Saved
from fedskip.methods.base import MODEL, Method, State, Visit
from fedskip.methods.terms import Terms
from fedskip.models.vector import Layout, on


class Memory:
    """What clients remember: one row for each client that has been visited, none for the others."""

    def __init__(self, widths: dict[str, int], like: Tensor) -> None:
        self.place: dict[int, int] = {}  # client -> row
        self.rows = {name: like.new_zeros(0, width) for name, width in widths.items()}

    def recall(self, clients: np.ndarray) -> tuple[State, np.ndarray]:
        """The rows of some clients, zeros where there is none, and which have none."""
        first = np.array([int(client) not in self.place for client in clients])
        rows_of = [self.place.get(int(client), 0) for client in clients]
        state = {}
        for name, rows in self.rows.items():
            if not len(rows):
                state[name] = rows.new_zeros(len(clients), rows.shape[1])
                continue
            visited = on(rows.device, ~first)[:, None]
            state[name] = torch.where(visited, rows.index_select(0, on(rows.device, rows_of)), 0.0)
        return state, first

    def keep(self, clients: np.ndarray, state: State) -> None:
        for client in clients:
            self.place.setdefault(int(client), len(self.place))
        at = [self.place[int(client)] for client in clients]
        for name, new in state.items():
            rows = self.rows[name]
            if len(self.place) > len(rows):  # doubling keeps the copying linear in the rows
                spare = max(len(self.place), 2 * len(rows)) - len(rows)
                rows = torch.cat([rows, rows.new_zeros(spare, rows.shape[1])])
            rows.index_copy_(0, on(rows.device, at), new)
            self.rows[name] = rows

    def save(self) -> Saved:
        tensors = {name: rows[: len(self.place)] for name, rows in self.rows.items()}
        return tensors, {"clients": list(self.place)}

    def restore(self, tensors: State, notes: dict[str, Any]) -> None:
        self.rows = dict(tensors)
        self.place = {client: row for row, client in enumerate(notes["clients"])}


class Clients:
    """The clients' half of a run: their sizes, their routes and what they remember."""

    def __init__(
        self,
        method: Method,
        layout: Layout,
        sizes: np.ndarray,
        route: Callable[[int, int, int], Route],
        like: Tensor,
        *,
        guard: bool = False,
        upload_filter: UploadFilter | None = None,
    ) -> None:
        """The clients before the first round, who remember nothing.

        Args:
            sizes: the samples of each client, (N,).
            route: gives the steps of a visit, by its key, client and round.
            like: a vector on the device and in the precision of models.
            guard: whether a client whose visit ends in NaN or infinity forgets it, and sends no reply.
            upload_filter: what a client does to a model before it uploads it.
        """
        self.method, self.layout, self.sizes, self.route = method, layout, sizes, route
        self.guard, self.upload_filter = guard, upload_filter
        self.omega = sizes * (len(sizes) / sizes.sum())
        width = {"trainable": layout.trainable, "model": layout.size}
        self.memory = Memory({name: width[kind] for name, kind in method.remembers.items()}, like)

    def most_bytes(self, visits: int) -> int:
        """The most that memory takes after some visits: while it grows it has three times its rows."""
        row = sum(rows.shape[1] * rows.element_size() for rows in self.memory.rows.values())
        return 3 * row * min(visits, len(self.sizes))

    def begin(self, orders: Orders) -> tuple[Terms, list[Route]]:
        """What the method adds to the training of these visits, and the steps of each."""
        routes = [
            self.route(key, int(c), orders.round)
            for key, c in zip(orders.keys, orders.clients, strict=True)
        ]
        memory, visit = self._facts(orders, routes)
        terms = self.method.begin(orders.x[:, : self.layout.trainable], memory, orders.sent, visit)
        return terms, routes

    def end(self, orders: Orders, routes: Sequence[Route], y: Tensor, loss: Tensor) -> Replies:
        """What the clients send back; they remember the rest.

        Args:
            orders, routes: as they began.
            y: the models after training, (k, P).
            loss: the sum of the batch losses of each, (k,).
        """
        of, d = None, self.layout.trainable
        if self.guard:  # a GPU has to wait for the answer
            sound = (y.isfinite().all(1) & loss.isfinite()).cpu().numpy()
            of = None if sound.all() else np.flatnonzero(sound)
        if of is not None:
            index = on(y.device, of)
            orders, routes = orders.take(of), [routes[k] for k in of.tolist()]
            y, loss = y.index_select(0, index), loss.index_select(0, index)
        upload: State = {}
        if routes:
            if self.upload_filter is not None:
                y = self.upload_filter(orders.clients, orders.keys, orders.x, y)
            memory, visit = self._facts(orders, routes)
            kept, upload = self.method.end(orders.x[:, :d], y[:, :d], memory, orders.sent, visit)
            models = {name for name, kind in self.method.remembers.items() if kind == MODEL}
            if kept.keys() != self.method.remembers.keys() - models:
                declared = sorted(self.method.remembers.keys() - models)
                rule = f"holds {self.method.label}, whose end must give {declared} to remember"
                fix = "`remembers` and `end` must name the same ones"
                raise InputError("methods", rule, sorted(kept), fix)
            self.memory.keep(orders.clients, kept | dict.fromkeys(models, y))
        steps = np.array([route.steps for route in routes])
        a = np.array([route.a for route in routes])
        return Replies(y, upload, self.sizes[orders.clients], steps, a, loss, of)

    def _facts(self, orders: Orders, routes: Sequence[Route]) -> tuple[State, Visit]:
        memory, first = self.memory.recall(orders.clients)
        steps, a = [route.steps for route in routes], [route.a for route in routes]
        visit = Visit(orders.x, self.omega[orders.clients], steps, a, first)
        for name, kind in self.method.remembers.items():
            if kind == MODEL:  # until it has one, the received: some modules make NaN of all zeros
                memory[name] = torch.where(visit.first, orders.x, memory[name])
        return memory, visit
