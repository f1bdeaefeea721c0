"""The server's half of a run: K slots, what they are sent, and how they merge.

The slots are the rows of `w`. In every round slot k visits client `cohort[k]`; on a skip round the rows
simply stay where they are and meet other clients next, which is the paper's shuffle-and-scatter. When a
period ends, the slots merge and every row becomes the model that is broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedskip.errors import InputError, require
from fedskip.methods.base import Federation, Merged, Method, Period, State
from fedskip.models.vector import Layout, on
from fedskip.rng import ordered_sample, visit_key

FLOAT = 4  # bytes of a number on the wire
COUNTS = ("merges", "bytes_down", "bytes_up", "set_aside")  # since the start

Saved = tuple[State, dict[str, Any]]  # tensors, and plain numbers for JSON


class Visited(NamedTuple):
    """Visits of a round whose replies were taken in."""

    round: int  # 0-based
    slots: np.ndarray  # (k,)
    clients: np.ndarray  # (k,)
    loss: Tensor  # (k,)


def draw_cohort(policy: str, seed: int, round: int, clients: int, slots: int) -> np.ndarray:
    """The ordered sample of K of N clients that the slots visit in a round (0-based), (K,).

    `uniform` is drawn again every round and never sorted: its order is the shuffle. `fixed` keeps slot k
    with client k; `cyclic` moves every slot on to the next client.
    """
    if policy == "uniform":
        return ordered_sample(clients, slots, seed, "cohort", round)
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

    def take(self, ks: Sequence[int] | np.ndarray) -> Orders:
        """Some of the orders."""
        index = on(self.x.device, ks)
        return replace(
            self, slots=self.slots[ks], clients=self.clients[ks], keys=[self.keys[k] for k in ks],
            x=self.x.index_select(0, index),
        )  # fmt: skip


@dataclass(frozen=True)
class Replies:
    """What comes back for some orders, row by row.

    An order may stay without a reply: its client has none to give, or the reply is not accepted. Its slot is
    then as it was before the visit, and so is all that the server keeps.
    """

    y: Tensor  # (k, P)
    upload: State  # (k, ...) each
    samples: np.ndarray  # (k,) n_i
    steps: np.ndarray  # (k,)
    a: np.ndarray  # (k,) see Visit.a
    loss: Tensor  # (k,) summed over the steps
    of: np.ndarray | None = None  # the orders that they answer, by their places; None: all


@dataclass(frozen=True)
class Outcome:
    """What there is to evaluate after a merge; without merges, every now and then."""

    round: int  # rounds done
    merges: int
    evaluated: Tensor | None  # (P,); None: there was no merge, the slots speak for themselves
    broadcast: Tensor | None  # (P,) where it differs from `evaluated`
    slots: Tensor | None  # (K, P) before the merge, where asked for
    train_loss: Tensor | None  # None: no visit was taken in
    drift_mean: Tensor
    drift_broadcast: Tensor
    bytes_down: int
    bytes_up: int
    final: bool = False  # an extra merge after the last round, outside the schedule
    visits: Sequence[Visited] = ()  # that led to it
    set_aside: int = 0  # visits without a reply, since the start

    @property
    def models(self) -> Tensor:
        """The models to evaluate, (m, P): the merged one, or those of all slots where none was merged."""
        models = self.slots if self.evaluated is None else self.evaluated
        assert models is not None, "without a merge there are slots"
        return models.reshape(-1, models.shape[-1])


class Server:
    """The server's half of a run: K slots, the model last broadcast, and the method's state."""

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
        """The server before the first round.

        Args:
            method: how slots merge, and when.
            x: the first model, (P,).
            layout: where each tensor of a module lives in x.
            clients: N. slots: K.
            seed: decides cohorts and visit keys.
            policy: of cohorts, see `draw_cohort`.
            fresh: gives another first model, for methods that start their state at random.
        """
        self.method, self.layout, self.seed, self.policy = method, layout, seed, policy
        self.period = Period.parse(method.period)
        self.slots = slots
        self.federation = Federation(
            clients, x.new_zeros(layout.trainable),
            lambda: (fresh() if fresh else x)[: layout.trainable],
        )  # fmt: skip
        self.state = method.start(self.federation)
        self.merges = self.bytes_down = self.bytes_up = self.set_aside = 0
        self._begin_period(x)

    def _begin_period(self, x: Tensor) -> None:
        """Every slot holds the model x, and has seen nothing."""
        self.x = x  # (P,) the model last broadcast
        self.w = x.expand(self.slots, -1).clone()  # (K, P)
        # of each slot since then: samples, the sum of `Visit.a`, steps, the sum of losses
        self.seen, self.a, self.steps = np.zeros((3, self.slots))
        self.loss = x.new_zeros(self.slots)

    def cohort(self, round: int) -> np.ndarray:
        """The clients that the slots visit in a round, (K,)."""
        return draw_cohort(self.policy, self.seed, round, self.federation.clients, self.slots)

    def orders(self, round: int, slots: np.ndarray | None = None) -> Orders:
        """Which clients the slots visit in a round, and the models that they carry.

        `slots`: some of them; None: all.
        """
        which = np.arange(self.slots) if slots is None else slots
        clients = self.cohort(round)[which]
        keys = [visit_key(self.seed, round, int(client)) for client in clients]
        x = self.w.index_select(0, on(self.w.device, which))
        return Orders(round, which, clients, keys, x, self.method.sends(self.state))

    def absorb(self, orders: Orders, replies: Replies) -> None:
        """Put what came back into the slots, and let the method absorb it.

        An order without a reply leaves its slot as it was, and is counted.
        """
        model, visits = self.layout.size, len(orders.slots)
        self.bytes_down += FLOAT * visits * (model + sum(t.numel() for t in orders.sent.values()))
        if replies.of is not None:
            self.set_aside += visits - len(replies.of)
            orders, visits = orders.take(replies.of), len(replies.of)
        if not visits:
            return
        d, where = self.layout.trainable, on(self.w.device, orders.slots)
        x, y = orders.x[:, :d], replies.y[:, :d]
        self.state = self.method.absorb(self.state, x, y, replies.upload, self.federation)
        self.w.index_copy_(0, where, replies.y)
        self.loss.index_add_(0, where, replies.loss)
        self.seen[orders.slots] += replies.samples
        self.steps[orders.slots] += replies.steps
        self.a[orders.slots] += replies.a
        self.bytes_up += FLOAT * (visits * model + sum(t.numel() for t in replies.upload.values()))

    def merge(self, round: int, *, keep_slots: bool = False, final: bool = False) -> Outcome:
        """End the period: the method makes one model of the slots, which every slot then holds.

        A slot without an accepted visit is left out; where no slot has one, the model stays.

        Args:
            round: rounds done.
            keep_slots: whether the outcome holds the slots as they were before.
            final: marks an extra merge after the last round.
        """
        d, w, seen, a = self.layout.trainable, self.w, self.seen, self.a
        taking_part = seen > 0
        if not taking_part.all():
            seen, a = seen[taking_part], a[taking_part]
            w = w.index_select(0, on(w.device, np.flatnonzero(taking_part)))
        p = self._column(seen / max(seen.sum(), 1.0))
        self.merges += 1
        if len(seen):
            state, a_column = self.state, self._column(a)[:, None]
            merged = self.method.merge(state, self.x[:d], w[:, :d], p, a_column)
            if not isinstance(merged, Merged):
                rule = f"holds {self.method.label}, whose merge gives no Merged"
                raise InputError("methods", rule, type(merged).__name__, "return Merged(...)")
            for given in (merged.evaluated, merged.broadcast):
                fits = given.shape == (d,) and given.dtype == w.dtype
                rule = f"holds {self.method.label}, whose merge must give {d} numbers in {w.dtype}"
                require("methods", fits, rule, f"{tuple(given.shape)} in {given.dtype}")
            self.state = merged.server
            x = self.x[d:]
            rest = x + p @ (w[:, d:] - x)  # to the bit the same where nothing has moved
            evaluated = torch.cat([merged.evaluated, rest])
            same = merged.broadcast is merged.evaluated
            broadcast = evaluated if same else torch.cat([merged.broadcast, rest])
        else:
            evaluated = broadcast = self.x
        outcome = self._outcome(round, w[:, :d], p, evaluated, keep_slots, final)
        if broadcast is not evaluated:
            outcome = replace(outcome, broadcast=broadcast)
        self._begin_period(broadcast)
        return outcome

    def look(self, round: int) -> Outcome:
        """The slots as they are, for runs that never merge."""
        p = self._column(self.seen / max(self.seen.sum(), 1.0))
        return self._outcome(round, self.w[:, : self.layout.trainable], p, None, True, False)

    def _outcome(
        self,
        round: int,
        w: Tensor,
        p: Tensor,
        evaluated: Tensor | None,
        keep_slots: bool,
        final: bool,
    ) -> Outcome:
        mean, x = p @ w, self.x[: self.layout.trainable]
        return Outcome(
            round, self.merges, evaluated, None,
            slots=self.w.clone() if keep_slots else None,
            train_loss=self.loss.sum() / self.steps.sum() if self.steps.any() else None,
            drift_mean=p @ (w - mean).square().sum(1),
            drift_broadcast=p @ (w - x).square().sum(1),
            bytes_down=self.bytes_down, bytes_up=self.bytes_up, final=final, set_aside=self.set_aside,
        )  # fmt: skip

    def _column(self, numbers: np.ndarray) -> Tensor:
        return on(self.w.device, numbers, self.w.dtype)

    def save(self) -> Saved:
        """The server's state between two rounds; slots that are all equal are kept once, as x."""
        tensors = {"x": self.x, "loss": self.loss}
        tensors |= {f"state.{name}": t for name, t in self.state.items()}
        if self.seen.any():
            tensors["w"] = self.w
        numbers = {name: getattr(self, name).tolist() for name in ("seen", "a", "steps")}
        return tensors, numbers | {name: getattr(self, name) for name in COUNTS}

    def restore(self, tensors: State, notes: dict[str, Any]) -> None:
        """Go on from what `save` gave."""
        self.x, self.loss = tensors["x"], tensors["loss"]
        self.w = tensors["w"] if "w" in tensors else self.x.expand(self.slots, -1).clone()
        self.state = {name[6:]: t for name, t in tensors.items() if name.startswith("state.")}
        for name in ("seen", "a", "steps"):
            setattr(self, name, np.array(notes[name]))
        for name in COUNTS:
            setattr(self, name, notes[name])
