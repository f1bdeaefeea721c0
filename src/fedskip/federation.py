"""One run: cohort -> visits -> absorb -> merge or skip. It knows no device and no network.

The server owns K slots, the rows of `w`. In every round slot k visits client `cohort[k]`; on a skip round
the rows simply stay where they are and meet other clients next, which is the paper's shuffle-and-scatter.
When a period ends, the slots merge and every row becomes the model that is broadcast.

`Server` and `Clients` exchange `Orders` and `Replies` and nothing else, so a network fits between them.
`Run` plays both in one process and hands the training to an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.engine.base import Route, Trained, Visits
from fedskip.methods.base import MODEL, Federation, Method, State, Visit
from fedskip.rng import stream, visit_key
from fedskip.schedule import Period
from fedskip.stack import Layout

FLOAT = 4  # bytes of a number on the wire

Saved = tuple[State, dict[str, Any]]  # tensors, and plain numbers for JSON


def draw_cohort(policy: str, seed: int, round: int, clients: int, slots: int) -> np.ndarray:
    """The ordered sample of K of N clients that the slots visit in a round (0-based), (K,).

    `uniform` is drawn anew every round and never sorted: its order is the shuffle. `fixed` keeps slot k
    with client k; `cyclic` moves every slot on to the next client.
    """
    if policy == "uniform":
        return stream(seed, "cohort", round).choice(clients, slots, replace=False, shuffle=True)
    if policy == "fixed":
        return np.arange(slots)
    return (np.arange(slots) + round) % clients


@dataclass(frozen=True, eq=False)
class Orders:
    """What the server sends in a round: slot `slots[i]` visits client `clients[i]`."""

    round: int  # 0-based
    slots: np.ndarray  # (k,)
    clients: np.ndarray  # (k,)
    keys: Sequence[int]  # the visit keys
    x: Tensor  # (k, P)
    sent: State  # what the method sends along

    def take(self, ks: Sequence[int]) -> Orders:
        """Some of the orders."""
        index = torch.as_tensor(ks, device=self.x.device)
        return replace(
            self, slots=self.slots[ks], clients=self.clients[ks], keys=[self.keys[k] for k in ks],
            x=self.x.index_select(0, index),
        )  # fmt: skip


@dataclass(frozen=True)
class Replies:
    """What comes back for some orders, row by row."""

    y: Tensor  # (k, P)
    upload: State  # (k, ...) each
    samples: np.ndarray  # (k,) n_i
    steps: np.ndarray  # (k,)
    a: np.ndarray  # (k,) see Visit.a
    loss: Tensor  # (k,) summed over the steps


@dataclass(frozen=True)
class Outcome:
    """What there is to evaluate after a merge (or, without merges, now and then)."""

    round: int  # rounds done
    merges: int
    evaluated: Tensor | None  # (P,); None: there was no merge, the slots speak for themselves
    broadcast: Tensor | None  # (P,) where it differs from `evaluated`
    slots: Tensor | None  # (K, P) before the merge, where asked for
    train_loss: Tensor
    drift_mean: Tensor
    drift_broadcast: Tensor
    bytes_down: int
    bytes_up: int
    final: bool = False  # an extra merge after the last round, outside the schedule


class Server:
    """The server's half of a run."""

    def __init__(
        self,
        method: Method,
        x: Tensor,
        layout: Layout,
        *,
        clients: int,
        slots: int,
        seed: int,
        policy: str = "uniform",
        fresh: Callable[[], Tensor] | None = None,
    ) -> None:
        self.method, self.layout, self.seed, self.policy = method, layout, seed, policy
        self.period = Period.parse(method.period)
        self.slots = slots
        zeros = x.new_zeros(layout.trainable)
        self.federation = Federation(clients, zeros, lambda: (fresh() if fresh else x)[: layout.trainable])
        self.x = x  # (P,) the model last broadcast
        self.w = x.expand(slots, -1).clone()  # (K, P)
        self.state = method.start(self.federation)
        self.seen = np.zeros(slots)  # samples each slot has seen since the last merge
        self.a = np.zeros(slots)
        self.loss, self.steps = x.new_zeros(slots), np.zeros(slots)
        self.merges = self.bytes_down = self.bytes_up = 0

    def orders(self, round: int, slots: Sequence[int] | None = None) -> Orders:
        """Where the slots (default all) go in a round, and what they carry."""
        which = np.arange(self.slots) if slots is None else np.asarray(slots)
        clients = draw_cohort(self.policy, self.seed, round, self.federation.clients, self.slots)[which]
        keys = [visit_key(self.seed, round, int(client)) for client in clients]
        x = self.w.index_select(0, torch.as_tensor(which, device=self.w.device))
        return Orders(round, which, clients, keys, x, self.method.sends(self.state))

    def absorb(self, orders: Orders, replies: Replies) -> None:
        """Take in what came back. An order without a reply leaves its slot as it was."""
        d, where = self.layout.trainable, torch.as_tensor(orders.slots, device=self.w.device)
        x, y = orders.x[:, :d], replies.y[:, :d]
        self.state = self.method.absorb(self.state, x, y, replies.upload, self.federation)
        self.w.index_copy_(0, where, replies.y)
        self.loss.index_add_(0, where, replies.loss)
        self.seen[orders.slots] += replies.samples
        self.steps[orders.slots] += replies.steps
        self.a[orders.slots] += replies.a
        model, visits = self.layout.size, len(orders.slots)
        self.bytes_down += FLOAT * visits * (model + sum(t.numel() for t in orders.sent.values()))
        self.bytes_up += FLOAT * (visits * model + sum(t.numel() for t in replies.upload.values()))

    def merge(self, round: int, *, keep_slots: bool = False, final: bool = False) -> Outcome:
        """End the period. A slot without an accepted visit is left out; without any, x stays."""
        d, taking_part = self.layout.trainable, np.flatnonzero(self.seen)
        rows = torch.as_tensor(taking_part, device=self.w.device)
        w, p = self.w.index_select(0, rows), self._column(self.seen[taking_part] / max(self.seen.sum(), 1.0))
        self.merges += 1
        if len(rows):
            rest = p @ w[:, d:]
            merged = self.method.merge(
                self.state, self.x[:d], w[:, :d], p, self._column(self.a[taking_part])[:, None]
            )
            self.state = merged.server
            evaluated = torch.cat([merged.evaluated, rest])
            same = merged.broadcast is merged.evaluated
            broadcast = evaluated if same else torch.cat([merged.broadcast, rest])
        else:
            evaluated = broadcast = self.x
        outcome = self._outcome(round, w[:, :d], p, evaluated, keep_slots, final)
        if broadcast is not evaluated:
            outcome = replace(outcome, broadcast=broadcast)
        self.x = broadcast
        self.w = broadcast.expand(self.slots, -1).clone()
        self.seen, self.a, self.steps = np.zeros(self.slots), np.zeros(self.slots), np.zeros(self.slots)
        self.loss = torch.zeros_like(self.loss)
        return outcome

    def look(self, round: int) -> Outcome:
        """The slots as they are, for runs that never merge."""
        p = self._column(self.seen / max(self.seen.sum(), 1.0))
        return self._outcome(round, self.w[:, : self.layout.trainable], p, None, True, False)

    def _outcome(
        self, round: int, w: Tensor, p: Tensor, evaluated: Tensor | None, keep_slots: bool, final: bool
    ) -> Outcome:
        mean, x = p @ w, self.x[: self.layout.trainable]
        return Outcome(
            round, self.merges, evaluated, None,
            slots=self.w.clone() if keep_slots else None,
            train_loss=self.loss.sum() / max(self.steps.sum(), 1.0),
            drift_mean=p @ (w - mean).square().sum(1),
            drift_broadcast=p @ (w - x).square().sum(1),
            bytes_down=self.bytes_down, bytes_up=self.bytes_up, final=final,
        )  # fmt: skip

    def _column(self, numbers: np.ndarray) -> Tensor:
        return torch.as_tensor(numbers, dtype=self.w.dtype, device=self.w.device)

    def save(self) -> Saved:
        """The server's state between two rounds; slots that are all equal are kept once, as x."""
        tensors = {"x": self.x, "loss": self.loss, **{f"state.{name}": t for name, t in self.state.items()}}
        if self.seen.any():
            tensors["w"] = self.w
        numbers = {name: getattr(self, name).tolist() for name in ("seen", "a", "steps")}
        return tensors, numbers | {name: getattr(self, name) for name in ("merges", "bytes_down", "bytes_up")}

    def restore(self, tensors: State, notes: dict[str, Any]) -> None:
        self.x, self.loss = tensors["x"], tensors["loss"]
        self.w = tensors["w"] if "w" in tensors else self.x.expand(self.slots, -1).clone()
        self.state = {name[6:]: t for name, t in tensors.items() if name.startswith("state.")}
        for name in ("seen", "a", "steps"):
            setattr(self, name, np.array(notes[name]))
        for name in ("merges", "bytes_down", "bytes_up"):
            setattr(self, name, notes[name])


