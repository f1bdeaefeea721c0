"""The server's half of a federation: a run whose clients answer over a network.

In every round the clients that are there get orders, and what comes back is screened and taken in. Merged models
are tested by all clients, and the state after each round is on disk before the next one begins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedskip import rng
from fedskip.engine.arithmetic import torch_threads
from fedskip.engine.upload_filters import EPSILON
from fedskip.errors import InputError, require
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
from fedskip.flower import messages
from fedskip.flower.messages import AuditLog
from fedskip.flower.plan import PROTOCOL, FederationPlan, layout_digest
from fedskip.flower.privacy import ACCOUNT, PrivacyAccount, fingerprint
from fedskip.records.checkpoint import (
    list_checkpoints,
    load_checkpoint,
    read_history,
    save_checkpoint,
)
from fedskip.records.history import HISTORY
from fedskip.records.table import Row, Table

T = TypeVar("T")

COLUMNS = (*HISTORY, "x_worst_client", "x_clients", "x_server_accuracy")
ROLL_CALL = 1.0  # seconds between two roll calls, and before a round is tried again
POLL = 0.25, 0.5  # seconds between two looks for replies: at first, and after a while
HELLO = 300.0  # seconds that a new node has to introduce itself
log = logging.getLogger(__name__)


class NoClients(RuntimeError):
    """Too few clients appeared in time, or none answered."""


@dataclass(frozen=True)
class Round:
    """What happened in a round that is done."""

    accepted: list[str]  # the clients whose replies were taken in
    left_out: dict[str, str]  # the others that got an order, and why theirs were not
    row: Row | None = None  # of the history, if the round was evaluated
    sites: Sequence[Row] = ()  # what each client has measured, then


class Coordinator:
    """Trains the run of a federation."""

    def __init__(self, plan: FederationPlan, connection: Connection, checkpoints: Path) -> None:
        """`checkpoints`: the folder for the state after every round."""
        setting, method, seed = plan.setting, plan.method, plan.seed
        self.plan, self.connection, self.checkpoints = plan, connection, checkpoints
        self.config, self.layout, self.privacy = plan.config, plan.layout, setting.privacy
        [planned] = setting.runs
        n, x = len(self.config.clients), plan.weights("init")
        server = Server(
            method, x, self.layout, clients=n, slots=setting.cohort, seed=seed,
            policy=setting.cohort_policy, fresh=lambda: plan.weights("fresh"),
        )  # fmt: skip
        elsewhere = Clients(method, self.layout, np.ones(n, np.int64), _no_route, x)
        self.run = Run(
            server, elsewhere, name=planned.name, eval_every=setting.eval_every,
            rounds=setting.rounds,
        )  # fmt: skip
        self.record = RunRecord(self.run, setting.name, planned.label)
        self.sizes = np.zeros(n, np.int64)  # samples, as each client has said
        self.accepted = np.zeros(n, np.int64)  # the last round whose reply was taken in, by client
        self.experiment = plan.experiment
        self.account = PrivacyAccount(checkpoints.with_name(ACCOUNT))
        self.rows: list[Row] = []  # of the history
        self.began = time.perf_counter()  # earlier, if other processes worked on the run before
        self._all_awaited = True  # the first round after a start waits for all clients

    def rounds(self) -> Iterator[Round]:
        """Train to the end; gives each round when it is on disk.

        A round in which no reply is taken in has not happened: it is tried again, within bounds.
        """
        heard = time.monotonic()  # when a reply was last taken in
        while self.run.round < self.plan.setting.rounds and not self.run.over:
            accepted, left_out, outcome = self._train()
            if accepted:
                row, sites = (None, []) if outcome is None else self._evaluate(outcome)
                self.save()
                yield Round(accepted, left_out, row, sites)
                heard = time.monotonic()
                continue
            silence = time.monotonic() - heard
            if silence > self.config.wait + self.config.timeout:
                nobody = ("the cohort", "none of its clients is there")
                name, why = next(iter(left_out.items()), nobody)
                raise NoClients(f"no client has answered for {silence:.0f} s; {name}: {why}")
            time.sleep(ROLL_CALL)
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
            client: messages.train_order(orders.take([k]), self._header(client))
            for k, client in enumerate(clients)
        }
        x, private = self.run.server.x, self.privacy is not None

        def read(_: int, content: RecordDict) -> Replies:
            return messages.read_train_reply(content, x, private=private)

        answers, silent = self._ask(MessageType.TRAIN, contents, read)
        replies = {k: answers[client] for k, client in enumerate(clients) if client in answers}
        sizes = {k: int(self.sizes[clients[k]]) for k in replies}
        server, limit = self.run.server, self.config.norm_limit
        with torch_threads(1):
            refused = messages.screen(server, orders, replies, sizes, limit)
        outcome = self._absorb(orders, {k: replies[k] for k in replies if k not in refused})
        silent |= {clients[k]: why for k, why in refused.items()}
        names = self.config.clients
        for client, why in silent.items():
            log.warning("round %d: %s is left out: %s", orders.round + 1, names[client], why)
            self.connection.forget(client)
        accepted = [names[client] for client in clients if client not in silent]
        return accepted, {names[client]: why for client, why in silent.items()}, outcome

    def _ask(
        self, kind: str, contents: Mapping[int, RecordDict], read: Callable[[int, RecordDict], T]
    ) -> tuple[dict[int, T], dict[int, str]]:
        """What clients answer to their messages, and why the answers of others do not count."""
        answers = self.connection.exchange(kind, contents, self.config.timeout)
        good: dict[int, T] = {}
        bad: dict[int, str] = {}
        for client in contents:
            answer = answers.get(client)
            try:
                if answer is None:
                    raise InputError("it", "did not answer in time")
                if answer.has_error():
                    raise InputError("it", f"answers with an error ({answer.error.reason})")
                good[client] = read(client, answer.content)
            except Exception as error:  # whatever a reply holds, the round goes on for the others
                bad[client] = str(error)[:300]
        return good, bad

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
            time.sleep(ROLL_CALL)

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

    # --- evaluation ----------------------------------------------------------------------------------

    def _evaluate(self, outcome: Outcome) -> tuple[Row | None, list[Row]]:
        """Let all clients that are there test the merged model.

        Gives the row of the history, and a row for each client.
        """
        model, online = outcome.evaluated, self.connection.online
        assert model is not None, "federations merge"
        metric, header, names = self.plan.setting.metric, self._job_header(), self.config.clients
        contents = {client: messages.evaluation_order(model, header) for client in online}

        def read(client: int, content: RecordDict) -> dict[str, float]:
            return messages.read_evaluation_reply(content, online[client]["tests"], metric)

        answers, bad = self._ask(MessageType.EVALUATE, contents, read)
        for client, why in bad.items():
            log.warning("the test of %s is left out: %s", names[client], why)
        scores = {client: score for client, score in sorted(answers.items()) if score["samples"]}
        sites: list[Row] = [
            {
                "round": outcome.round, "client": names[client], "samples": int(score["samples"]),
                "test_accuracy": score["metric"] / score["samples"],
                "test_loss": score["loss"] / score["samples"],
            }
            for client, score in scores.items()
        ]  # fmt: skip
        n, total, loss = (
            sum(score[name] for score in scores.values()) for name in ("samples", "metric", "loss")
        )
        private: Row = {}
        if self.privacy is not None:  # losses have no noise, so they stay at the clients
            private = {"train_loss": None, EPSILON: self.account.epsilon(self.privacy.delta)}
        row = self.record.row(
            outcome, test_accuracy=total / n if n else None, test_loss=loss / n if n else None,
            seconds=self.seconds(), x_clients=len(sites), x_server_accuracy=self.plan.test(model),
            x_worst_client=min((site["test_accuracy"] for site in sites), default=None), **private,
        )  # fmt: skip
        added = self.record.add(outcome, row)
        self.rows += [] if added is None else [added]
        return added, sites

    def seconds(self) -> float:
        """Since the run began, over all processes that worked on it."""
        return time.perf_counter() - self.began

    # --- on disk -------------------------------------------------------------------------------------

    def history(self) -> str:
        return Table((*COLUMNS, EPSILON) if self.privacy else COLUMNS, self.rows).csv()

    def save(self) -> None:
        """Write the state after a round."""
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
        saved = list_checkpoints(self.checkpoints, self.plan.setting.name)
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
        self.rows = list(Table.parse(read_history(file), file))
        return True


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
    filled = np.where(there, cohort, -1)
    if policy == "uniform":
        spare = rng.stream(seed, "stand-in", round).permutation(np.setdiff1d(present, cohort))
        empty = np.flatnonzero(~there)[: len(spare)]
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


class Connection:
    """Sends messages to clients and waits for their replies, over Flower's grid.

    Clients are numbered by their order. Flower numbers nodes, and one that comes back has another number.
    """

    def __init__(self, grid: Grid, names: Sequence[str], audit: AuditLog) -> None:
        self.grid, self.names, self.audit = grid, list(names), audit
        self.online: dict[int, dict[str, Any]] = {}  # by client: how it has introduced itself
        self._nodes: dict[int, int] = {}  # by client: its node
        self._refused: set[int] = set()  # nodes that are no clients of this federation

    def roll_call(self) -> dict[int, dict[str, Any]]:
        """The clients that are there now. New nodes are asked who they are."""
        nodes = {int(node.node_id): str(node.name) for node in self.grid.get_nodes()}
        self._refused &= nodes.keys()  # one that comes back is asked again
        for client in [client for client, node in self._nodes.items() if node not in nodes]:
            self.forget(client)
        new = nodes.keys() - self._refused - set(self._nodes.values())
        asked = {node: RecordDict() for node in nodes if node in new}  # in their order
        replies = self._exchange(f"{MessageType.QUERY}.hello", asked, HELLO)
        for node in [node for node in asked if node in replies and replies[node].has_content()]:
            try:
                self._introduce(node, nodes[node], replies[node].content)
            except Exception as error:  # whatever it holds
                log.warning("node %d is not used: %s", node, error)
                self._refused.add(node)
        return self.online

    def _introduce(self, node: int, registered: str, content: RecordDict) -> None:
        """Accept a node as a client, or refuse it. `registered`: the name for which its key is."""
        about = messages.read_introduction(content)
        name, field = about["name"], f"its name, {about['name']!r},"
        require(field, name in self.names, "is of no client of this federation")
        require(field, registered in ("", name), f"is not that of its key: {registered}")
        fix = f"install the same fedskip as here; it has {about['fedskip']}"
        require("its protocol", about["protocol"] == PROTOCOL, "is another", about["protocol"], fix)
        client = self.names.index(name)
        require(field, client not in self._nodes, "is that of another node")
        self._nodes[client], self.online[client] = node, about
        log.info("%s is there, with %d samples", name, about["samples"])

    def forget(self, client: int) -> None:
        """Ask a client again who it is: its node has gone, or has not done what was expected."""
        del self._nodes[client], self.online[client]

    def exchange(
        self, kind: str, contents: Mapping[int, RecordDict], timeout: float
    ) -> dict[int, Message]:
        """Send a message to each of some clients; gives the replies that came in time, by client."""
        nodes = {client: self._nodes[client] for client in contents}
        by_node = {nodes[client]: content for client, content in contents.items()}
        replies = self._exchange(kind, by_node, timeout)
        return {client: replies[node] for client, node in nodes.items() if node in replies}

    def _exchange(
        self, kind: str, contents: Mapping[int, RecordDict], timeout: float
    ) -> dict[int, Message]:
        """The same by node: by where an order went, as Flower itself answers for nodes that died."""
        sent = [Message(content, node, kind, ttl=timeout) for node, content in contents.items()]
        for message in sent:
            self._note("sent", message, message.metadata.dst_node_id)
        ids = self.grid.push_messages(sent) if sent else []
        # none: it could not be sent
        waiting = {id: node for id, node in zip(ids, contents, strict=False) if id}
        replies: dict[int, Message] = {}
        end, pause = time.monotonic() + timeout, POLL[0]
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    replies[node] = reply
                    self._note("received", reply, node)
            if not waiting or time.monotonic() >= end:
                break
            time.sleep(pause)
            pause = min(1.25 * pause, POLL[1])
        return replies

    def _note(self, direction: str, message: Message, node: int) -> None:
        names = {node: self.names[client] for client, node in self._nodes.items()}
        self.audit.note(direction, message, client=names.get(node, f"node {node}"))
