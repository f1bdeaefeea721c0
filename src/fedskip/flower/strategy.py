"""A Flower strategy that plays the server's half: each node gets its own slot, and replies are taken in.

Flower's `start` is the loop. `conductor.py` decides; this file only carries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedskip.flower.conductor import Conductor
from fedskip.flower.line import Line
from fedskip.flower.messages import (
    arrays,
    read_score_reply,
    read_train_reply,
    score_order,
    train_order,
)
from fedskip.flower.screening import sane_score
from fedskip.input.errors import InputError
from fedskip.records.table import Row

log = logging.getLogger(__name__)

PAUSE = 1.0  # seconds between two roll calls


class Nobody(RuntimeError):
    """Too few clients appeared in time."""


@dataclass(frozen=True)
class Told:
    """What there is to say of a round, once it is on disk."""

    conductor: Conductor
    clients: list[str]  # whose replies were taken in
    left_out: dict[str, str]  # others that were asked, and why they are
    row: Row | None  # of the history, where the round was evaluated
    scores: dict[int, dict[str, float]]  # and what each client measured


class SkippingStrategy(Strategy):
    """Plays the rounds that a conductor has not done yet."""

    def __init__(
        self, conductor: Conductor, line: Line, told: Callable[[Told], None] = lambda told: None
    ) -> None:
        """`told` hears of each round when it is on disk."""
        self.conductor, self.line, self.told = conductor, line, told
        self.agreement = conductor.plan.agreement
        self._places: dict[int, int] = {}  # by node: its place among the orders of this round
        self._wanted = len(self.agreement.clients)  # that the next round waits for
        self._heard = time.monotonic()  # when a reply was last taken in
        self._taken: list[str] = []  # clients, in this round
        self._left_out: dict[str, str] = {}

    def play(self) -> None:
        """All rounds that are left, and the extra merge where the period does not divide them."""
        start, wait = _record(self.conductor.run.server.x), self.agreement.timeout
        while (left := self.conductor.plan.setting.rounds - self.conductor.round) > 0:
            self.start(self.line, start, num_rounds=left, timeout=wait)
        if self.conductor.finish():
            self._gather()
            replies = self.line.send_and_receive(self._tests(), timeout=self.agreement.timeout)
            self.conductor.judge(self._scores(replies))

    # --- training ------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        conductor = self.conductor
        there = self._gather()
        orders = conductor.orders(sorted(there))
        self._places = {there[int(client)]: k for k, client in enumerate(orders.clients)}
        idle = conductor.run.server.slots - len(orders.slots)
        if idle:
            log.warning(
                "round %d: %d of %d slots idle", conductor.round + 1, idle, conductor.run.server.slots
            )
        return [
            Message(
                train_order(orders.take([k]), **conductor.told(int(orders.clients[k]))),
                node, MessageType.TRAIN, ttl=self.agreement.timeout,
            )
            for node, k in self._places.items()
        ]  # fmt: skip

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        conductor, round = self.conductor, self.conductor.round + 1
        like, private = conductor.run.server.x, conductor.plan.setting.privacy is not None
        taken, why = {}, dict.fromkeys(self._places, "did not answer in time")
        for reply in replies:
            node = self.line.node_of(reply)
            if node not in self._places:
                continue
            try:
                why[node] = f"answers with an error ({reply.error.reason})" if reply.has_error() else ""
                if not reply.has_error():
                    taken[self._places[node]] = read_train_reply(reply.content, like, private=private)
            except InputError as error:
                why[node] = str(error)
        nodes = {k: node for node, k in self._places.items()}
        why |= {nodes[k]: reason for k, reason in conductor.take(taken).items()}
        names = {node: self.line.sites[node]["name"] for node in why}
        self._taken = [names[node] for node, reason in why.items() if not reason]
        self._left_out = {names[node]: reason[:300] for node, reason in why.items() if reason}
        for name, reason in self._left_out.items():
            log.warning("round %d: %s is left out: %s", round, name, reason)
        for node in [node for node, reason in why.items() if reason]:
            self.line.forget(node)  # it is asked again who it is
        if self._taken:
            self._heard = time.monotonic()
        elif time.monotonic() - self._heard > self.agreement.wait + self.agreement.timeout:
            name, reason = next(iter(self._left_out.items()))
            since = f"no client has answered for {time.monotonic() - self._heard:.0f} s"
            raise Nobody(f"{since}; {name}: {reason}")
        model = conductor.outcome.evaluated if conductor.outcome else None
        return (None if model is None else _record(model)), None

    def _gather(self) -> dict[int, int]:
        """The clients that are there, and their nodes. After a start, all are waited for, within bounds."""
        agreement, began = self.agreement, time.monotonic()
        wanted, self._wanted = self._wanted, 0
        while True:
            there = self.line.roll_call()
            for client, node in there.items():
                self.conductor.sizes[client] = self.line.sites[node]["samples"]
            late = time.monotonic() - began > agreement.wait
            if len(there) >= max(wanted, agreement.fewest) or (late and len(there) >= agreement.fewest):
                return there
            if late:
                rule = (
                    f"{len(there)} of {len(agreement.clients)} clients were there after {agreement.wait:g} s"
                )
                raise Nobody(f"{rule}; {agreement.fewest} are needed. Start them, then go on from here")
            time.sleep(PAUSE)

    # --- evaluation ----------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        return self._tests() if self.conductor.outcome else []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        if not self._taken:  # the round is played again
            time.sleep(PAUSE)
            return None
        conductor, row = self.conductor, None
        scores = self._scores(replies) if conductor.outcome else {}
        if conductor.outcome:
            row = conductor.judge(scores)
        conductor.save()
        self.told(Told(conductor, self._taken, self._left_out, row, scores))
        if row is None:
            return None
        return MetricRecord({name: float(row[name]) for name in ("test_accuracy", "test_loss")})

    def _tests(self) -> list[Message]:
        """The merged model, for all sites that are there."""
        outcome = self.conductor.outcome
        assert outcome is not None
        assert outcome.evaluated is not None
        visit = {key: self.conductor.told(0)[key] for key in ("run", "layout", "work")}
        ttl = self.agreement.timeout
        return [
            Message(score_order(outcome.evaluated, **visit), node, MessageType.EVALUATE, ttl=ttl)
            for node in self.line.sites
        ]

    def _scores(self, replies: Iterable[Message]) -> dict[int, dict[str, float]]:
        """What sites measured, by client; a site that sends no sensible numbers is left out."""
        found = {}
        for reply in replies:
            site = self.line.sites.get(self.line.node_of(reply) or 0)
            if site is None:
                continue
            try:
                if reply.has_error():
                    raise InputError("a site", f"answers with an error ({reply.error.reason})")
                score = read_score_reply(reply.content)
                sane_score(score, site["tests"], self.conductor.plan.setting.metric)
            except InputError as error:
                log.warning("the test of %s is left out: %s", site["name"], str(error)[:300])
                continue
            if score["samples"]:
                found[self.line.clients.index(site["name"])] = score
        return found

    def summary(self) -> None:
        plan = self.conductor.plan
        log.info("%s, %d clients, %d slots", plan.method.label, self.conductor.clients, plan.setting.cohort)


def _record(model: Tensor) -> ArrayRecord:
    return arrays({"x": model})
