"""The ClientApp: a client with its data and its memory, which answers the server's messages.

A SuperNode starts a new process of it for each message. Nothing but its replies leaves the machine.
"""

from __future__ import annotations

import logging
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from fedskip.data.archives import read_npz
from fedskip.data.catalogue import LoadedDatasets
from fedskip.data.dataset import Dataset
from fedskip.data.division import split
from fedskip.engine.evaluate import Evaluator
from fedskip.engine.loop import Loop
from fedskip.engine.task import Job, Task
from fedskip.engine.upload_filters import UploadFilter
from fedskip.errors import InputError, require
from fedskip.federation import Clients, Orders, Replies, make_clients
from fedskip.files import digest, expand_home, locked, remove_partial_files, write_bytes
from fedskip.flower import messages
from fedskip.flower.config import ClientConfig
from fedskip.flower.messages import AUDIT, ME, AuditLog
from fedskip.flower.plan import JobSpec, layout_digest, refuse_standardized
from fedskip.flower.privacy import ACCOUNT, PrivacyAccount, client_noise, fingerprint, noise_key
from fedskip.methods.base import State
from fedskip.parsing import is_own, load
from fedskip.study.machine import resolve_device

DELTA = 1e-5  # at which a client counts its own epsilon, or at the study's if that is smaller
_FILE = re.compile(r"(\d{6,})\.([0-9a-f]{16})\.safetensors")
_RUN = re.compile(r"[0-9a-f]{16,64}")
_BRING_BACK = "bring back the state-dir as it was"
log = logging.getLogger(__name__)

# --- messages ------------------------------------------------------------------------------------


class ClientError(RuntimeError):
    """All that the server learns of a failure: its kind, or the module that is missing."""

    def __init__(self, error: Exception) -> None:
        text = f"{type(error).__name__}; the client's log says more"
        if isinstance(error.__cause__, ModuleNotFoundError):
            fix = "install it there, beside fedskip, as it is on the server"
            text = f"the module {error.__cause__.name} is not installed: {fix}"
        super().__init__(text)


def answer(message: Message, context: Context) -> Message:
    """The reply to a message. Both are noted in the audit log."""
    kind = message.metadata.message_type.partition(".")[0]
    try:
        client = Client(ClientConfig.of_node(context.node_config))
        audit = AuditLog(client.state_dir / AUDIT)
        audit.note("received", message)
        act = {"query": client.introduce, "train": client.train, "evaluate": client.evaluate}[kind]
        content = act(message.content)
    except Exception as error:  # its text may hold values of the data, so it stays here
        log.error("this client cannot %s: %s: %s", kind, type(error).__name__, error)
        raise ClientError(error) from error
    reply = Message(content, reply_to=message)
    audit.note("sent", reply)
    return reply


app = ClientApp()
for register in (app.query("hello"), app.train(), app.evaluate()):
    register(answer)

# --- the client ----------------------------------------------------------------------------------


class Client:
    """One client, where its data are."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.state_dir = expand_home(config.state_dir, "state_dir")

    def introduce(self, _: RecordDict) -> RecordDict:
        """Say who this is, and how many samples it has."""
        train, test = self.samples
        return messages.introduction(self.config.name, len(train), len(test))

    def train(self, content: RecordDict) -> RecordDict:
        """Train the visit that an order asks for."""
        orders, header = messages.read_train_order(content)
        job = JobSpec.parse(str(header.pop("job", "")), self.config.allow)
        replies = self.visit(orders, job, **header)
        return messages.train_reply(replies, private=job.privacy is not None)

    def evaluate(self, content: RecordDict) -> RecordDict:
        """Test a model on this client's test samples. Sums tell nothing of single classes."""
        x, header = messages.read_evaluation_order(content)
        job = JobSpec.parse(str(header.get("job", "")), self.config.allow)
        _, test = self.samples
        if not len(test):
            return messages.evaluation_reply({"metric": 0.0, "loss": 0.0, "samples": 0})
        evaluator = Evaluator(self._task(job, str(header.get("layout", ""))), stacked=False)
        scores = evaluator(x.to(self.device)[None], test)
        sums = {name: float(getattr(scores, name)[0]) * len(test) for name in ("metric", "loss")}
        return messages.evaluation_reply({**sums, "samples": len(test)})

    def visit(
        self, orders: Orders, job: JobSpec, *, run: str, accepted: int, omega: float, layout: str
    ) -> Replies:
        """Train one visit, with the memory of the last round whose reply the server has accepted."""
        task = self._task(job, layout)
        train, _ = self.samples
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
        named: Any = {"name": self.config.data}
        if self.config.loader is not None:
            named = loaded(self.config.loader, self.config.data)
        dataset = LoadedDatasets().get(named)
        refuse_standardized(dataset)
        return dataset

    @cached_property
    def samples(self) -> tuple[np.ndarray, np.ndarray]:
        """Which samples of the data set train here, and which test."""
        share = self.config.share
        if share is None:
            train, test = split(self.dataset, 0)
        else:
            train, test = read_share(expand_home(share, "share"), len(self.dataset.samples))
        rule = "must hold at least one sample to train on"
        require("data", len(train) > 0, rule, self.config.data)
        return train, test


