"""A study as a federation trains it: one setting, one method, one seed; the data stay at the clients.

`FederationPlan` is what the server knows, `JobSpec` is what clients get to know of it.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.config import Setting, StudySpec, build, load_yaml
from fedskip.config.tree import refuse_code
from fedskip.data.catalogue import LoadedDatasets
from fedskip.data.dataset import Dataset
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.evaluate import Evaluator
from fedskip.engine.local import Local
from fedskip.engine.task import Task
from fedskip.engine.upload_filters import Privacy
from fedskip.errors import InputError, require
from fedskip.federation import make_task
from fedskip.files import digest
from fedskip.flower.config import CLIENT, FEDERATION, RUN, FederationConfig
from fedskip.methods.base import Method, Period
from fedskip.methods.grammar import parse_many, text
from fedskip.models.construction import initial_model
from fedskip.models.metrics import metrics
from fedskip.models.vector import Layout

SITES = "sites"  # data.name if the server has no data: model and cohort must then be in the study
GUESSABLE = 1 << 40  # smaller seeds can be found by trying all
PROTOCOL = 3  # the version of the messages: server and clients must have the same
LONGEST_JOB = 100_000  # characters that are read of a job's text


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What is trained, and how: the same for every client and every round. No seed, no period."""

    model: Mapping[str, Any]
    sizes: Mapping[str, int]  # facts of the data that the model needs and the study does not give
    loss: str
    metric: str
    local: Local
    method: Method  # with period 1: only the server knows when slots merge
    rounds: int
    precision: str | None
    deterministic: bool
    privacy: Privacy | None  # what a client does to a model before it leaves

    def dump(self) -> str:
        """The text that messages carry."""
        plain = {**vars(self), "local": dataclasses.asdict(self.local), "method": text(self.method)}
        plain["privacy"] = self.privacy and dataclasses.asdict(self.privacy)
        return json.dumps({"protocol": PROTOCOL, **plain}, sort_keys=True)

    @classmethod
    def parse(cls, message: str, allow: Collection[str] = ()) -> JobSpec:
        """The inverse of `dump`; refuses anything else. `allow`: the code that it may name."""
        rule = "cannot be read by this client"
        fix = "install the same fedskip on the server and on all clients"
        try:
            values = json.loads(message[:LONGEST_JOB])
            require("job", values.pop("protocol", None) == PROTOCOL, rule, ..., fix)
            refuse_code(values, allow, f"if you trust it, list it under `allow` in {CLIENT}")
            [values["method"]] = parse_many(values["method"])
            values["privacy"] = values["privacy"] and Privacy(**values["privacy"])
            return cls(**{**values, "local": Local(**values["local"])})
        except InputError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError("job", rule, type(error).__name__, fix) from error

    def arithmetic(self, device: torch.device) -> Arithmetic:
        return Arithmetic.on(device, self.precision, self.deterministic)

    def task(self, dataset: Dataset, device: torch.device) -> Task:
        """The job on some data, as engines train it."""
        module = initial_model(self.model, self.sizes, None, 0, "init")
        return make_task(
            module, dataset, self.local, loss=self.loss, metric=self.metric, device=device,
            arithmetic=self.arithmetic(device),
        )  # fmt: skip


def layout_digest(layout: Layout) -> str:
    """Server and clients must lay out a model in the same way: they compare this."""
    return digest(repr(layout).encode())


