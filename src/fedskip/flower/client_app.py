"""The ClientApp: a client with its data and its memory, which answers the server's messages.

A SuperNode starts a new process of it for each message. Nothing but its replies leaves the machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedskip.data.archives import read_npz
from fedskip.data.dataset import Dataset
from fedskip.data.division import split
from fedskip.data.loaded import LoadedDatasets
from fedskip.engine.evaluate import Evaluator
from fedskip.engine.loop import Loop
from fedskip.engine.task import Job, Task
from fedskip.engine.upload_filters import UploadFilter
from fedskip.errors import InputError, require
from fedskip.federation import Clients, Orders, Replies, make_clients
from fedskip.files import expand_home, locked
from fedskip.flower import messages
from fedskip.flower.config import NodeConfig
from fedskip.flower.job_spec import JobSpec, layout_digest
from fedskip.flower.memory import MemoryFiles
from fedskip.flower.messages import AUDIT, ME, AuditLog
from fedskip.flower.privacy import ACCOUNT, PrivacyAccount, client_noise, fingerprint, noise_key
from fedskip.methods.base import State
from fedskip.parsing import is_own, load
from fedskip.study.machine import resolve_device

DELTA = 1e-5  # at which a client counts its own epsilon, or at the study's if that is smaller
log = logging.getLogger(__name__)

# --- messages ------------------------------------------------------------------------------------

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    return answer(message, context, Client.introduce)


@app.train()
def train(message: Message, context: Context) -> Message:
    return answer(message, context, Client.train)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return answer(message, context, Client.evaluate)


def answer(
    message: Message, context: Context, act: Callable[[Client, RecordDict], RecordDict]
) -> Message:
    """The reply to a message. Both are noted in the audit log."""
    try:
        client = Client(NodeConfig.parse(context.node_config))
        audit = AuditLog(client.state_dir / AUDIT)
        audit.note("received", message)
        content = act(client, message.content)
    except Exception as error:  # its text may hold values of the data, so it stays here
        kind = message.metadata.message_type
        log.error("this client cannot %s: %s: %s", kind, type(error).__name__, error)
        raise ClientError(public_text(error, str(context.node_config.get("name")))) from error
    reply = Message(content, reply_to=message)
    audit.note("sent", reply)
    return reply


class ClientError(RuntimeError):
    """All that the server learns of a failure. The client's own log has the rest."""


def public_text(error: Exception, name: str) -> str:
    """What the server may know of an error: its kind, and the module if one is missing."""
    if isinstance(error.__cause__, ModuleNotFoundError):
        fix = "install it there, beside fedskip, as it is on the server"
        return f"the module {error.__cause__.name} is not installed at {name}: {fix}"
    return f"{type(error).__name__}; the client's log says more"


# --- the client ----------------------------------------------------------------------------------


