"""A setting made real: data, partitions, a model on the device, and one `Run` per method and seed."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedskip.config.setting import Draft, PlannedRun, Setting
from fedskip.data.catalogue import LoadedDatasets
from fedskip.data.dataset import Dataset
from fedskip.data.division import Division, divide, refuse_unmixed, sample_counts
from fedskip.data.standardize import Scale, Standardized, measure_scale, refuse_unfit
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.task import Task
from fedskip.engine.upload_filters import EPSILON, UploadFilter
from fedskip.federation import Run, make_routes, make_run, make_task
from fedskip.federation.wiring import Routes
from fedskip.files import write_text
from fedskip.models.construction import initial_model
from fedskip.models.lstm import CharLSTM
from fedskip.models.metrics import metrics
from fedskip.records.folder import Facts

if TYPE_CHECKING:
    from fedskip.study.machine import Machine


@dataclass(frozen=True)
class Prepared:
    """A setting with everything it names. What lies on the device is made when it is asked for."""

    setting: Setting
    dataset: Dataset
    divisions: Mapping[int, Division]  # by partition seed
    device: torch.device
    arithmetic: Arithmetic
    scales: Mapping[int, Scale] = field(default_factory=dict)  # likewise; none: not standardised
    noted: Facts = field(default_factory=dict)  # what study.yaml notes of it, once it has begun
    machine: "Machine | None" = None  # once its engine has been tried

    @functools.cached_property
    def task(self) -> Task:
        setting, data = self.setting, self.dataset
        template = self.make(setting.seeds[0], "init")
        if isinstance(template, CharLSTM):
            template.refuse(getattr(data.samples, "x", None))
        return make_task(
            template, self._pool[0], setting.local, loss=setting.loss, metric=setting.metric,
            device=self.device, arithmetic=self.arithmetic, full_batches=not any(self.short().values()),
        )  # fmt: skip

    def make(self, seed: int, purpose: str) -> nn.Module:
        """The model as it starts, on the host."""
        setting = self.setting
        return initial_model(setting.model, self.dataset.sizes, setting.init, seed, purpose)

    def leave_device(self) -> None:
        """Give back the device's memory, which another setting may need."""
        for name in ("task", "start", "routes"):
            vars(self).pop(name, None)

    def division(self, seed: int) -> Division:
        """Who has what at a run's seed, in numbers of the task's samples."""
        return self._pool[1][self.setting.division_seed(seed)]

    @functools.cached_property
    def _pool(self) -> tuple[Dataset | Standardized, Mapping[int, Division]]:
        """The samples of the task, and the divisions in their numbers.

        Inputs are standardised when samples are taken. Where seeds have different scales, each has its own
        part of the samples.
        """
        scales, n = list(dict.fromkeys(self.scales.values())), len(self.dataset.samples)
        if not scales:
            return self.dataset, self.divisions
        shifted = {
            seed: self.divisions[seed].shifted(scales.index(scale) * n)
            for seed, scale in self.scales.items()
        }
        return Standardized.of(self.dataset, scales), shifted

    def parts(self) -> list["Prepared"]:
        """The setting part by part, each with the divisions of its own seeds."""
        prepared = []
        for part in self.setting.parts():
            seeds = {part.division_seed(seed) for seed in part.seeds}
            some = {seed: each for seed, each in self.divisions.items() if seed in seeds}
            scales = {seed: each for seed, each in self.scales.items() if seed in seeds}
            prepared.append(replace(self, setting=part, divisions=some, scales=scales))
        return prepared

    def small_clients(self) -> list[str]:
        """How many clients have too few samples for a batch: left out, or in a short batch."""
        local, lines = self.setting.local, []
        kept = [len(each.clients) for each in self.divisions.values()]
        dropped = [each.dropped for each in self.divisions.values()]
        short = [*self.short().values()]
        if any(dropped):
            there = [k + d for k, d in zip(kept, dropped, strict=True)]
            clients = f"{_range(dropped)} of {_range(there)} clients"
            lines.append(f"{clients} dropped (fewer than {local.fewest} samples)")
        if any(short):
            clients = f"{_range(short)} of {_range(kept)} clients train{'s' * (set(short) == {1})}"
            lines.append(f"{clients} in one short batch (fewer than {local.batch} samples)")
        return lines

    def short(self) -> dict[int, int]:
        """How many clients have fewer samples than a batch, by partition seed."""
        batch = self.setting.local.batch
        return {
            seed: int((each.clients.sizes < batch).sum()) for seed, each in self.divisions.items()
        }

    def run(self, planned: PlannedRun) -> Run:
        """A run before its first round."""
        setting, seed = self.setting, planned.seed
        return make_run(
            self.task, self.division(seed).clients, planned.method, cohort=setting.cohort, seed=seed,
            rounds=setting.rounds, cohort_policy=setting.cohort_policy, start=self.start(seed, "init"),
            fresh=lambda: self.start(seed, "fresh"), routes=self.routes(seed),
            upload_filter=self._upload_filter(seed), guard=setting.guard == "nonfinite",
            name=planned.name, eval_every=setting.eval_every,
            keep_slots=setting.slot_accuracy,
        )  # fmt: skip

    def _upload_filter(self, seed: int) -> UploadFilter | None:
        """What the clients of a seed do to a model before they hand it on, if anything."""
        setting, task = self.setting, self.task
        if setting.privacy is None and setting.attack is None:
            return None
        if setting.privacy is not None:
            setting.privacy.refuse_buffers(task.module)
            setting.privacy.epsilon(1)  # refuses where it cannot be counted
        clients = len(self.division(seed).clients)
        poisoners = setting.attack.poisoners(seed, clients) if setting.attack else ()
        return UploadFilter(task.layout.trainable, setting.privacy, setting.attack, poisoners)

    def runs(self) -> Iterator[Run]:
        """All runs of the setting, one at a time."""
        return map(self.run, self.setting.runs)

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
        first = [self.run(run) for run in self.setting.runs if run.seed == self.setting.seeds[0]]
        return any(job.terms.objective for run in first for job in run.ready(1))

    @functools.cached_property
    def start(self) -> Callable[[int, str], Tensor]:
        """A function of seed and purpose that gives fresh weights, (P,); all methods of a seed share them."""
        pack, dtype = self.task.layout.pack, self.task.arithmetic.dtype
        return functools.cache(
            lambda seed, purpose: pack(self.make(seed, purpose)).to(self.device, dtype)
        )

    @functools.cached_property
    def routes(self) -> Callable[[int], Routes]:
        """A function of the seed that gives the steps of its visits; all methods of a seed share them."""
        local, rounds, kept = self.setting.local, self.setting.rounds, 4 * self.setting.cohort
        return functools.cache(
            lambda seed: make_routes(self.division(seed).clients, local, rounds, kept=kept)
        )

    def save_partitions(self, folder: Path) -> None:
        """Write who owns which sample, and how many of each class, unless it is written already."""
        for seed, division in self.divisions.items():
            file = partition_file(folder, self.setting, seed)
            if not file.exists():
                division.clients.save(file)
            table = folder / f"samples-{self.setting.name}-{seed}.csv"
            if not table.exists():
                write_text(table, sample_counts(division.clients, self.dataset))
        for seed, scale in self.scales.items():
            file = folder / f"scale-{self.setting.name}-{seed}.npz"
            if not file.exists():
                scale.save(file, self.dataset.input_names)


def further_columns(setting: Setting) -> list[str]:
    """Columns that the history of a setting has beside those of all studies."""
    private = [EPSILON] if setting.privacy else []
    return [*(metric.column for metric in metrics(setting.metric)[1:]), *private]


def partition_file(folder: Path, setting: Setting, seed: int) -> Path:
    return folder / f"partition-{setting.name}-{seed}.npz"


def prepare(
    draft: Draft,
    datasets: LoadedDatasets,
    device: torch.device,
    arithmetic: Arithmetic,
    folder: Path | None = None,
) -> Prepared:
    """Load and divide. Partitions that lie in `folder` are used as they are."""
    dataset = datasets.get(draft.keys["data"])
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
        is_mean = not headline.whole and headline.after is None
        refuse_unmixed(dataset, divisions.values(), mean=is_mean)
    scales = {}
    if dataset.standardize:
        refuse_unfit(dataset)
        scales = {s: measure_scale(dataset, each.clients.indices) for s, each in divisions.items()}
    return Prepared(setting, dataset, divisions, device, arithmetic, scales)


def _range(numbers: Sequence[int]) -> str:
    """A number, or the smallest and the largest, as seeds differ."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