@dataclass(frozen=True)
class FederationPlan:
    """What the server of a federation does."""

    spec: StudySpec
    setting: Setting
    config: FederationConfig
    sizes: dict[str, int]  # facts of the data that the model may need
    experiment: str = field(default_factory=lambda: secrets.token_hex(8))  # the run's public name

    @classmethod
    def read(cls, folder: Path, *, trust: bool = False) -> FederationPlan:
        """The plan of a federation's folder: as its run was begun, else as the folder has it.

        `trust`: its study may name code.
        """
        begun = folder / RUN / "study.yaml"
        file = begun if begun.exists() else folder / "study.yaml"
        return cls.make(build(load_yaml(file, trust=trust)), FederationConfig.read(folder))

    @classmethod
    def make(cls, spec: StudySpec, config: FederationConfig) -> FederationPlan:
        """The plan of a study; refuses what cannot be done while the data stay at the clients."""
        drafts = [draft for draft in spec.settings if not draft.keys.get("reference")]
        fix = "run STUDY/SETTING, one after the other"
        require("settings", len(drafts) == 1, "must be one in a federation", len(drafts), fix)
        draft = drafts[0].with_keys(clients=len(config.clients))
        draft.refuse_named_objects()
        if "seeds" not in draft.keys:  # a small one could be found from the keys of visits
            draft = draft.with_keys(seeds=[secrets.randbits(62)])
        defaults: dict[str, Any] = {"partition.kind": "natural"}
        sizes: dict[str, int] = {}
        data: Any = draft.keys["data"]
        if not isinstance(data, dict) or data.get("name") != SITES:
            dataset = LoadedDatasets().get(data)
            refuse_standardized(dataset)
            defaults, sizes = defaults | dict(dataset.defaults), dataset.sizes
        plan = cls(replace(spec, settings=(draft,)), draft.resolved(defaults), config, sizes)
        plan._refuse_impossible()
        return plan

    def _refuse_impossible(self) -> None:
        """Refuse what a federation cannot do, before anything is started."""
        setting = self.setting
        for name in ("methods", "seeds"):
            number, fix = len(getattr(setting, name)), f"choose one with --set {name}=..."
            require(name, number == 1, "must be one in a federation", number, fix)
        merges = bool(Period.parse(self.method.period).segments)
        require("period", merges, "must not be 'never' in a federation: it would have no model")
        for name in (
            "validation", "slot_accuracy", "client_accuracy", "stop", "attack", "guard",
        ):  # fmt: skip
            value = getattr(setting, name)
            require(name, not value, "is not for federations", value, "leave it out")
        [metric, *more] = metrics(setting.metric)
        is_mean = not more and not metric.whole and metric.higher_is_better and not metric.after
        fix = "write one that is a mean over samples, higher is better, such as accuracy"
        require("metric", is_mean, "must be one that sites can add up", setting.metric, fix)
        fix = "write it in a module that every site has, and name it MODULE:NAME"
        for name in ("model", "loss", "metric"):
            value = getattr(setting, name)
            rule = "must have a name in a federation"
            require(name, isinstance(value, str | Mapping), rule, value, fix)
        self.job.dump()  # it can be sent
        module = initial_model(setting.model, self.sizes, None, self.seed, "init")
        if setting.privacy is not None:
            setting.privacy.refuse_buffers(module)
            setting.privacy.epsilon(1)  # raises if the package that counts it is missing

    @property
    def method(self) -> Method:
        return self.setting.methods[0]

    @property
    def seed(self) -> int:
        return self.setting.seeds[0]

    @property
    def guessable(self) -> bool:
        """Whether a client could find the seed, and with it all cohorts, by trying."""
        return self.seed < GUESSABLE

    @cached_property
    def job(self) -> JobSpec:
        """What clients may know of the study."""
        spec, setting, model = self.spec, self.setting, self.setting.model
        assert isinstance(model, Mapping)
        return JobSpec(
            model=model, sizes=dict(self.sizes), loss=str(setting.loss), metric=str(setting.metric),
            local=setting.local, method=replace(self.method, period=1), rounds=setting.rounds,
            precision=spec.precision, deterministic=spec.deterministic, privacy=setting.privacy,
        )  # fmt: skip

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(initial_model(self.setting.model, self.sizes, None, self.seed, "init"))

    def weights(self, purpose: str) -> Tensor:
        """Initial weights, (P,): those of the run for "init", another draw for another purpose."""
        setting = self.setting
        module = initial_model(setting.model, self.sizes, setting.init, self.seed, purpose)
        return self.layout.pack(module).to(self.job.arithmetic(torch.device("cpu")).dtype)

    @cached_property
    def test(self) -> Callable[[Tensor], float | None]:
        """Gives the score of a model on the server's own test set, if it has one."""
        if self.config.test is None:
            return lambda model: None
        try:
            dataset = LoadedDatasets().get({"name": self.config.test})
        except InputError as error:
            raise error.at(f"`test` in {FEDERATION}") from error
        evaluator = Evaluator(self.job.task(dataset, torch.device("cpu")), stacked=False)
        samples = np.arange(len(dataset.samples))
        return lambda model: float(evaluator(model[None], samples).metric[0])


def refuse_standardized(dataset: Dataset) -> None:
    rule = "is not for federations: each client would scale by its own numbers"
    fix = "leave it out, and scale the data before"
    require("data.standardize", not dataset.standardize, rule, True, fix)
