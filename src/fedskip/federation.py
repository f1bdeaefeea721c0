"""One run: cohort -> visits -> absorb -> merge or skip. It knows no device and no network.

`Server` and `Clients` exchange `Orders` and `Replies` and nothing else, so a network fits between them.
`Run` plays both in one process and hands the training to an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedskip.clients import Clients, Memory
from fedskip.engine.base import Trained, Visits
from fedskip.methods.base import State
from fedskip.server import Orders, Outcome, Replies, Saved, Server, draw_cohort
from fedskip.stack import on

__all__ = [
    "Clients", "Memory", "Orders", "Outcome", "Replies", "Rounds", "Run", "Saved", "Server", "draw_cohort",
]  # fmt: skip


class Run:
    """Server and clients in one process: a source of visits for an engine.

    A method that needs every round's results starts a round with all slots together. Otherwise a slot goes
    straight on to its next client and waits for the others only where they meet: at merges, at evaluations
    of runs that never merge, and at `until`.
    """

    def __init__(
        self,
        server: Server,
        clients: Clients,
        *,
        look_every: int = 1,
        last: int | None = None,
        keep_slots: bool = False,
    ) -> None:
        """Without merges, a run is looked at `look_every` so many rounds and after its `last` one."""
        self.server, self.clients = server, clients
        self.look_every, self.last, self.keep_slots = look_every, last, keep_slots
        self.round = 0  # rounds that all slots have done
        self.meeting = 0  # the round after which all slots are together again
        self.at = np.zeros(server.slots, dtype=int)  # rounds that each slot has done
        self.busy = np.zeros(server.slots, dtype=bool)
        self.orders: dict[Visits, Orders] = {}  # of the visits under way
        self.ended: list[tuple[list[int], Trained]] = []  # visits of a round that is not complete yet

    def ready(self, until: int) -> list[Visits]:
        """The visits that may start now, in a run that goes on until so many rounds are done."""
        if not self.busy.any() and self.round < until:
            self.meeting = self._next_meeting(self.round, until)
        elif self._together():
            return []
        free = ~self.busy & (self.at < self.meeting)
        return [
            self._start(int(round), np.flatnonzero(free & (self.at == round)))
            for round in np.unique(self.at[free])
        ]

    def done(self, visits: Visits, ks: list[int], trained: Trained) -> Outcome | None:
        """Some visits have ended; gives what is to be evaluated, if anything is."""
        orders = self.orders[visits]
        if self._together():
            self.ended.append((ks, trained))
            if sum(len(ks) for ks, _ in self.ended) < len(orders.slots):
                return None
            if len(self.ended) > 1:
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
        assert not self.orders, "slots are still on their way"
        server, server_notes = self.server.save()
        memory, memory_notes = self.clients.memory.save()
        tensors = {f"server.{k}": t for k, t in server.items()} | {
            f"memory.{k}": t for k, t in memory.items()
        }
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

    def meetings(self, until: int) -> list[int]:
        """The rounds after which all slots are together, from the start."""
        found = [0]
        while found[-1] < until:
            found.append(self._next_meeting(found[-1], until))
        return found

    def _next_meeting(self, round: int, until: int) -> int:
        rounds = round + 1
        if self.server.method.sync == "period":
            while rounds < until and not self.server.period.merges(rounds) and not self._looks(rounds):
                rounds += 1
        return rounds

    def _together(self) -> bool:
        """Whether the visits under way are absorbed as one round, when the last of them has ended."""
        return self.server.method.sync == "round" or self.meeting == self.round + 1

    def _looks(self, rounds: int) -> bool:
        """Whether a run without merges is evaluated after so many rounds."""
        due = rounds % self.look_every == 0 or rounds == self.last
        return due and not self.server.period.segments


class Rounds:
    """A `Work` of some runs, played up to a round; what comes of them is evaluated by nobody."""

    def __init__(self, runs: Sequence[Run], until: int = 0) -> None:
        self.runs, self.until = runs, until
        self.steps = 0  # client-steps done
        self._owner: dict[Visits, Run] = {}

    def ready(self) -> list[Visits]:
        self._owner = {visits: run for visits, run in self._owner.items() if visits in run.orders}
        found = {visits: run for run in self.runs for visits in run.ready(self.until)}
        self._owner |= found
        return list(found)

    def done(self, visits: Visits, ks: list[int], trained: Trained) -> None:
        self.steps += sum(visits.routes[k].steps for k in ks)
        self._owner[visits].done(visits, ks, trained)


def _in_order(ended: list[tuple[list[int], Trained]]) -> tuple[list[int], Trained]:
    """All visits of a round, by slot, whatever the order in which they ended."""
    ks = np.concatenate([ks for ks, _ in ended])
    order = on(ended[0][1].y.device, np.argsort(ks))
    y, loss = torch.cat([t.y for _, t in ended]), torch.cat([t.loss for _, t in ended])
    return sorted(ks.tolist()), Trained(y.index_select(0, order), loss.index_select(0, order))
