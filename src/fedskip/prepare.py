"""A setting made real: data on the device, partitions, a model, and one `Run` per method and seed."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedskip import models
from fedskip.data import Dataset, Partition, load, partition
from fedskip.data.base import Split
from fedskip.data.split import evaluation_subset, pooled_test
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.base import Route, Task, Visits, route, steps_of
from fedskip.errors import InputError, require
from fedskip.federation import Clients, Run, Server
from fedskip.measures import measure
from fedskip.methods.base import Method
from fedskip.models.lstm import CharLSTM
from fedskip.rng import stream, torch_scope
from fedskip.spec import Setting
from fedskip.stack import Layout
from fedskip.weights import read_weights


@dataclass(frozen=True)
class Division:
    """Who has what at one partition seed: pool indices all."""

    clients: Partition
    test: np.ndarray  # pooled over the clients that take part
    evaluated: np.ndarray  # the part of it that is used while training
    validation: np.ndarray


@dataclass(frozen=True)
class Prepared:
    """A setting with everything it names."""

    setting: Setting
    dataset: Dataset
    task: Task
    divisions: Mapping[int, Division]  # by partition seed
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        return self.task.arithmetic.dtype

    def division(self, seed: int) -> Division:
        return self.divisions[partition_seed(self.setting, seed)]

    def run(self, method: Method, seed: int) -> Run:
        """The run of one method and one seed, before its first round."""
        setting, layout = self.setting, self.task.layout
        clients = self.division(seed).clients
        x = self.start(seed, "init")

        def fresh() -> Tensor:
            return self.start(seed, "fresh")

        server = Server(
            method, x, layout,
            clients=len(clients), slots=setting.cohort, seed=seed, policy=setting.cohort_policy, fresh=fresh,
        )  # fmt: skip
        return Run(
            server,
            Clients(method, layout, clients.sizes, self.routes(seed), x),
            look_every=setting.eval_every,
            last=setting.rounds,
            keep_slots=setting.slot_accuracy,
        )

    def first_visits(self, method: Method) -> Visits:
        """Where a method begins."""
        run = self.run(method, self.setting.seeds[0])
        return run.clients.begin(run.server.orders(0))

    @functools.cached_property
    def has_own_objective(self) -> bool:
        """Whether a method has a loss of its own, which only the loop engine trains."""
        return any(self.first_visits(method).terms.objective for method in self.setting.methods)

    def start(self, seed: int, purpose: str) -> Tensor:
        """Freshly made weights, (P,), shared by all methods of a seed."""
        if (seed, purpose) not in self._starts:
            module = make_module(self.setting, self.dataset, seed, purpose)
            self._starts[seed, purpose] = self.task.layout.pack(module).to(self.device, self.dtype)
        return self._starts[seed, purpose]

    def routes(self, seed: int) -> Callable[[int, int, int], Route]:
        """The routes of a seed, shared by its methods: all of them see the same batches."""
        if seed not in self._routes:
            clients, local, rounds = self.division(seed).clients, self.task.local, self.setting.rounds

            @functools.lru_cache(maxsize=4 * self.setting.cohort)
            def routes(key: int, client: int, round: int) -> Route:
                return route(key, clients[client], local, round, rounds)

            self._routes[seed] = routes
        return self._routes[seed]

    @functools.cached_property
    def _starts(self) -> dict[tuple[int, str], Tensor]:
        return {}

    @functools.cached_property
    def _routes(self) -> dict[int, Callable[[int, int, int], Route]]:
        return {}


def partition_seed(setting: Setting, seed: int) -> int:
    return seed if setting.partition_seed is None else setting.partition_seed


def prepare(
    setting: Setting, device: torch.device, arithmetic: Arithmetic, saved: Path | None = None
) -> Prepared:
    """Load, divide and build. Partitions found under `saved` are used, others are written there."""
    dtype = arithmetic.dtype
    dataset = setting.data if isinstance(setting.data, Dataset) else load(**setting.data)
    setting = setting.filled(dataset.defaults)
    check_finite(dataset)
    seeds = sorted({partition_seed(setting, seed) for seed in setting.seeds})
    divisions = {seed: divide(setting, dataset, seed, saved) for seed in seeds}
    owned = all(dataset.owner is not None and (dataset.owner[d.test] >= 0).any() for d in divisions.values())
    if setting.client_accuracy and not owned:
        fix = "it needs test samples that belong to clients, as LEAF's data sets have"
        raise InputError("client_accuracy", f"cannot be had for {dataset.name!r}", True, fix)
    template = make_module(setting, dataset, setting.seeds[0], "init").to(device, dtype)
    check_tokens(template, dataset)
    task = Task(
        template, Layout.of(template), measure("loss", setting.loss), measure("metric", setting.metric),
        dataset.samples.to(device, dtype), setting.local,
        _in(dtype, dataset.train_transform), _in(dtype, dataset.test_transform), arithmetic,
    )  # fmt: skip
    return Prepared(setting, dataset, task, divisions, device)


def _in(dtype: torch.dtype, transform: Callable[..., Tensor] | None) -> Callable[..., Tensor] | None:
    """A transform whose results come in the dtype that is trained in."""
    if transform is None or dtype == torch.float32:
        return transform
    return lambda *arguments: transform(*arguments).to(dtype)


def divide(setting: Setting, dataset: Dataset, seed: int, saved: Path | None = None) -> Division:
    """Clients, test set and validation set at one partition seed."""
    train, test = _checked(dataset.split(seed), len(dataset.samples))
    validation = train[:0]
    if setting.validation:
        shuffled = stream(seed, "validation").permutation(train)
        held_out = round(setting.validation * len(train))
        if not 0 < held_out < len(train):
            rule = f"must leave something on both sides of {len(train)} training samples"
            raise InputError("validation", rule, setting.validation)
        validation, train = np.sort(shuffled[:held_out]), np.sort(shuffled[held_out:])
    file = None if saved is None else saved / f"partition-{setting.name}-{seed}.npz"
    if file is not None and file.exists():
        clients = Partition.load(file)
        if len(clients.indices) and clients.indices.max() >= len(dataset.samples):
            fix = "bring back the data that the study was begun with"
            raise InputError("data", f"does not hold the samples of {file}", dataset.name, fix)
    else:
        clients = _partition(setting, dataset, train, seed)
        held = np.zeros(len(dataset.samples), bool)
        held[test] = held[validation] = True
        leaked = int(held[clients.indices].sum())
        if "file" in setting.partition and leaked:
            rule = f"deals {leaked} samples that are for testing at seed {seed}"
            fix = "set partition_seed to the seed that it was drawn with"
            raise InputError("partition.file", rule, setting.partition["file"], fix)
        if file is not None:
            clients.save(file)
    test = pooled_test(dataset, test, clients)
    if not len(test):
        fix = "the test samples of clients without training samples are left out"
        raise InputError("data", "has no test samples for the clients that take part", dataset.name, fix)
    return Division(clients, test, evaluation_subset(test, setting.eval_samples), validation)


def _checked(split: Split, samples: int) -> Split:
    """The two halves of a split, once it is sure that they are indices."""
    found = [np.asarray(half) for half in split]
    for half in found:
        whole = half.ndim == 1 and (half.dtype.kind in "iu" or not len(half))
        if not whole or (len(half) and not 0 <= half.min() <= half.max() < samples):
            fix = "of a mask, give np.flatnonzero(mask)"
            rule = f"must give the numbers of samples, from 0 to {samples - 1}, for training and for testing"
            raise InputError("data.split", rule, half, fix)
    train, test = (half.astype(np.int64) for half in found)
    trains = np.zeros(samples, bool)
    trains[train] = True
    both = test[trains[test]]
    if len(both):
        rule = f"must not give a sample for training and for testing, as it does with {len(both)}"
        raise InputError("data.split", rule, ..., f"the first of them is {both[0]}")
    return train, test


def _partition(setting: Setting, dataset: Dataset, train: np.ndarray, seed: int) -> Partition:
    chosen = dict(setting.partition)
    if "file" in chosen:
        try:
            clients = Partition.load(chosen["file"])
        except (OSError, InputError) as error:
            fix = "give one that a study has written, OUT/partition-NAME-SEED.npz"
            raise InputError("partition.file", "must be a partition file", chosen["file"], fix) from error
        if len(clients.indices) and clients.indices.max() >= len(dataset.samples):
            raise InputError("partition.file", f"is not of data set {dataset.name!r}", chosen["file"])
        if setting.clients not in (None, len(clients)):
            rule = f"must be {len(clients)}, as in partition.file"
            raise InputError("clients", rule, setting.clients, "leave it out")
    else:
        kind, labels = chosen.pop("kind"), dataset.samples.labels()
        clients = partition(
            kind,
            train,
            labels,
            clients=None if kind == "pooled" else setting.clients,  # the default is the data set's
            seed=seed,
            owner=dataset.owner,
            **chosen,
        )
    return _large_enough(setting, clients)


def _large_enough(setting: Setting, clients: Partition) -> Partition:
    """Refuse or drop clients that cannot fill a batch, and cohorts larger than what is left."""
    local, sizes = setting.local, clients.sizes
    if (sizes == 0).any():
        raise InputError(
            "partition", "leaves a client empty", int(np.flatnonzero(sizes == 0)[0]), "use fewer clients"
        )
    small = np.array([steps_of(int(n), local) == 0 for n in sizes])
    if small.any() and local.small_clients == "drop":
        clients = clients.select(~small)
    elif small.any():
        client = int(np.flatnonzero(small)[0])
        raise InputError(
            "local.batch", f"must fit every client; client {client} has {sizes[client]} samples", local.batch,
            f"{small.sum()} of {len(sizes)} clients are too small: set local.small_clients to drop or short, "
            "or a smaller local.batch",
        )  # fmt: skip
    if setting.cohort > len(clients):
        raise InputError("cohort", f"must be <= {len(clients)}, the number of clients", setting.cohort)
    return clients


def make_module(setting: Setting, dataset: Dataset, seed: int, purpose: str) -> nn.Module:
    """The model as it starts. Only its own key decides its random weights.

    A module given as an object starts every run as it is; something that makes modules is called for
    each seed. `init` names a file of weights that replace the random ones.
    """
    with torch_scope(seed, purpose):
        if isinstance(setting.model, nn.Module):
            module = copy.deepcopy(setting.model)
            if purpose == "fresh":
                for part in module.modules():
                    reset = getattr(part, "reset_parameters", None)
                    if callable(reset):
                        reset()
        elif callable(setting.model):
            module = _made(setting.model)
        else:
            module = models.build(**{"classes": dataset.classes, **setting.model})
    models.refuse(module)
    if setting.init and purpose == "init":
        read_weights(setting.init, module)
    return models.key_dropout(module)


def _made(maker: Callable[[], Any]) -> nn.Module:
    """What a user's function makes."""
    fix = "give an nn.Module, or a function without arguments that makes one"
    try:
        inspect.signature(maker).bind()
    except TypeError as error:
        name = getattr(maker, "__name__", type(maker).__name__)
        raise InputError("model", f"cannot be made ({error})", name, fix) from error
    module: nn.Module = maker()
    require("model", isinstance(module, nn.Module), "must be an nn.Module", type(module).__name__, fix)
    return copy.deepcopy(module)  # it may be the user's own, and is changed here


def check_tokens(module: nn.Module, dataset: Dataset) -> None:
    """Refuse tokens that our LSTM has no embedding for; where they are made to order, they are in range."""
    x = getattr(dataset.samples, "x", None)
    if isinstance(module, CharLSTM) and isinstance(x, Tensor) and len(x):
        known = len(module.embedding.get_parameter("weight"))
        least, most = int(x.min()), int(x.max())
        if least < 0 or most >= known:
            rule = f"must have tokens from 0 to {known - 1}"
            fix = f"set model.vocabulary={most + 1}" if least >= 0 else "number the tokens from 0 on"
            raise InputError("data.x", rule, most if least >= 0 else least, fix)


def check_finite(dataset: Dataset) -> None:
    """Refuse NaN and infinity before they spread."""
    for name in ("x", "y"):
        array = getattr(dataset.samples, name, None)
        if isinstance(array, Tensor) and array.is_floating_point() and not bool(torch.isfinite(array).all()):
            bad = int((~torch.isfinite(array)).reshape(len(array), -1).any(1).nonzero()[0])
            raise InputError(
                f"data.{name}",
                f"must be finite; sample {bad} of {dataset.name!r} is not",
                ...,
                "remove or fill it",
            )