def loaded(loader: str, data: str) -> Dataset:
    """What a site's own function makes of its data."""
    require("loader", is_own(loader), "must be MODULE:FUNCTION", loader)
    field = f"loader {loader}"
    try:
        made: Any = load(loader, "loader")(data)
    except InputError:
        raise
    except Exception as error:  # whatever a user's function raises
        raise InputError(field, f"fails: {type(error).__name__}: {error}") from error
    rule, fix = "must give a fedskip.Dataset", "docs/federation.md has an example"
    require(field, isinstance(made, Dataset), rule, type(made).__name__, fix)
    return made


def read_share(path: Path, total: int) -> tuple[np.ndarray, np.ndarray]:
    """The samples that a file names, to train on and to test on; `total`: how many there are."""
    arrays = read_npz(path, "share", "write it with np.savez(path, train=..., test=...)")
    for key in ("train", "test"):
        index = arrays.get(key, np.zeros((0, 0)))
        whole = index.ndim == 1 and (not len(index) or index.dtype.kind in "iu")
        ok = whole and bool(((index >= 0) & (index < total)).all())
        rule = f"must hold the numbers of samples as {key!r}, from 0 to {total - 1}"
        require(str(path), ok, rule)
    return arrays["train"].astype(np.int64), arrays["test"].astype(np.int64)


def _trained(task: Task, client: Clients, orders: Orders) -> Replies:
    engine = Loop(task)
    terms, routes = client.begin(orders)
    with engine.open():
        engine.join([Job(orders.x, terms, routes)])
        [trained] = engine.advance()
        return client.end(orders, trained.routes, trained.y, trained.loss)


# --- its memory ----------------------------------------------------------------------------------


class MemoryFiles:
    """What a client remembers in one run: a version for each of the last two rounds that matter.

    A reply may get lost after the client has trained. So the server names the last round whose reply it has
    accepted, and the client continues from its memory of that round: a lost reply or a replay changes nothing.
    """

    def __init__(self, state_dir: Path, run: str) -> None:
        """`run`: the server's name for it, which becomes the name of a folder."""
        ok = bool(_RUN.fullmatch(run))
        require("the run's name", ok, "must be 16 hexadecimal digits or more", run)
        self.folder = state_dir / run
        remove_partial_files(self.folder)

    def load(self, round: int) -> State:
        """The memory after a round; empty before the first visit, which is round 0."""
        if round == 0:
            return {}
        path = dict(self._versions()).get(round)
        if path is None:
            rule = f"has no memory of round {round}, which the server has accepted"
            raise InputError(str(self.folder), rule, fix=_BRING_BACK)
        content = path.read_bytes()
        try:
            if digest(content) != path.name.split(".")[1]:
                raise ValueError("its bytes are not what its name says")
            return load_tensors(content)
        except (SafetensorError, ValueError) as error:
            raise InputError(str(path), f"is damaged ({error})", fix=_BRING_BACK) from error

    def save(self, round: int, state: State, accepted: int) -> None:
        """Write the memory after a round. Keep that of the accepted round, and drop older ones."""
        own = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        content = save_tensors(own)
        path = self.folder / f"{round:06d}.{digest(content)}.safetensors"
        write_bytes(path, content)
        for other, file in self._versions():
            replaced = other == round and file != path
            if replaced or (other < round and other != accepted):  # later ones may be accepted yet
                file.unlink()

    def _versions(self) -> list[tuple[int, Path]]:
        files = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        matches = [(_FILE.fullmatch(file.name), file) for file in files]
        return [(int(match[1]), file) for match, file in matches if match]