class Memory:
    """What clients remember: one row for each client that has been visited, none for the others."""

    def __init__(self, widths: dict[str, int], like: Tensor) -> None:
        self.place: dict[int, int] = {}  # client -> row
        self.rows = {name: like.new_zeros(0, width) for name, width in widths.items()}

    def recall(self, clients: np.ndarray) -> tuple[State, np.ndarray]:
        """The rows of some clients, zeros where there is none, and which have none."""
        first = np.array([int(client) not in self.place for client in clients])
        found = [self.place.get(int(client), 0) for client in clients]
        state = {}
        for name, rows in self.rows.items():
            if not len(rows):
                state[name] = rows.new_zeros(len(clients), rows.shape[1])
                continue
            known = torch.as_tensor(~first, device=rows.device)[:, None]
            state[name] = torch.where(known, rows[torch.as_tensor(found, device=rows.device)], 0.0)
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
            rows[torch.as_tensor(at, device=rows.device)] = new
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
        self, method: Method, layout: Layout, sizes: np.ndarray, route: Callable[[int, int, int], Route], like: Tensor
    ) -> None:
        """`route(key, client, round)` gives the steps of a visit."""
        self.method, self.layout, self.sizes, self.route = method, layout, sizes, route
        self.omega = sizes * (len(sizes) / sizes.sum())
        width = {"trainable": layout.trainable, "model": layout.size}
        self.memory = Memory({name: width[kind] for name, kind in method.remembers.items()}, like)

    def begin(self, orders: Orders) -> Visits:
        """What the engine is to train."""
        routes = [self.route(key, int(c), orders.round) for key, c in zip(orders.keys, orders.clients, strict=True)]
        memory, visit = self._facts(orders, routes)
        terms = self.method.begin(orders.x[:, : self.layout.trainable], memory, orders.sent, visit)
        return Visits(orders.x, terms, routes)

    def end(self, orders: Orders, routes: Sequence[Route], trained: Trained) -> Replies:
        """What the clients send back; they remember the rest."""
        d = self.layout.trainable
        memory, visit = self._facts(orders, routes)
        kept, upload = self.method.end(orders.x[:, :d], trained.y[:, :d], memory, orders.sent, visit)
        kept = kept | {name: trained.y for name, kind in self.method.remembers.items() if kind == MODEL}
        self.memory.keep(orders.clients, kept)
        steps = np.array([route.steps for route in routes])
        a = np.array([route.a for route in routes])
        return Replies(trained.y, upload, self.sizes[orders.clients], steps, a, trained.loss)

    def _facts(self, orders: Orders, routes: Sequence[Route]) -> tuple[State, Visit]:
        memory, first = self.memory.recall(orders.clients)

        def column(numbers: Any, dtype: torch.dtype = orders.x.dtype) -> Tensor:
            return torch.as_tensor(numbers, dtype=dtype, device=orders.x.device)[:, None]

        steps, a = [route.steps for route in routes], [route.a for route in routes]
        return memory, Visit(column(self.omega[orders.clients]), column(steps), column(a), column(first, torch.bool))


