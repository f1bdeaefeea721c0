"""A study as a federation trains it: one setting, one method, one seed; the data stay at the clients."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.config import Setting, StudySpec, build, load_yaml
from fedskip.data.catalogue import LoadedDatasets
from fedskip.engine.evaluate import Evaluator
from fedskip.errors import InputError, require
from fedskip.flower.config import RUN, FederationConfig
from fedskip.flower.job_spec import JobSpec
from fedskip.methods.base import Method
from fedskip.methods.period import Period
from fedskip.models.construction import initial_model
from fedskip.models.metrics import metrics
from fedskip.models.vector import Layout

SITES = "sites"  # data.name if the server has no data: model and cohort must then be in the study
GUESSABLE = 1 << 40  # smaller seeds can be found by trying all


@dataclass(frozen=True)
class FederationPlan:
    """What the server of a federation does."""

    spec: StudySpec
    setting: Setting
    config: FederationConfig
    sizes: dict[str, int]  # facts of the data that the model may need
    experiment: str = field(default_factory=lambda: secrets.token_hex(8))  # the run's public name

    @classmethod
    def read(cls, folder: Path) -> FederationPlan:
        """The plan of a federation's folder: as its run was begun, else as the folder has it."""
        begun = folder / RUN / "study.yaml"
        spec = build(load_yaml(begun if begun.exists() else folder / "study.yaml"))
        return cls.make(spec, FederationConfig.read(folder))

    @classmethod
    def make(cls, spec: StudySpec, config: FederationConfig) -> FederationPlan:
        """The plan of a study; refuses what cannot be done while the data stay at the clients."""
        drafts = [draft for draft in spec.settings if not draft.keys.get("reference")]
        fix = "run STUDY/SETTING, one after the other"
        require("settings", len(drafts) == 1, "must be one in a federation", len(drafts), fix)
        [draft] = drafts
        draft.refuse_named_objects()
        if "seeds" not in draft.keys:  # a small one could be found from the keys of visits
            draft = draft.with_keys(seeds=[secrets.randbits(62)])
        defaults: dict[str, Any] = {"partition.kind": "natural"}
        sizes: dict[str, int] = {}
        data: Any = draft.keys["data"]
        if not isinstance(data, dict) or data.get("name") != SITES:
            dataset = LoadedDatasets().get(data)
            rule = "is not for federations: each client would scale by its own numbers"
            require("data.standardize", not dataset.standardize, rule, True, "leave it out")
            defaults, sizes = defaults | dict(dataset.defaults), dataset.sizes
        draft = draft.with_keys(clients=len(config.clients))
        plan = cls(replace(spec, settings=(draft,)), draft.resolved(defaults), config, sizes)
        plan.refuse_impossible()
        return plan

    def refuse_impossible(self) -> None:
        """Refuse what a federation cannot do, before anything is started."""
        setting = self.setting
        for name in ("methods", "seeds"):
            values = getattr(setting, name)
            fix = f"choose one with --set {name}=..."
            require(name, len(values) == 1, "must be one in a federation", len(values), fix)
        merges = bool(Period.parse(self.method.period).segments)
        rule = "must not be 'never' in a federation: it would have no model"
        require("period", merges, rule, ...)
        for name in ("validation", "slot_accuracy", "client_accuracy", "stop"):
            value = getattr(setting, name)
            rule = "is not for federations: the data stay at the sites"
            require(name, not value, rule, value, "leave it out")
        for name in ("attack", "guard"):
            value = getattr(setting, name)
            require(name, value is None, "is only for simulations so far", value, "leave it out")
        [metric, *more] = metrics(setting.metric)
        is_mean = not more and not metric.whole and metric.higher_is_better and not metric.after
        fix = "write one that is a mean over samples, higher is better, such as accuracy"
        require("metric", is_mean, "must be one that sites can add up", setting.metric, fix)
        _ = self.job.dump(), self.layout  # the job can be sent, and the model can be made
        if setting.privacy is not None:
            setting.privacy.refuse_buffers(
                initial_model(setting.model, self.sizes, None, self.seed, "init")
            )
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
        return JobSpec.make(self.spec, self.setting, self.method, self.sizes)

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(initial_model(self.setting.model, self.sizes, None, self.seed, "init"))

    def weights(self, purpose: str) -> Tensor:
        """Initial weights, (P,): those of the run for "init", another draw for another purpose."""
        module = initial_model(
            self.setting.model, self.sizes, self.setting.init, self.seed, purpose
        )
        return self.layout.pack(module).to(self.job.arithmetic(torch.device("cpu")).dtype)

    @cached_property
    def _evaluator(self) -> tuple[Evaluator, np.ndarray] | None:
        if self.config.test is None:
            return None
        try:
            dataset = LoadedDatasets().get({"name": self.config.test})
        except InputError as error:
            raise InputError("test", f"cannot be used: {error}") from error
        task = self.job.task(dataset, torch.device("cpu"))
        return Evaluator(task, stacked=False), np.arange(len(dataset.samples))

    def test(self, model: Tensor) -> float | None:
        """The score of a model on the server's own test set, if it has one."""
        if self._evaluator is None:
            return None
        evaluator, samples = self._evaluator
        return float(evaluator(model[None], samples).metric[0])
