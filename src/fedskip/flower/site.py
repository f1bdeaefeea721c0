"""A site: one client with its own data, its memory, and the engine that trains a visit."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.data.arrays import read_npz
from fedskip.data.base import Dataset
from fedskip.data.pools import Pools
from fedskip.data.split import split
from fedskip.engine.evaluate import Evaluator
from fedskip.engine.handed import Handing
from fedskip.engine.local import Route, route
from fedskip.engine.loop import Loop
from fedskip.engine.task import Job, Task
from fedskip.federation import Clients, Orders, Replies
from fedskip.files import expanded, waited_for
from fedskip.flower.memory import Versions
from fedskip.flower.private import ACCOUNT, Account, fingerprint, own_noise, site_key
from fedskip.flower.work import Work, layout_digest
from fedskip.input.errors import InputError, require, unknown
from fedskip.input.fit import fit
from fedskip.input.named import is_own, load
from fedskip.methods.base import State
from fedskip.study.machine import resolve_device

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ME = np.zeros(1, np.int64)  # a site knows one client, itself
DELTA = 1e-5  # at which a site counts its own epsilon, or at the study's if that is smaller


def check_client(name: str, field: str = "name") -> str:
    rule = "must be letters, digits, dots, dashes and underscores, 64 at most"
    require(field, bool(NAME.fullmatch(name)), rule, name)
    return name


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a site is started with: its node config."""

    name: str
    data: str  # a file, or the name of a data set
    state_dir: Path  # where it remembers
    loader: str | None = None  # MODULE:FUNCTION, which makes a Dataset of `data`
    share: str | None = None  # a file that says which samples of a common data set are this site's
    device: str = "auto"
    split_seed: int = 0  # of data without a test set: never the study's
    epsilon: float | None = None  # the most that private visits may cost; None: the study decides

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Place":
        """From a node config, whose keys have dashes."""
        known = {"name": str, "data": str, "state-dir": str, "loader": str, "share": str, "device": str}
        kinds: dict[str, Any] = known | {"split-seed": int, "epsilon": float}
        values = {}
        for key, value in config.items():
            if key in ("partition-id", "num-partitions"):  # Flower's own
                continue
            if key not in kinds:
                raise unknown("node config", key, kinds)
            values[key.replace("-", "_")] = fit(f"node config {key}", value, kinds[key])
        for key in ("name", "data", "state-dir"):
            require(f"node config {key}", key.replace("-", "_") in values, "is missing")
        check_client(values["name"], "node config name")
        values["state_dir"] = expanded(values["state_dir"], "node config state-dir")
        return cls(**values)