class Client:
    """One client, where its data are."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.state_dir = expand_home(config.state_dir, "state_dir")

    def introduce(self, _: RecordDict) -> RecordDict:
        """Say who this is, and how many samples it has."""
        train, test = self.samples
        return messages.introduction(self.config.name, len(train), len(test))

    def train(self, content: RecordDict) -> RecordDict:
        """Train the visit that an order asks for."""
        orders, header = messages.read_train_order(content)
        job = JobSpec.parse(str(header.pop("job", "")))
        replies = self.visit(orders, job, **header)
        return messages.train_reply(replies, private=job.privacy is not None)

    def evaluate(self, content: RecordDict) -> RecordDict:
        """Test a model on this client's test samples."""
        x, header = messages.read_evaluation_order(content)
        job = JobSpec.parse(str(header.get("job", "")))
        return messages.evaluation_reply(self.score(x, job, str(header.get("layout", ""))))

    def visit(
        self, orders: Orders, job: JobSpec, *, run: str, accepted: int, omega: float, layout: str
    ) -> Replies:
        """Train one visit, with the memory of the last round whose reply the server has accepted."""
        task = self._task(job, layout)
        train, _ = self.samples
        rule = f"must fit every client; this one has {len(train)} samples"
        require("local.batch", len(train) >= job.local.fewest, rule, job.local.batch)

        self.state_dir.mkdir(parents=True, exist_ok=True)
        with locked(self.state_dir, wait=True):  # an earlier visit may still be running
            x = orders.x.to(self.device)
            sent = {name: tensor.to(self.device) for name, tensor in orders.sent.items()}
            orders = Orders(orders.round, ME, ME, orders.keys, x, sent)
            files, memory = MemoryFiles(self.state_dir, run), State()
            if job.method.remembers and accepted:
                saved = files.load(accepted)
                memory = {name: tensor.to(self.device)[None] for name, tensor in saved.items()}
            header = f"{run} {accepted} {omega!r} {layout}"
            privacy = self._privacy(job, task, orders, memory, header)
            client = make_clients(
                task, [train], job.method, x[0], rounds=job.rounds, upload_filter=privacy
            )
            client.omega = np.array([omega])
            if memory:
                client.memory.keep(ME, memory)
            replies = _trained(task, client, orders)
            if job.method.remembers:
                rows, _ = client.memory.recall(ME)
                state = {name: row[0] for name, row in rows.items()}
                files.save(orders.round + 1, state, accepted)
        return replies

    def score(self, x: Tensor, job: JobSpec, layout: str) -> dict[str, float | int]:
        """Sums over the test samples, which tell nothing of single classes."""
        _, test = self.samples
        n = len(test)
        if not n:
            return {"metric": 0.0, "loss": 0.0, "samples": 0}
        scores = Evaluator(self._task(job, layout), stacked=False)(x.to(self.device)[None], test)
        metric, loss = float(scores.metric[0]), float(scores.loss[0])
        return {"metric": metric * n, "loss": loss * n, "samples": n}

    def _task(self, job: JobSpec, layout: str) -> Task:
        task = job.task(self.dataset, self.device)
        rule = "is laid out differently by this client than by the server"
        fix = "install the same fedskip, and the same module of your own, on both sides"
        require("model", layout_digest(task.layout) == layout, rule, fix=fix)
        return task

    def _privacy(
        self, job: JobSpec, task: Task, orders: Orders, memory: State, header: str
    ) -> UploadFilter | None:
        """What makes a model private before it leaves, if the study asks for it."""
        privacy, config = job.privacy, self.config
        if privacy is None:
            rule = "must be kept by studies here: client.yaml has an epsilon"
            require("privacy", config.epsilon is None, rule, fix="add it to the study")
            return None
        privacy.refuse_buffers(task.module)
        account = PrivacyAccount(self.state_dir / ACCOUNT)

        def count(visit: str) -> None:
            if config.epsilon is not None:
                delta = min(privacy.delta, DELTA)
                account.refuse_beyond(config.epsilon, delta, config.name, visit, privacy.sigma)
            account.add(config.name, visit, privacy.sigma)

        text = f"{header} {orders.round} {orders.keys[0]} {job.dump()}"
        tensors = [part for state in (orders.sent, memory) for _, part in sorted(state.items())]
        order = fingerprint(text, orders.x, *tensors)
        noise = client_noise(noise_key(self.state_dir), order, count)
        return UploadFilter(task.layout.trainable, privacy, draw=noise)

    # --- its data ------------------------------------------------------------------------------------

    @cached_property
    def device(self) -> torch.device:
        return torch.device(resolve_device(self.config.device))

    @cached_property
    def dataset(self) -> Dataset:
        dataset = self._load()
        rule = "is not for federations: each client would scale by its own numbers"
        require("standardize", not dataset.standardize, rule, fix="scale the data before")
        return dataset

    def _load(self) -> Dataset:
        data, loader = self.config.data, self.config.loader
        if loader is None:
            return LoadedDatasets().get({"name": data}).dataset
        require("loader", is_own(loader), "must be MODULE:FUNCTION", loader)
        try:
            made: Any = load(loader, "loader")(data)
        except InputError:
            raise
        except Exception as error:  # whatever a user's function raises
            rule = f"fails: {type(error).__name__}: {error}"
            raise InputError(f"loader {loader}", rule) from error
        rule, fix = "must give a fedskip.Dataset", "docs/federation.md has an example"
        require(f"loader {loader}", isinstance(made, Dataset), rule, type(made).__name__, fix)
        return LoadedDatasets().get(made).dataset

    @cached_property
    def samples(self) -> tuple[np.ndarray, np.ndarray]:
        """Which samples of the data set train here, and which test."""
        share = self.config.share
        train, test = split(self.dataset, 0) if share is None else self._share(share)
        rule = "must hold at least one sample to train on"
        require("data", len(train) > 0, rule, self.config.data)
        return train, test

    def _share(self, share: str) -> tuple[np.ndarray, np.ndarray]:
        """The samples that a file names."""
        path, total = expand_home(share, "share"), len(self.dataset.samples)
        arrays = read_npz(path, "share", "write it with np.savez(path, train=..., test=...)")
        for key in ("train", "test"):
            index = arrays.get(key, np.zeros((0, 0)))
            ok = index.ndim == 1
            if ok and len(index):
                ok = index.dtype.kind in "iu" and 0 <= index.min() <= index.max() < total
            rule = f"must hold the numbers of samples as {key!r}, from 0 to {total - 1}"
            require(str(path), bool(ok), rule)
        return arrays["train"].astype(np.int64), arrays["test"].astype(np.int64)


def _trained(task: Task, client: Clients, orders: Orders) -> Replies:
    engine = Loop(task)
    terms, routes = client.begin(orders)
    with engine.open():
        engine.join([Job(orders.x, terms, routes)])
        [trained] = engine.advance()
        return client.end(orders, trained.routes, trained.y, trained.loss)
