"""One run: cohort -> visits -> absorb -> merge or skip. It knows no device and no network.

`Server` and `Clients` exchange `Orders` and `Replies` and nothing else, so a network fits between them.
`Run` plays both in one process. Its rounds come in stretches, from one meeting of all slots to the next.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedskip.engine.task import Job, Trained
from fedskip.federation.clients import Clients
from fedskip.federation.server import Outcome, Saved, Server, Visited
from fedskip.methods.base import State
from fedskip.models.vector import on


class Run:
    """Server and clients in one process."""

    def __init__(
        self,
        server: Server,
        clients: Clients,
        *,
        name: str = "",
        eval_every: int = 1,
        rounds: int | None = None,
        keep_slots: bool = False,
    ) -> None:
        """A run, before its first round.

        Args:
            name: tells it from others.
            eval_every: how often a run that never merges is evaluated; also after round `rounds`, its last.
            keep_slots: whether outcomes hold the slots before the merge, too.
        """
        self.server, self.clients, self.name = server, clients, name
        self.eval_every, self.rounds, self.keep_slots = eval_every, rounds, keep_slots
        self.round = 0  # rounds that all slots have done
        self.steps = 0  # client-steps done
        self.diverged = False
        self.ended = False  # early, by a stopping rule
        self.visits: list[Visited] = []  # since the last outcome
        self._stretch: Stretch | None = None

    @property
    def over(self) -> bool:
        """Whether no more visits start, whatever rounds are left."""
        return self.diverged or self.ended

    def ready(self, until: int) -> list[Job]:
        """The visits that may start now, if the run is to go on to round `until`."""
        if self.over:
            return []
        if self._stretch is None and self.round < until:
            self._stretch = Stretch(self, self._next_meeting(self.round, until))
        return [] if self._stretch is None else self._stretch.ready()

    def done(self, trained: Trained) -> Outcome | None:
        """Some visits have ended; gives what there is to evaluate, or None."""
        stretch = self._stretch
        assert stretch is not None, "no visit is under way"
        stretch.done(trained)
        if stretch.at.min() < stretch.stop:
            return None
        self.round, self._stretch = stretch.stop, None
        if self.server.period.merges(self.round):
            outcome = self.server.merge(self.round, keep_slots=self.keep_slots)
        elif self._looks(self.round):
            outcome = self.server.look(self.round)
        else:
            return None
        visits, self.visits = self.visits, []
        return replace(outcome, visits=visits)

    def finish(self) -> Outcome | None:
        """One extra merge after the last round where the period does not divide the rounds."""
        if not self.server.period.segments or not self.server.seen.any():
            return None
        return self.server.merge(self.round, keep_slots=self.keep_slots, final=True)

    @property
    def rounds_done(self) -> float:
        """The mean over the slots, which may be at different rounds inside a stretch."""
        stretch = self._stretch
        return float(self.round if stretch is None else stretch.at.mean())

    # --- what stretches are made of ------------------------------------------------------------------

    def start(self, round: int, slots: np.ndarray) -> Job:
        """Send some slots to their clients of a round."""
        orders = self.server.orders(round, slots)
        terms, routes = self.clients.begin(orders)
        return Job(orders.x, terms, routes, run=self, orders=orders)

    def absorb(self, trained: Trained) -> np.ndarray:
        """Take in visits that have ended; gives their slots."""
        orders, routes = trained.job.orders.take(trained.ks), trained.routes
        replies = self.clients.end(orders, routes, trained.y, trained.loss)
        self.server.absorb(orders, replies)
        self.steps += sum(route.steps for route in routes)
        taken = slice(None) if replies.of is None else replies.of
        slots: np.ndarray = orders.slots
        self.visits.append(Visited(orders.round, slots[taken], orders.clients[taken], replies.loss))
        return slots

    def meetings(self, until: int) -> list[int]:
        """The rounds after which all slots are together, from the start."""
        rounds = [0]
        while rounds[-1] < until:
            rounds.append(self._next_meeting(rounds[-1], until))
        return rounds

    def _next_meeting(self, round: int, until: int) -> int:
        """All slots meet after every round if the method needs it; else at merges, looks and `until`."""
        rounds = round + 1
        if self.server.method.sync == "period":
            merges = self.server.period.merges
            while rounds < until and not merges(rounds) and not self._looks(rounds):
                rounds += 1
        return rounds

    def _looks(self, round: int) -> bool:
        """Whether a run without merges is evaluated after a round."""
        due = round % self.eval_every == 0 or round == self.rounds
        return due and not self.server.period.segments

    # --- checkpoints ---------------------------------------------------------------------------------

    def save(self) -> Saved:
        """All of the run, at a round where its slots are together."""
        assert self._stretch is None, "slots are still on their way"
        server, server_notes = self.server.save()
        memory, memory_notes = self.clients.memory.save()
        tensors = {f"server.{name}": t for name, t in server.items()}
        tensors |= {f"memory.{name}": t for name, t in memory.items()}
        return tensors, {
            "round": self.round, "steps": self.steps, "server": server_notes, "memory": memory_notes
        }  # fmt: skip

    def restore(self, tensors: State, notes: dict[str, Any]) -> None:
        """Go on from what `save` gave."""
        parts: dict[str, State] = {"server": {}, "memory": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        self.server.restore(parts["server"], notes["server"])
        self.clients.memory.restore(parts["memory"], notes["memory"])
        self.round, self.steps = notes["round"], notes["steps"]


class Stretch:
    """The rounds from one meeting of all slots to the next.

    In a single round, what the slots bring back is absorbed together. In several, a slot that is back goes
    straight on to its next client.
    """

    def __init__(self, run: Run, stop: int) -> None:
        self.run, self.stop = run, stop
        self.at = np.full(run.server.slots, run.round)  # rounds that each slot has done
        self.away = np.zeros(len(self.at), dtype=bool)
        self.changed = True  # since `ready` was last asked, which is asked often
        self.waits = stop == run.round + 1  # whether what is back waits for the rest
        self.back: list[Trained] = []

    def ready(self) -> list[Job]:
        if not self.changed:
            return []
        free = ~self.away & (self.at < self.stop)
        self.away |= free
        self.changed = False
        rounds = np.unique(self.at[free])
        return [self.run.start(int(r), np.flatnonzero(free & (self.at == r))) for r in rounds]

    def done(self, trained: Trained) -> None:
        self.back.append(trained)
        if self.waits and sum(len(some.ks) for some in self.back) < len(self.at):
            return
        if len(self.back) > 1:  # slot by slot, whatever the order in which they ended
            ks = np.concatenate([some.ks for some in self.back])
            order = on(trained.y.device, np.argsort(ks))
            y = torch.cat([some.y for some in self.back]).index_select(0, order)
            loss = torch.cat([some.loss for some in self.back]).index_select(0, order)
            trained = Trained(trained.job, sorted(ks.tolist()), y, loss)
        slots = self.run.absorb(trained)
        self.back = []
        self.at[slots] += 1
        self.away[slots] = False
        self.changed = True