class Site:
    """One client, where its data are."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @cached_property
    def dataset(self) -> Dataset:
        found = self._loaded()
        rule = "is not for federations: sites would scale by numbers of their own"
        require("standardize", not found.standardize, rule, fix="scale the data before")
        return found

    def _loaded(self) -> Dataset:
        place = self.place
        if place.loader is None:
            return Pools().get({"name": place.data}).dataset
        require("loader", is_own(place.loader), "must be MODULE:FUNCTION", place.loader)
        try:
            made = load(place.loader, "loader")(place.data)
        except InputError:
            raise
        except Exception as error:  # whatever a user's function may raise
            rule = f"fails: {type(error).__name__}: {error}"
            raise InputError(f"loader {place.loader}", rule) from error
        rule, fix = "must give a fedskip.Dataset", "docs/federation.md has an example"
        require(f"loader {place.loader}", isinstance(made, Dataset), rule, type(made).__name__, fix)
        return Pools().get(made).dataset

    @cached_property
    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """Which samples train here, and which test."""
        if self.place.share is None:
            found = split(self.dataset, self.place.split_seed)
        else:
            path = expanded(self.place.share, "share")
            arrays = read_npz(path, "share", "write it with np.savez(path, train=..., test=...)")
            samples = len(self.dataset.samples)
            for key in ("train", "test"):
                held = arrays.get(key)
                ok = held is not None and held.ndim == 1 and (held.dtype.kind in "iu" or not len(held))
                ok = ok and (not len(held) or 0 <= held.min() <= held.max() < samples)  # type: ignore[arg-type,union-attr]
                rule = f"must hold the numbers of samples as {key!r}, from 0 to {samples - 1}"
                require(str(path), bool(ok), rule)
            found = arrays["train"].astype(np.int64), arrays["test"].astype(np.int64)
        require("data", len(found[0]) > 0, "must hold at least one sample to train on", self.place.data)
        return found

    @cached_property
    def device(self) -> torch.device:
        return torch.device(resolve_device(self.place.device))

    def visit(
        self, orders: Orders, work: Work, *, run: str, accepted: int, omega: float, layout: str
    ) -> Replies:
        """Train one visit: its terms from what is remembered, then the engine, then what to remember."""
        task = self._task(work, layout)
        train, _ = self.halves
        rule = f"must fit every client; this one has {len(train)} samples"
        require("local.batch", len(train) >= work.local.fewest, rule, work.local.batch)

        def steps(key: int, _: int, round: int) -> Route:
            return route(key, train, work.local, round, work.rounds)

        self.place.state_dir.mkdir(parents=True, exist_ok=True)
        with waited_for(self.place.state_dir):  # one visit at a time: an old one may still be under way
            x = orders.x.to(self.device)
            orders = Orders(
                orders.round, ME, ME, orders.keys, x, {k: t.to(self.device) for k, t in orders.sent.items()}
            )
            versions, kept = Versions(self.place.state_dir, run), State()
            if work.method.remembers and accepted:
                kept = {k: t.to(self.device)[None] for k, t in versions.load(accepted).items()}
            handing = self._handing(work, task, orders, kept, f"{run} {accepted} {omega!r} {layout}")
            client = Clients(work.method, task.layout, np.array([len(train)]), steps, x[0], handing=handing)
            client.omega = np.array([omega])
            if kept:
                client.memory.keep(ME, kept)
            replies = _trained(task, client, orders)
            if work.method.remembers:
                rows, _ = client.memory.recall(ME)
                versions.save(orders.round + 1, {k: row[0] for k, row in rows.items()}, accepted)
        return replies

    def _handing(self, work: Work, task: Task, orders: Orders, kept: State, told: str) -> Handing | None:
        """What is done to a model before it leaves this site, if anything; `told`: the rest of the order."""
        privacy, place = work.privacy, self.place
        if privacy is None:
            rule, fix = "must be kept by studies here: client.yaml has an epsilon", "add it to the study"
            require("privacy", place.epsilon is None, rule, fix=fix)
            return None
        privacy.refuse_buffers(task.module)
        account = Account(place.state_dir / ACCOUNT)

        def noted(visit: str) -> None:
            if place.epsilon is not None:
                delta = min(privacy.delta, DELTA)
                account.refuse_beyond(place.epsilon, delta, place.name, visit, privacy.sigma)
            account.note(place.name, visit, privacy.sigma)

        told = f"{told} {orders.round} {orders.keys[0]} {work.dump()}"
        tensors = [part for state in (orders.sent, kept) for _, part in sorted(state.items())]
        order = fingerprint(told, orders.x, *tensors)
        draw = own_noise(site_key(place.state_dir), order, noted)
        return Handing(task.layout.trainable, privacy, draw=draw)

    def score(self, x: Tensor, work: Work, layout: str) -> dict[str, float | int]:
        """A model on this site's test samples: sums, which tell nothing of single classes."""
        _, test = self.halves
        if not len(test):
            return {"metric": 0.0, "loss": 0.0, "samples": 0}
        task = self._task(work, layout)
        scores = Evaluator(task, stacked=False)(x.to(self.device)[None], test)
        n = len(test)
        return {"metric": float(scores.metric[0]) * n, "loss": float(scores.loss[0]) * n, "samples": n}

    def _task(self, work: Work, layout: str) -> Task:
        task = work.task(self.dataset, self.device)
        rule = "is laid out differently by this site than by the server"
        fix = "install the same fedskip, and the same module of your own, on both sides"
        require("model", layout_digest(task.layout) == layout, rule, fix=fix)
        return task


def _trained(task: Task, client: Clients, orders: Orders) -> Replies:
    engine = Loop(task)
    terms, routes = client.begin(orders)
    with engine.open():
        engine.join([Job(orders.x, terms, routes)])
        [trained] = engine.advance()
        return client.end(orders, trained.routes, trained.y, trained.loss)
