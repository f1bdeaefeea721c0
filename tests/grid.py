"""Flower's grid without a network: messages are taken apart into bytes and put together again, as it does."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedskip import rng
from fedskip.config import Tree, build, plain
from fedskip.config.tree import named_code
from fedskip.data.catalogue import LoadedDatasets
from fedskip.engine.arithmetic import EXACT
from fedskip.engine.loop import Loop
from fedskip.federation import Run, train
from fedskip.flower.client_app import app
from fedskip.flower.config import IN_NODE, FederationConfig
from fedskip.flower.coordinator import Connection, Coordinator
from fedskip.flower.folder import split_data
from fedskip.flower.messages import AuditLog
from fedskip.flower.plan import FederationPlan
from fedskip.study.prepare import prepare

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = (
    1,
    1,
    1,
)  # who sends, as Flower has it

OWN_METHOD = """
from dataclasses import dataclass
import fedskip
from fedskip.methods.base import TRAINABLE
from fedskip.methods.terms import Terms

@dataclass(frozen=True, kw_only=True)
class Pulled(fedskip.Method):
    strength: float = 1.0
    title = "Pulled"
    remembers = {"last": TRAINABLE}
    def begin(self, x, memory, server, visit):
        return Terms(linear=self.strength * (x - memory["last"]) * ~visit.first)
    def end(self, x, y, memory, server, visit):
        return {"last": y}, {}
"""

Spoil = Callable[
    [Message, Message], Message | None
]  # an order and its reply: what comes back of it


class Died(Exception):
    """Of the server, in the middle of a round."""


def die(order: Message, reply: Message) -> Message:
    """In round 2, when its first site has trained and remembered."""
    if order.metadata.message_type == "train" and order.content["visit"]["round"] == 2:
        raise Died
    return reply


def carried(message: Message) -> Message:
    """What arrives of a message."""
    objects = get_all_nested_objects(message)
    id = message.object_id
    arrived: Any = inflate_object_from_contents(
        id, {key: one.deflate() for key, one in objects.items()}
    )
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
        config = json.dumps(self.configs[node])
        context = Context(0, node, {IN_NODE: config}, RecordDict(), {})
        try:
            return app(message, context)
        except Exception as error:
            return Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message
            )

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(id) for id in list(ids) if id in self._replies]

    def trained(self) -> list[Message]:
        """The training messages that went out."""
        return [message for message in self.sent if message.metadata.message_type == "train"]


def data_file(folder: Path, clients: int = 3) -> Path:
    """Two classes in the plane, for some clients; a third of the samples is for testing."""
    draw = rng.stream("grid")
    sizes = np.array([40, 64, 31, 52, 45, 38])[:clients]
    client = np.repeat(np.arange(clients), sizes)
    x = draw.normal(size=(len(client), 2)) + draw.normal(size=(clients, 2))[client]
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "pool.npz", x=x.astype(np.float32), y=y, client=client)
    return folder / "pool.npz"


def plan_of(
    folder: Path, clients: int = 3, agreed: dict[str, Any] | None = None, **keys: Any
) -> FederationPlan:
    """A small study for some clients."""
    study: dict[str, Any] = {
        "data": {"name": str(data_file(folder, clients)), "test_fraction": 0.3}, "cohort": clients,
        "model": {"name": "mlp", "hidden": [4]}, "methods": "fedavg", "rounds": 4, "seeds": [5],
        "local": {"max_steps": 3, "epochs": 1, "batch": 8, "lr": 0.1},
    }  # fmt: skip
    spec = build(Tree(study | keys))
    waits = {"wait": 0.5, "timeout": 0.2}
    names = tuple("abcdefgh"[:clients])
    return FederationPlan.make(spec, FederationConfig(clients=names, **(waits | (agreed or {}))))


def in_process(plan: FederationPlan, finish: bool = True) -> Run:
    """The same run, trained by the loop engine in this process; `finish`: with its extra merge, if any."""
    prepared = prepare(plan.spec.settings[0], LoadedDatasets(), torch.device("cpu"), EXACT)
    run = prepared.run(plan.setting.runs[0])
    for _ in train(Loop(prepared.task), [run], plan.setting.rounds):
        pass
    if finish:
        run.finish()
    return run


def places(plan: FederationPlan, folder: Path) -> dict[int, dict[str, Any]]:
    """A node for every client of a plan: each has its share of the data."""
    configs, code = {}, [name for _, name in named_code(plain(plan.spec, [plan.setting]))]
    for i, (name, own) in enumerate(split_data(plan).items()):
        mine = folder / name
        mine.mkdir(parents=True, exist_ok=True)
        np.savez(mine / "share.npz", train=own[0], test=own[1])
        configs[1000 + i] = {
            "name": name, "data": plan.setting.data["name"], "share": str(mine / "share.npz"),
            "state_dir": str(mine / "state"), "device": "cpu", "allow": code,
        }  # fmt: skip
    return configs


def play(
    plan: FederationPlan, grid: Any, checkpoints: Path | None = None, rounds: int | None = None
) -> Coordinator:
    """Train a federation to its end, or some rounds of it."""
    with tempfile.TemporaryDirectory() as own:
        folder = checkpoints or Path(own) / "checkpoints"
        coordinator = Coordinator(plan, connect(plan, grid), folder)
        coordinator.restore()
        for _ in coordinator.rounds():
            if coordinator.run.round == rounds:
                break
    return coordinator


def connect(plan: FederationPlan, grid: Any, audit: Path = Path(os.devnull)) -> Connection:
    return Connection(grid, plan.config.clients, AuditLog(audit))
