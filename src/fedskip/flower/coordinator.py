"""The server's half of a federation: a run whose clients answer over a network.

In every round the clients that are there get orders, and what comes back is screened and taken in. Merged models
are tested by all clients, and the state after each round is on disk before the next one begins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message, MessageType, RecordDict

from fedskip import rng
from fedskip.engine.arithmetic import torch_threads
from fedskip.engine.upload_filters import EPSILON
from fedskip.errors import InputError
from fedskip.federation import (
    Clients,
    Orders,
    Outcome,
    Replies,
    Run,
    RunRecord,
    Server,
    restore_records,
    save_records,
)
from fedskip.flower.connection import Connection
from fedskip.flower.job_spec import layout_digest
from fedskip.flower.messages import (
    evaluation_order,
    read_evaluation_reply,
    read_train_reply,
    train_order,
)
from fedskip.flower.plan import FederationPlan
from fedskip.flower.privacy import ACCOUNT, PrivacyAccount, fingerprint
from fedskip.flower.screening import expected_upload, refuse_false_score, screen
from fedskip.records.checkpoint import (
    list_checkpoints,
    load_checkpoint,
    read_history,
    save_checkpoint,
)
from fedskip.records.history import HISTORY
from fedskip.records.table import Row, Table

COLUMNS = (*HISTORY, "x_worst_client", "x_clients", "x_server_accuracy")
PAUSE = 1.0  # seconds between two roll calls, and before a round is tried again
log = logging.getLogger(__name__)

Scores = dict[
    int, dict[str, float]
]  # by client: sums of what it measured, and over how many samples


class NoClients(RuntimeError):
    """Too few clients appeared in time, or none answered."""


@dataclass(frozen=True)
class Round:
    """What happened in a round that is done."""

    accepted: list[str]  # the clients whose replies were taken in
    left_out: dict[str, str]  # the others that got an order, and why theirs were not
    row: Row | None  # of the history, if the round was evaluated
    scores: Scores


class Coordinator:
    """Trains the run of a federation."""

    def __init__(
        self, plan: FederationPlan, connection: Connection, checkpoints: Path | None = None
    ) -> None:
        """`checkpoints`: the folder for the state after every round; None: it is not kept."""
        setting, method, seed = plan.setting, plan.method, plan.seed
        self.plan, self.connection, self.checkpoints = plan, connection, checkpoints
        self.config, self.layout, self.privacy = plan.config, plan.layout, setting.privacy
        n, x = len(self.config.clients), plan.weights("init")
        server = Server(
            method, x, self.layout, clients=n, slots=setting.cohort, seed=seed,
            policy=setting.cohort_policy, fresh=lambda: plan.weights("fresh"),
        )  # fmt: skip
        elsewhere = Clients(method, self.layout, np.ones(n, np.int64), _no_route, x)
        self.run = Run(
            server, elsewhere, name=setting.run_name(method, seed), eval_every=setting.eval_every,
            rounds=setting.rounds,
        )  # fmt: skip
        self.record = RunRecord(self.run, setting.name, setting.label(method))
        self.sizes = np.zeros(n, np.int64)  # samples, as each client has said
        self.accepted = np.zeros(n, np.int64)  # the last round whose reply was taken in, by client
        self.experiment = plan.experiment
        self.account = PrivacyAccount(checkpoints and checkpoints.with_name(ACCOUNT))
        self.rows: list[Row] = []  # of the history
        self.began = time.perf_counter()
        self._all_awaited = True  # the first round after a start waits for all clients
        self._heard = time.monotonic()  # when a reply was last taken in

    def rounds(self) -> Iterator[Round]:
        """Train to the end; gives each round when it is on disk.

        A round in which no reply is taken in has not happened: it is tried again, within bounds.
        """
        while self.run.round < self.plan.setting.rounds and not self.run.over:
            accepted, left_out, outcome = self._train()
            if not accepted:
                time.sleep(PAUSE)
                continue
            row, scores = (None, {}) if outcome is None else self._evaluate(outcome)
            self.save()
            yield Round(accepted, left_out, row, scores)
        with torch_threads(1):  # an extra merge, where the period does not divide the rounds
            final = None if self.run.over else self.run.finish()
        if final is not None:
            self._wait_for_clients()
            self._evaluate(final)

    # --- a round -------------------------------------------------------------------------------------

    def _train(self) -> tuple[list[str], dict[str, str], Outcome | None]:
        """One round: whose replies were taken in, whose were not and why, what is to be evaluated."""
        orders = self._orders(self._wait_for_clients())
        clients: list[int] = orders.clients.tolist()
        contents = {
            client: train_order(orders.take([k]), self._header(client))
            for k, client in enumerate(clients)
        }
        answers = self.connection.exchange(MessageType.TRAIN, contents, self.config.timeout)
        like, private = self.run.server.x, self.privacy is not None
        replies: dict[int, Replies] = {}  # by row of the orders
        refused: dict[int, str] = {}
        for k, client in enumerate(clients):
            try:
                replies[k] = read_train_reply(_content(answers.get(client)), like, private=private)
            except InputError as error:
                refused[k] = str(error)
        refused |= self._screen(orders, replies)
        outcome = self._absorb(orders, {k: replies[k] for k in replies if k not in refused})
        names = [self.config.clients[client] for client in clients]
        accepted = [name for k, name in enumerate(names) if k not in refused]
        left_out = {names[k]: why[:300] for k, why in refused.items()}
        for name, why in left_out.items():
            log.warning("round %d: %s is left out: %s", orders.round + 1, name, why)
        for k in refused:
            self.connection.forget(clients[k])
        self._refuse_silence(accepted, left_out)
        return accepted, left_out, outcome

    def _wait_for_clients(self) -> list[int]:
        """The clients that are there. After a start, all are waited for, within bounds."""
        config, began = self.config, time.monotonic()
        enough = len(config.clients) if self._all_awaited else config.fewest
        self._all_awaited = False
        while True:
            present = self.connection.roll_call()
            for client, about in present.items():
                self.sizes[client] = about["samples"]
            late = time.monotonic() - began > config.wait
            if len(present) >= (config.fewest if late else enough):
                return sorted(present)
            if late:
                clients = f"{len(present)} of {len(config.clients)} clients"
                why = f"{clients} were there after {config.wait:g} s; {config.fewest} are needed"
                raise NoClients(f"{why}. Start them, then go on from here")
            time.sleep(PAUSE)

    def _orders(self, present: Sequence[int]) -> Orders:
        """The visits of the next round, to clients that are there."""
        server, round = self.run.server, self.run.round
        cohort = stand_in(server.cohort(round), present, server.seed, round, server.policy)
        slots = np.flatnonzero(cohort >= 0)
        if len(slots) < server.slots:
            idle = server.slots - len(slots)
            log.warning("round %d: %d of %d slots idle", round + 1, idle, server.slots)
        keys = [rng.visit_key(server.seed, round, int(client)) for client in cohort[slots]]
        orders = replace(server.orders(round, slots), clients=cohort[slots], keys=keys)
        if self.privacy is not None:  # it is spent when asked for, whatever becomes of the answer
            for k, client in enumerate(orders.clients):
                header = f"{round} {sorted(self._header(int(client)).items())}"
                visit = fingerprint(header, orders.x[k], *orders.sent.values())[:8].hex()
                self.account.add(self.config.clients[client], visit, self.privacy.sigma)
        return orders

    def _header(self, client: int) -> dict[str, Any]:
        """What an order says to a client beside the model and the key."""
        known = self.sizes[self.sizes > 0]
        return {
            **self._job_header(), "accepted": int(self.accepted[client]),
            "omega": float(self.sizes[client] * (len(known) / known.sum())),
        }  # fmt: skip

    def _job_header(self) -> dict[str, str]:
        layout, job = layout_digest(self.layout), self.plan.job.dump()
        return {"run": self.experiment, "layout": layout, "job": job}

    def _screen(self, orders: Orders, replies: Mapping[int, Replies]) -> dict[int, str]:
        """The replies that are refused, and why."""
        server, trainable = self.run.server, self.layout.trainable
        sizes = {k: int(self.sizes[orders.clients[k]]) for k in replies}
        with torch_threads(1):
            expected = expected_upload(server.method, server.x, trainable, orders.sent)
            return screen(orders, replies, sizes, expected, trainable, self.config.norm_limit)

    def _absorb(self, orders: Orders, replies: Mapping[int, Replies]) -> Outcome | None:
        """Take replies in, and merge if a period ends here. Gives what is to be evaluated."""
        if not replies:
            return None
        server, ks = self.run.server, np.array(list(replies))
        stacked = replace(stack(list(replies.values())), of=ks)
        with torch_threads(1):  # as the loop engine has it: the same bits
            server.absorb(orders, stacked)
            self.run.steps += int(stacked.steps.sum())
            self.accepted[orders.clients[ks]] = self.run.round = orders.round + 1
            if not server.period.merges(self.run.round):
                return None
            outcome = server.merge(self.run.round)
        if not self.record.wants(outcome):
            return None
        self.record.evaluated_at = outcome.round
        return outcome

    def _refuse_silence(self, accepted: list[str], left_out: dict[str, str]) -> None:
        """Give up if no reply could be taken in for long."""
        now = time.monotonic()
        if accepted:
            self._heard = now
        elif now - self._heard > self.config.wait + self.config.timeout:
            nobody = ("the cohort", "none of its clients is there")
            name, why = next(iter(left_out.items()), nobody)
            since = f"no client has answered for {now - self._heard:.0f} s"
            raise NoClients(f"{since}; {name}: {why}")

    # --- evaluation ----------------------------------------------------------------------------------

    def _evaluate(self, outcome: Outcome) -> tuple[Row | None, Scores]:
        """Let all clients that are there test the merged model; gives the row of the history."""
        model = outcome.evaluated
        assert model is not None, "federations merge"
        header, online = self._job_header(), self.connection.online
        contents = {client: evaluation_order(model, header) for client in online}
        answers = self.connection.exchange(MessageType.EVALUATE, contents, self.config.timeout)
        scores: Scores = {}
        for client, answer in sorted(answers.items()):
            try:
                score = read_evaluation_reply(_content(answer))
                refuse_false_score(score, online[client]["tests"], self.plan.setting.metric)
            except InputError as error:
                name, why = self.config.clients[client], str(error)[:300]
                log.warning("the test of %s is left out: %s", name, why)
                continue
            if score["samples"]:
                scores[client] = score
        row = self.record.add(outcome, self._row(outcome, scores))
        self.rows += [] if row is None else [row]
        return row, scores

    def _row(self, outcome: Outcome, scores: Scores) -> Row:
        """The row of the history, from the sums that clients have sent."""
        each = [score["metric"] / score["samples"] for score in scores.values()]
        n, metric, loss = (
            sum(score[name] for score in scores.values()) for name in ("samples", "metric", "loss")
        )
        private: Row = {}
        if self.privacy is not None:  # losses have no noise, so they stay at the clients
            private = {"train_loss": None, EPSILON: self.account.epsilon(self.privacy.delta)}
        assert outcome.evaluated is not None
        return self.record.row(
            outcome, test_accuracy=metric / n if n else None, test_loss=loss / n if n else None,
            seconds=self.seconds(), x_worst_client=min(each, default=None), x_clients=len(each),
            x_server_accuracy=self.plan.test(outcome.evaluated), **private,
        )  # fmt: skip

    def seconds(self) -> float:
        """Since the run began, over all processes that worked on it."""
        return time.perf_counter() - self.began

    # --- on disk -------------------------------------------------------------------------------------

    def history(self) -> str:
        return Table((*COLUMNS, EPSILON) if self.privacy else COLUMNS, self.rows).csv()

    def save(self) -> None:
        """Write the state after a round."""
        if self.checkpoints is None:
            return
        tensors, runs = save_records([self.record])
        name, round = self.plan.setting.name, self.run.round
        notes = {
            "study": "federation", "setting": name, "round": round, "seconds": self.seconds(),
            "runs": runs, "clients": list(self.config.clients), "experiment": self.experiment,
            "accepted": self.accepted.tolist(), "sizes": self.sizes.tolist(),
        }  # fmt: skip
        save_checkpoint(self.checkpoints, name, round, tensors, notes, self.history())

    def restore(self) -> bool:
        """Go on from the last checkpoint, if there is one."""
        saved = (
            []
            if self.checkpoints is None
            else list_checkpoints(self.checkpoints, self.plan.setting.name)
        )
        if not saved:
            return False
        _, file = saved[-1]
        tensors, notes = load_checkpoint(file)
        if notes.get("study") != "federation" or self.run.name not in notes["runs"]:
            rule = "is not of this federation"
            raise InputError("checkpoint", rule, str(file), "choose another folder")
        if notes["clients"] != list(self.config.clients):
            rule = "have changed since the run began"
            fix = "bring back the clients of federation.yaml: they are drawn by their order"
            raise InputError("clients", rule, self.config.clients, fix)
        restore_records([self.record], tensors, notes["runs"])
        self.run.round = notes["round"]
        self.experiment, self.began = notes["experiment"], self.began - notes["seconds"]
        self.accepted, self.sizes = np.array(notes["accepted"]), np.array(notes["sizes"])
        self.rows = list(Table.parse(read_history(file) or "", file))
        return True


def _content(answer: Message | None) -> RecordDict:
    """What a client has answered, or an error that says why there is nothing."""
    if answer is None:
        raise InputError("it", "did not answer in time")
    if answer.has_error():
        raise InputError("it", f"answers with an error ({answer.error.reason})")
    return answer.content


def stand_in(
    cohort: np.ndarray, present: Sequence[int], seed: int, round: int, policy: str = "uniform"
) -> np.ndarray:
    """The cohort, with other clients in place of those that are away; -1: the slot idles.

    With policies that keep slots with their clients, nobody takes a place.

    >>> stand_in(np.array([2, 0, 1]), [0, 1, 2], seed=0, round=0)
    array([2, 0, 1])
    >>> stand_in(np.array([2, 0, 1]), [0, 1], seed=0, round=0)
    array([-1,  0,  1])
    """
    there = np.isin(cohort, present)
    if there.all():
        return cohort
    spare = np.setdiff1d(present, cohort)
    stream = rng.stream(seed, "stand-in", round)
    spare = stream.permutation(spare) if policy == "uniform" else spare[:0]
    filled, empty = np.where(there, cohort, -1), np.flatnonzero(~there)[: len(spare)]
    filled[empty] = spare[: len(empty)]
    return filled


def stack(replies: Sequence[Replies]) -> Replies:
    """Single rows as one stack."""

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(reply, name) for reply in replies])

    return Replies(
        torch.cat([reply.y for reply in replies]),
        {name: torch.cat([reply.upload[name] for reply in replies]) for name in replies[0].upload},
        joined("samples"), joined("steps"), joined("a"),
        torch.cat([reply.loss for reply in replies]),
    )  # fmt: skip


def _no_route(key: int, client: int, round: int) -> Any:
    raise AssertionError("no client is trained on the server")
