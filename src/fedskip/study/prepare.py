"""A setting made real: data, partitions, a model on the device, and one `Run` per method and seed."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import add
from pathlib import Path

import torch
from torch import Tensor, nn

from fedskip.data.base import Dataset
from fedskip.data.division import Division, divide
from fedskip.data.pools import Pool, Pools
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.local import Route, route
from fedskip.engine.task import Task
from fedskip.federation import Clients, Run, Server
from fedskip.input.errors import InputError, require
from fedskip.methods.base import Method
from fedskip.models.lstm import CharLSTM
from fedskip.models.making import make
from fedskip.models.measures import measure
from fedskip.models.vector import Layout
from fedskip.spec.setting import Draft, Setting


@dataclass(frozen=True)
class Prepared:
    """A setting with everything it names. What lies on the device is made when it is asked for."""

    setting: Setting
    pool: Pool
    divisions: Mapping[int, Division]  # by partition seed
    device: torch.device
    arithmetic: Arithmetic

    @property
    def dataset(self) -> Dataset:
        return self.pool.dataset

    @functools.cached_property
    def task(self) -> Task:
        setting, dtype, data = self.setting, self.arithmetic.dtype, self.dataset
        template = self.make(setting.seeds[0], "init")
        if isinstance(template, CharLSTM):
            template.refuse(getattr(data.samples, "x", None))
        template = template.to(self.device, dtype)
        samples = data.samples.to(self.device, dtype)
        require("data.samples.to", hasattr(samples, "take"), "must give samples", type(samples).__name__)
        return Task(
            template, Layout.of(template), measure("loss", setting.loss), measure("metric", setting.metric),
            samples, setting.local,
            converted(dtype, data.train_transform), converted(dtype, data.test_transform), self.arithmetic,
        )  # fmt: skip

    def make(self, seed: int, purpose: str) -> nn.Module:
        """The model as it starts, on the host."""
        setting = self.setting
        return make(setting.model, self.dataset.sizes, setting.init, seed, purpose)

    def leave_device(self) -> None:
        """Give back the device's memory, which another setting may need."""
        for name in ("task", "start", "routes"):
            vars(self).pop(name, None)

    def division(self, seed: int) -> Division:
        return self.divisions[self.setting.division_seed(seed)]

    def small_clients(self) -> list[str]:
        """Those with too few samples for a batch, counted, in words: left out, or in a short batch."""
        local, divisions, lines = self.setting.local, self.divisions.values(), []
        kept, dropped = [len(each.clients) for each in divisions], [each.dropped for each in divisions]
        small = [*self.short().values()]
        if any(dropped):
            clients = f"{_range(dropped)} of {_range(map(add, kept, dropped))} clients"
            lines.append(f"{clients} dropped (fewer than {local.fewest} samples)")
        if any(small):
            clients = f"{_range(small)} of {_range(kept)} clients train{'s' * (set(small) == {1})}"
            lines.append(f"{clients} in one short batch (fewer than {local.batch} samples)")
        return lines

    def short(self) -> dict[int, int]:
        """How many clients have fewer samples than a batch, by partition seed."""
        batch = self.setting.local.batch
        return {seed: int((each.clients.sizes < batch).sum()) for seed, each in self.divisions.items()}

    def run(self, method: Method, seed: int) -> Run:
        """The run of one method and one seed, before its first round."""
        setting, layout = self.setting, self.task.layout
        clients = self.division(seed).clients
        x = self.start(seed, "init")
        server = Server(
            method, x, layout, clients=len(clients), slots=setting.cohort, seed=seed,
            policy=setting.cohort_policy, fresh=lambda: self.start(seed, "fresh"),
        )  # fmt: skip
        return Run(
            server,
            Clients(method, layout, clients.sizes, functools.partial(self.routes, seed), x),
            name=setting.run_name(method, seed),
            look_every=setting.eval_every,
            last=setting.rounds,
            keep_slots=setting.slot_accuracy,
        )

    def runs(self, *, first: bool = False) -> Iterator[Run]:
        """All runs of the setting, or those of its first seed, one at a time."""
        seeds = self.setting.seeds[:1] if first else self.setting.seeds
        return (self.run(method, seed) for method in self.setting.methods for seed in seeds)

    @functools.cached_property
    def has_own_objective(self) -> bool:
        """Whether a method has a loss of its own, which only the loop engine trains."""
        return any(job.terms.objective for run in self.runs(first=True) for job in run.ready(1))

    @functools.cached_property
    def start(self) -> Callable[[int, str], Tensor]:
        """A function of seed and purpose that gives fresh weights, (P,); all methods of a seed share them."""

        @functools.cache
        def start(seed: int, purpose: str) -> Tensor:
            return self.task.layout.pack(self.make(seed, purpose)).to(self.device, self.task.arithmetic.dtype)

        return start

    @functools.cached_property
    def routes(self) -> Callable[[int, int, int, int], Route]:
        """A function of seed, key, client and round that gives routes; all methods of a seed share them."""

        @functools.lru_cache(maxsize=4 * self.setting.cohort * len(self.setting.seeds))
        def routes(seed: int, key: int, client: int, round: int) -> Route:
            indices = self.division(seed).clients[client]
            return route(key, indices, self.task.local, round, self.setting.rounds)

        return routes

    def save_partitions(self, folder: Path) -> None:
        """Write who owns which sample, unless it is written already."""
        for seed, division in self.divisions.items():
            file = partition_file(folder, self.setting, seed)
            if not file.exists():
                division.clients.save(file)


def partition_file(folder: Path, setting: Setting, seed: int) -> Path:
    return folder / f"partition-{setting.name}-{seed}.npz"


def prepare(
    draft: Draft, pools: Pools, device: torch.device, arithmetic: Arithmetic, folder: Path | None = None
) -> Prepared:
    """Load and divide. Partitions that lie in `folder` are used as they are."""
    pool = pools.get(draft.keys["data"])
    dataset = pool.dataset
    setting = draft.resolved(dataset.defaults)
    divisions = {
        seed: divide(
            dataset, seed, partition=setting.partition, clients=setting.clients, cohort=setting.cohort,
            batch=setting.local.fewest, drop_small=setting.local.small_clients == "drop",
            validation=setting.validation, eval_samples=setting.eval_samples,
            saved=None if folder is None else partition_file(folder, setting, seed),
        )
        for seed in sorted({setting.division_seed(seed) for seed in setting.seeds})
    }  # fmt: skip
    owned = all(dataset.owner is not None and (dataset.owner[d.test] >= 0).any() for d in divisions.values())
    if setting.client_accuracy and not owned:
        fix = "it needs test samples that belong to clients, as LEAF's data sets have"
        raise InputError("client_accuracy", f"cannot be had for {dataset.name!r}", True, fix)
    return Prepared(setting, pool, divisions, device, arithmetic)


def _range(numbers: Iterable[int]) -> str:
    """A number, or the smallest and the largest, as seeds differ."""
    found = sorted(set(numbers))
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def converted(dtype: torch.dtype, transform: Callable[..., Tensor] | None) -> Callable[..., Tensor] | None:
    """The transform, with its results in `dtype`."""
    if transform is None or dtype == torch.float32:
        return transform
    return lambda *arguments: transform(*arguments).to(dtype)
