"""Flower's grid without a network: messages are taken apart into bytes and put together again, as it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedskip.data.division import divide
from fedskip.data.pools import Pools
from fedskip.flower.agreement import Agreement
from fedskip.flower.audit import Audit
from fedskip.flower.clientapp import app
from fedskip.flower.conductor import Conductor
from fedskip.flower.line import Line
from fedskip.flower.plan import Plan
from fedskip.flower.strategy import SkippingStrategy
from fedskip.spec import Tree, build

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # who sends, as Flower has it

Spoil = Callable[[Message, Message], Message | None]  # an order and its reply: what comes back of it


def carried(message: Message) -> Message:
    """What arrives of a message."""
    objects = get_all_nested_objects(message)
    id = message.object_id
    arrived: Any = inflate_object_from_contents(id, {key: one.deflate() for key, one in objects.items()})
    arrived.metadata.__dict__["_message_id"] = id
    return arrived


class FakeGrid:
    """Sites in this process, which answer when they are asked. `spoil` may change or lose replies."""

    def __init__(self, configs: dict[int, dict[str, Any]], spoil: Spoil | None = None) -> None:
        self.configs, self.spoil = configs, spoil
        self.away: set[int] = set()  # nodes that are offline
        self.registered: dict[int, str] = {}
        self.sent: list[Message] = []
        self._replies: dict[str, Message] = {}

    def get_nodes(self) -> list[SimpleNamespace]:
        there = [node for node in self.configs if node not in self.away]
        return [SimpleNamespace(node_id=node, name=self.registered.get(node, "")) for node in there]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            arrived = carried(message)
            self.sent.append(arrived)
            node = message.metadata.dst_node_id
            ids.append(arrived.metadata.message_id)
            reply = self._answer(arrived, node)
            if self.spoil is not None and message.metadata.message_type != "query.hello":
                reply = self.spoil(arrived, reply)
            if reply is not None:
                self._replies[ids[-1]] = carried(reply)
        return ids

    def _answer(self, message: Message, node: int) -> Message:
        context = Context(0, node, self.configs[node], RecordDict(), {})
        try:
            return app(message, context)
        except Exception as error:
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(id) for id in list(ids) if id in self._replies]

    def trained(self) -> list[Message]:
        """The training messages that went out."""
        return [message for message in self.sent if message.metadata.message_type == "train"]


def plan_of(names: Iterable[str], agreed: dict[str, Any] | None = None, **keys: Any) -> Plan:
    """A small study on SYNTHETIC for some clients."""
    names = tuple(names)
    study: dict[str, Any] = {
        "data": "synthetic", "partition": {"kind": "dirichlet", "beta": 0.5}, "cohort": len(names),
        "methods": "fedavg", "rounds": 4, "seeds": [5], "local": {"max_steps": 3, "epochs": 1, "batch": 16},
        "engine": "loop",
    }  # fmt: skip
    spec = build(Tree(study | keys))
    waits = {"wait": 0.5, "timeout": 0.5}
    return Plan.of(spec, Agreement(clients=names, **(waits | (agreed or {}))))


def places(plan: Plan, folder: Path) -> dict[int, dict[str, Any]]:
    """A node for every client of a plan: each has its share of the data."""
    setting = plan.setting
    division = divide(
        Pools().get(setting.data).dataset, setting.division_seed(plan.seed), partition=setting.partition,
        clients=setting.clients, cohort=setting.cohort, batch=1, drop_small=False, validation=0.0, eval_samples=None,
    )  # fmt: skip
    configs, tests = {}, np.array_split(division.test, len(plan.agreement.clients))
    for i, (name, test) in enumerate(zip(plan.agreement.clients, tests, strict=True)):
        own = folder / name
        own.mkdir(parents=True, exist_ok=True)
        np.savez(own / "share.npz", train=division.clients[i], test=test)
        configs[1000 + i] = {
            "name": name, "data": "synthetic", "share": str(own / "share.npz"), "state-dir": str(own / "state"),
            "device": "cpu",
        }  # fmt: skip
    return configs


def play(plan: Plan, grid: Any, folder: Path | None = None, rounds: int | None = None) -> Conductor:
    """Play a plan to its end, or some rounds of it."""
    conductor = Conductor(plan, folder)
    conductor.restore()
    line = Line(grid, plan.agreement.clients, Audit(None))
    strategy = SkippingStrategy(conductor, line, Stop(rounds))
    try:
        strategy.play()
    except Stopped:
        pass
    return conductor


class Stopped(Exception):
    pass


class Stop:
    def __init__(self, rounds: int | None) -> None:
        self.rounds = rounds

    def __call__(self, conductor: Conductor, row: Any, scores: Any) -> None:
        if conductor.round == self.rounds:
            raise Stopped
