"""A setting made real: data, partitions, a model on the device, and one `Run` per method and seed."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import add
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedskip.data.base import Dataset, Samples
from fedskip.data.division import Division, divide
from fedskip.data.mix import refuse_unmixed
from fedskip.data.pools import Pool, Pools
from fedskip.data.standardize import Scale, Standardized, measure_scale, refuse_unfit
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.handed import EPSILON, Handing
from fedskip.engine.local import Route, route
from fedskip.engine.task import Task
from fedskip.federation import Clients, Run, Server
from fedskip.input.errors import require
from fedskip.methods.base import Method
from fedskip.models.lstm import CharLSTM
from fedskip.models.making import make
from fedskip.models.measures import loss
from fedskip.models.metrics import Metric, metrics
from fedskip.models.vector import Layout
from fedskip.spec.parts import parts
from fedskip.spec.setting import Draft, Setting
from fedskip.study.choice import Choice


@dataclass(frozen=True)
class Prepared:
    """A setting with everything it names. What lies on the device is made when it is asked for."""

    setting: Setting
    pool: Pool
    divisions: Mapping[int, Division]  # by partition seed
    device: torch.device
    arithmetic: Arithmetic
    scales: Mapping[int, Scale] = field(default_factory=dict)  # by partition seed, if inputs are standardised
    choice: Choice | None = None  # of an engine, once it has been tried

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
        pool: Samples = data.samples
        train, test = converted(dtype, data.train_transform), converted(dtype, data.test_transform)
        if self.scales:  # which is done when samples are taken
            pool, train, test = Standardized.of(data, self._different), None, None
        samples = pool.to(self.device, dtype)
        require("data.samples.to", hasattr(samples, "take"), "must give samples", type(samples).__name__)
        return Task(
            template, Layout.of(template), loss(setting.loss), self.metrics,
            samples, setting.local, train, test, self.arithmetic, filled=not any(self.short().values()),
        )  # fmt: skip

    @functools.cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """What models are scored by; the first is the headline."""
        return metrics(self.setting.metric)

    @property
    def further(self) -> list[str]:
        """Columns that its histories have beside those of all studies."""
        private = [EPSILON] if self.setting.privacy else []
        return [*(metric.column for metric in self.metrics[1:]), *private]

    def make(self, seed: int, purpose: str) -> nn.Module:
        """The model as it starts, on the host."""
        setting = self.setting
        return make(setting.model, self.dataset.sizes, setting.init, seed, purpose)

    def leave_device(self) -> None:
        """Give back the device's memory, which another setting may need."""
        for name in ("task", "start", "routes"):
            vars(self).pop(name, None)

    def division(self, seed: int) -> Division:
        """Who has what at a run's seed, in numbers of the task's samples."""
        return self._shifted[self.setting.division_seed(seed)]

    @functools.cached_property
    def _shifted(self) -> Mapping[int, Division]:
        """The divisions; where seeds have scales of their own, each is in its part of the samples."""
        different, n = self._different, len(self.dataset.samples)
        if len(different) < 2:
            return self.divisions
        return {
            seed: each.shifted(different.index(self.scales[seed]) * n)
            for seed, each in self.divisions.items()
        }  # fmt: skip

    @functools.cached_property
    def _different(self) -> list[Scale]:
        """The scales of all seeds, equal ones once."""
        return list(dict.fromkeys(self.scales.values()))

    def parts(self) -> list["Prepared"]:
        """The setting part by part, each with the divisions of its own seeds."""
        found = []
        for part in parts(self.setting):
            seeds = {part.division_seed(seed) for seed in part.seeds}
            some = {seed: each for seed, each in self.divisions.items() if seed in seeds}
            scales = {seed: each for seed, each in self.scales.items() if seed in seeds}
            found.append(replace(self, setting=part, divisions=some, scales=scales))
        return found

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
        routes, guard = functools.partial(self.routes, seed), setting.guard == "nonfinite"
        return Run(
            server,
            Clients(method, layout, clients.sizes, routes, x, guard=guard, handing=self._handing(seed)),
            name=setting.run_name(method, seed),
            look_every=setting.eval_every,
            last=setting.rounds,
            keep_slots=setting.slot_accuracy,
        )

    def _handing(self, seed: int) -> Handing | None:
        """What the clients of a seed do to a model before they hand it on, if anything."""
        setting, task = self.setting, self.task
        if setting.privacy is None and setting.attack is None:
            return None
        if setting.privacy is not None:
            setting.privacy.refuse_buffers(task.module)
            setting.privacy.epsilon(1)  # refuses where it cannot be counted
        clients = len(self.division(seed).clients)
        poisoners = setting.attack.poisoners(seed, clients) if setting.attack else ()
        return Handing(task.layout.trainable, setting.privacy, setting.attack, poisoners)

    def runs(self, *, first: bool = False) -> Iterator[Run]:
        """All runs of the setting, or those of its first seed, one at a time."""
        seeds = self.setting.seeds[:1] if first else self.setting.seeds
        return (self.run(method, seed) for method in self.setting.methods for seed in seeds)

    @property
    def steps(self) -> int:
        """The client-steps of all runs, if all clients take part equally often."""
        setting = self.setting
        visits = [
            np.mean([setting.local.steps(int(size)) for size in self.division(seed).clients.sizes])
            for seed in setting.seeds
        ]
        return int(sum(visits) * len(setting.methods) * setting.cohort * setting.rounds)

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
        for seed, scale in self.scales.items():
            file = folder / f"scale-{self.setting.name}-{seed}.npz"
            if not file.exists():
                scale.save(file, self.dataset.input_names)


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
        for seed in sorted({setting.division_seed(seed) for seed in setting.all_seeds})
    }  # fmt: skip
    if setting.client_accuracy:
        headline = metrics(setting.metric)[0]
        refuse_unmixed(dataset, divisions.values(), mean=not headline.whole and headline.after is None)
    scales = {}
    if dataset.standardize:
        refuse_unfit(dataset)
        scales = {seed: measure_scale(dataset, each.clients.indices) for seed, each in divisions.items()}
    return Prepared(setting, pool, divisions, device, arithmetic, scales)


def _range(numbers: Iterable[int]) -> str:
    """A number, or the smallest and the largest, as seeds differ."""
    found = sorted(set(numbers))
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def converted(dtype: torch.dtype, transform: Callable[..., Tensor] | None) -> Callable[..., Tensor] | None:
    """The transform, with its results in `dtype`."""
    if transform is None or dtype == torch.float32:
        return transform
    return lambda *arguments: transform(*arguments).to(dtype)
