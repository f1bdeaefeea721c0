"""The server's half of a federation: who is visited, what is taken in, what comes of it, on disk each round.

It knows no network. `strategy.py` carries its orders to the sites and brings their replies back.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip import rng
from fedskip.engine.arithmetic import torch_threads
from fedskip.engine.handed import EPSILON
from fedskip.federation import Clients, Orders, Outcome, Replies, Run, Server
from fedskip.flower.plan import Plan
from fedskip.flower.private import ACCOUNT, Account, fingerprint
from fedskip.flower.screening import along, screen
from fedskip.flower.work import layout_digest
from fedskip.input.errors import InputError
from fedskip.records.checkpoint import found, load_checkpoint, read_history, save_checkpoint
from fedskip.records.history import HISTORY
from fedskip.records.table import Row, Table
from fedskip.study.judge import Standing, is_due, restore_all, save_all

log = logging.getLogger(__name__)

COLUMNS = (*HISTORY, "x_worst_client", "x_clients", "x_server_accuracy")


class Conductor:
    """One run whose clients are elsewhere."""

    def __init__(self, plan: Plan, checkpoints: Path | None = None) -> None:
        """`checkpoints`: where the state after every round is kept; None: nowhere."""
        setting, method, seed = plan.setting, plan.method, plan.seed
        self.plan, self.checkpoints, self.layout = plan, checkpoints, plan.layout
        self.clients = len(plan.agreement.clients)
        x = plan.start("init")
        server = Server(
            method, x, self.layout, clients=self.clients, slots=setting.cohort, seed=seed,
            policy=setting.cohort_policy, fresh=lambda: plan.start("fresh"),
        )  # fmt: skip
        elsewhere = Clients(method, self.layout, np.ones(self.clients, np.int64), _nowhere, x)
        self.run = Run(server, elsewhere, name=setting.run_name(method, seed), last=setting.rounds)
        self.standing = Standing(self.run, setting.name, setting.label(method))
        self.sizes = np.zeros(self.clients, np.int64)  # samples, as each has said
        self.accepted = np.zeros(self.clients, np.int64)  # the last round of each whose reply was taken in
        self.experiment = plan.experiment
        self.privacy = setting.privacy
        self.account = Account(checkpoints and checkpoints.with_name(ACCOUNT))
        self.rows: list[Row] = []  # of the history
        self.outcome: Outcome | None = None  # that waits to be evaluated
        self.sent: Orders | None = None  # in this round
        self.began = time.perf_counter()

    @property
    def round(self) -> int:
        """Rounds that are done."""
        return self.run.round

    # --- a round -------------------------------------------------------------------------------------

    def orders(self, present: Sequence[int]) -> Orders:
        """The visits of the next round, to clients that are there."""
        server, round = self.run.server, self.run.round
        cohort = stand_in(server.cohort(round), present, server.seed, round, server.policy)
        slots = np.flatnonzero(cohort >= 0)
        keys = [rng.visit_key(server.seed, round, int(client)) for client in cohort[slots]]
        self.sent = replace(server.orders(round, slots), clients=cohort[slots], keys=keys)
        if self.privacy is not None:  # asked is spent, whatever becomes of the answer
            for k, client in enumerate(self.sent.clients):
                told = f"{round} {sorted(self.told(int(client)).items())}"
                visit = fingerprint(told, self.sent.x[k], *self.sent.sent.values())[:8].hex()
                self.account.note(self.plan.agreement.clients[client], visit, self.privacy.sigma)
        return self.sent

    def told(self, client: int) -> dict[str, Any]:
        """What a visit to a client says beside the model and its key."""
        known = self.sizes[self.sizes > 0]
        return {
            "run": self.experiment, "accepted": int(self.accepted[client]),
            "omega": float(self.sizes[client] * (len(known) / known.sum())),
            "layout": layout_digest(self.layout), "work": self.plan.work.dump(),
        }  # fmt: skip

    def take(self, replies: Mapping[int, Replies]) -> dict[int, str]:
        """End the round with what came back, by place among the orders; gives what was refused, and why.

        If nothing is taken in, the round has not been: it is played again.
        """
        orders, server = self.sent, self.run.server
        assert orders is not None, "no round is under way"
        sizes = {k: int(self.sizes[orders.clients[k]]) for k in replies}
        with torch_threads(1):  # as the loop engine has it: the same bits
            d, limit = self.layout.trainable, self.plan.agreement.norm_limit
            refused = screen(orders, replies, sizes, along(server.method, server.x, d, orders.sent), d, limit)
            ks = [k for k in sorted(replies) if k not in refused]
            self.sent = None
            if not ks:
                return refused
            taken = stacked([replies[k] for k in ks])
            server.absorb(orders, replace(taken, of=np.array(ks)))  # others stay without a reply
            self.run.steps += int(taken.steps.sum())
            self.accepted[orders.clients[ks]] = self.run.round = orders.round + 1
            if server.period.merges(self.run.round):
                self._merged(server.merge(self.run.round))
        return refused

    def finish(self) -> bool:
        """The extra merge where the period does not divide the rounds; whether there is one to evaluate."""
        with torch_threads(1):
            self.outcome = self.run.finish()
        return self.outcome is not None

    def _merged(self, outcome: Outcome) -> None:
        setting, standing = self.plan.setting, self.standing
        if is_due(setting, self.run.server.period, outcome.round, standing.evaluated_at):
            standing.evaluated_at = outcome.round
            self.outcome = outcome

    def judge(self, scores: Mapping[int, Mapping[str, float]]) -> Row:
        """The row of an outcome, from the sums that sites have sent, by client."""
        outcome, standing = self.outcome, self.standing
        assert outcome is not None
        assert outcome.evaluated is not None, "federations merge"
        sums = {name: sum(one[name] for one in scores.values()) for name in ("metric", "loss", "samples")}
        each = [one["metric"] / one["samples"] for one in scores.values()]
        n = sums["samples"] or math.nan
        row = standing.about() | {
            "round": outcome.round, "merges": outcome.merges,
            "test_accuracy": sums["metric"] / n, "test_loss": sums["loss"] / n,
            "val_accuracy": None, "slot_accuracy": None,
            "train_loss": None if outcome.train_loss is None or self.privacy else float(outcome.train_loss),
            "drift_mean": float(outcome.drift_mean),
            "drift_broadcast": float(outcome.drift_broadcast),
            "bytes_down": outcome.bytes_down, "bytes_up": outcome.bytes_up,
            "seconds": round(self.seconds(), 3), "x_broadcast_accuracy": None,
            "x_worst_client": min(each, default=math.nan), "x_clients": len(each),
            "x_server_accuracy": self.plan.test(outcome.evaluated),
        }  # fmt: skip
        if self.privacy is not None:
            row[EPSILON] = self.account.epsilon(self.privacy.delta)
        self._note(outcome, outcome.evaluated, row)
        return row

    def _note(self, outcome: Outcome, model: Tensor, row: Row) -> None:
        standing, self.outcome = self.standing, None
        if outcome.final:
            standing.final, standing.final_model = row["test_accuracy"], model
            return
        self.rows.append(row)
        standing.last_model = model
        if row["test_accuracy"] > standing.best:
            standing.best, standing.best_model = row["test_accuracy"], model

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
        tensors, runs = save_all([self.standing])
        name = self.plan.setting.name
        notes = {
            "study": "federation", "setting": name, "round": self.round, "seconds": self.seconds(),
            "runs": runs,
            "clients": list(self.plan.agreement.clients), "experiment": self.experiment,
            "accepted": self.accepted.tolist(), "sizes": self.sizes.tolist(),
        }  # fmt: skip
        save_checkpoint(self.checkpoints, name, self.round, tensors, notes, self.history())

    def restore(self) -> bool:
        """Go on from the last checkpoint, if there is one."""
        saved = [] if self.checkpoints is None else found(self.checkpoints, self.plan.setting.name)
        if not saved:
            return False
        _, file = saved[-1]
        tensors, notes = load_checkpoint(file)
        if notes.get("study") != "federation" or self.run.name not in notes["runs"]:
            raise InputError("checkpoint", "is not of this federation", str(file), "choose another folder")
        if notes["clients"] != list(self.plan.agreement.clients):
            fix = "bring back the clients of federation.yaml: they are drawn by their order"
            raise InputError("clients", "have changed since the run began", self.plan.agreement.clients, fix)
        restore_all([self.standing], tensors, notes["runs"])
        self.experiment, self.began = notes["experiment"], self.began - notes["seconds"]
        self.accepted, self.sizes = np.array(notes["accepted"]), np.array(notes["sizes"])
        self.rows = recorded(file)
        return True


def recorded(checkpoint: Path) -> list[Row]:
    """The history that a checkpoint holds."""
    return list(Table.parse(read_history(checkpoint) or "", checkpoint))


def stand_in(
    cohort: np.ndarray, present: Sequence[int], seed: int, round: int, policy: str = "uniform"
) -> np.ndarray:
    """The cohort, in which others that are there take the places of those who are not; -1: the slot idles.

    Where slots stay with their clients, nobody takes a place.

    >>> stand_in(np.array([2, 0, 1]), [0, 1, 2], seed=0, round=0)
    array([2, 0, 1])
    >>> stand_in(np.array([2, 0, 1]), [0, 1], seed=0, round=0)
    array([-1,  0,  1])
    """
    there = np.isin(cohort, present)
    if there.all():
        return cohort
    spare = np.setdiff1d(present, cohort)
    spare = rng.stream(seed, "stand-in", round).permutation(spare) if policy == "uniform" else spare[:0]
    filled, empty = np.where(there, cohort, -1), np.flatnonzero(~there)[: len(spare)]
    filled[empty] = spare[: len(empty)]
    return filled


def stacked(replies: Sequence[Replies]) -> Replies:
    """Single rows as one stack."""

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(one, name) for one in replies])

    return Replies(
        torch.cat([one.y for one in replies]),
        {name: torch.cat([one.upload[name] for one in replies]) for name in replies[0].upload},
        joined("samples"), joined("steps"), joined("a"), torch.cat([one.loss for one in replies]),
    )  # fmt: skip


def _nowhere(key: int, client: int, round: int) -> Any:
    raise AssertionError("no client is trained on the server")