class Run:
    """Server and clients in one process: a source of visits for an engine.

    A method that needs every round's results starts a round with all slots together. Otherwise a slot goes
    straight on to its next client and waits for the others only where they meet: at merges, at evaluations
    of runs that never merge, and at `until`.
    """

    def __init__(self, server: Server, clients: Clients, *, look_every: int = 1, keep_slots: bool = False) -> None:
        self.server, self.clients = server, clients
        self.look_every, self.keep_slots = look_every, keep_slots
        self.round = 0  # rounds that all slots have done
        self.meeting = 0  # the round after which all slots are together again
        self.at = np.zeros(server.slots, dtype=int)  # rounds that each slot has done
        self.busy = np.zeros(server.slots, dtype=bool)
        self.orders: dict[Visits, Orders] = {}  # of the visits under way
        self.ended: list[tuple[list[int], Trained]] = []  # visits of a round that is not complete yet

    def ready(self, until: int) -> list[Visits]:
        """The visits that may start now, in a run that goes on until so many rounds are done."""
        if not self.busy.any() and self.round < until:
            self.meeting = self._next_meeting(until)
        elif self.server.method.sync == "round":
            return []
        free = ~self.busy & (self.at < self.meeting)
        return [self._start(int(round), np.flatnonzero(free & (self.at == round))) for round in np.unique(self.at[free])]

    def done(self, visits: Visits, ks: list[int], trained: Trained) -> Outcome | None:
        """Some visits have ended; gives what is to be evaluated, if anything is."""
        orders = self.orders[visits]
        if self.server.method.sync == "round":
            self.ended.append((ks, trained))
            if sum(len(ks) for ks, _ in self.ended) < len(orders.slots):
                return None
            ks, trained = _in_order(self.ended)
            self.ended = []
        returned, routes = orders.take(ks), [visits.routes[k] for k in ks]
        self.server.absorb(returned, self.clients.end(returned, routes, trained))
        self.at[returned.slots] += 1
        self.busy[returned.slots] = False
        if (self.at[orders.slots] > orders.round).all():
            del self.orders[visits]
        if (self.at < self.meeting).any():
            return None
        self.round = self.meeting
        if self.server.period.merges(self.round):
            return self.server.merge(self.round, keep_slots=self.keep_slots)
        return self.server.look(self.round) if self._looks(self.round) else None

    def save(self) -> Saved:
        """All of the run, at a round where its slots are together."""
        assert not self.busy.any() and not self.orders, "slots are still on their way"
        server, server_notes = self.server.save()
        memory, memory_notes = self.clients.memory.save()
        tensors = {f"server.{k}": t for k, t in server.items()} | {f"memory.{k}": t for k, t in memory.items()}
        return tensors, {"round": self.round, "server": server_notes, "memory": memory_notes}

    def restore(self, tensors: State, notes: dict[str, Any]) -> None:
        """Go on from what `save` gave."""
        parts: dict[str, State] = {"server": {}, "memory": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        self.server.restore(parts["server"], notes["server"])
        self.clients.memory.restore(parts["memory"], notes["memory"])
        self.round = self.meeting = notes["round"]
        self.at[:] = self.round

    def finish(self) -> Outcome | None:
        """One extra merge after the last round where the period does not divide the rounds."""
        if not self.server.period.segments or not self.server.seen.any():
            return None
        return self.server.merge(self.round, keep_slots=self.keep_slots, final=True)

    def _start(self, round: int, slots: np.ndarray) -> Visits:
        orders = self.server.orders(round, slots)
        visits = self.clients.begin(orders)
        self.orders[visits] = orders
        self.busy[slots] = True
        return visits

    def _next_meeting(self, until: int) -> int:
        rounds = self.round + 1
        if self.server.method.sync == "period":
            while rounds < until and not self.server.period.merges(rounds) and not self._looks(rounds):
                rounds += 1
        return rounds

    def _looks(self, rounds: int) -> bool:
        """Whether a run without merges is evaluated after so many rounds."""
        return not self.server.period.segments and rounds % self.look_every == 0


def _in_order(ended: list[tuple[list[int], Trained]]) -> tuple[list[int], Trained]:
    """All visits of a round, by slot, whatever the order in which they ended."""
    ks = np.concatenate([ks for ks, _ in ended])
    order = torch.as_tensor(np.argsort(ks), device=ended[0][1].y.device)
    y, loss = torch.cat([t.y for _, t in ended]), torch.cat([t.loss for _, t in ended])
    return sorted(ks.tolist()), Trained(y.index_select(0, order), loss.index_select(0, order))
