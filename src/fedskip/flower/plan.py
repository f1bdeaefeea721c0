"""A study as a federation plays it: one setting, one method, one seed; the data stay at the sites."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.data.pools import Pools
from fedskip.engine.evaluate import Evaluator
from fedskip.flower.agreement import Agreement
from fedskip.flower.work import Work
from fedskip.input.errors import InputError, require
from fedskip.methods.base import Method
from fedskip.methods.period import Period
from fedskip.models.making import make
from fedskip.models.metrics import metrics
from fedskip.models.vector import Layout
from fedskip.spec import Draft, Setting, StudySpec

SITES = "sites"  # data.name where the server has no data: model and cohort must then be written out
GUESSABLE = 1 << 40  # a seed below it is found by trying all


@dataclass(frozen=True)
class Plan:
    """What the server of a federation does."""

    spec: StudySpec
    setting: Setting
    agreement: Agreement
    sizes: dict[str, int]  # what the model may want to know of the data
    experiment: str = field(default_factory=lambda: secrets.token_hex(8))  # what clients call the run

    @classmethod
    def of(cls, spec: StudySpec, agreement: Agreement) -> Plan:
        """The plan of a study; refuses what cannot be done where the data stay at the sites."""
        drafts = [draft for draft in spec.settings if not draft.keys.get("reference")]
        fix = "run STUDY/SETTING, one after the other"
        require("settings", len(drafts) == 1, "must be one in a federation", len(drafts), fix)
        [draft] = drafts
        draft.refuse_lost()
        if "seeds" not in draft.keys:  # visit keys would tell a small one to clients who try all
            draft = Draft({**draft.keys, "seeds": [secrets.randbits(62)]})
        defaults: dict[str, Any] = {"partition.kind": "natural"}
        sizes: dict[str, int] = {}
        data: Any = draft.keys["data"]
        if not isinstance(data, dict) or data.get("name") != SITES:
            dataset = Pools().get(data).dataset
            rule, fix = "is not for federations: sites would scale by numbers of their own", "leave it out"
            require("data.standardize", not dataset.standardize, rule, True, fix)
            defaults, sizes = defaults | dict(dataset.defaults), dataset.sizes
        draft = Draft({**draft.keys, "clients": len(agreement.clients)})
        plan = cls(replace(spec, settings=(draft,)), draft.resolved(defaults), agreement, sizes)
        plan.refuse_impossible()
        return plan

    def refuse_impossible(self) -> None:
        """Refuse what a federation has no way to do, before anything is started."""
        setting = self.setting
        for name in ("methods", "seeds"):
            found = getattr(setting, name)
            rule = "must be one in a federation"
            require(name, len(found) == 1, rule, len(found), f"choose one with --set {name}=...")
        never = not Period.parse(self.method.period).segments
        require("period", not never, "must not be 'never' in a federation: it would have no model", ...)
        for name in ("validation", "slot_accuracy", "client_accuracy", "stop"):
            value = getattr(setting, name)
            rule = "is not for federations: the data stay at the sites"
            require(name, not value, rule, value, "leave it out")
        for name in ("attack", "guard"):
            value = getattr(setting, name)
            require(name, value is None, "is only for simulations so far", value, "leave it out")
        known = metrics(setting.metric)
        summed = len(known) == 1 and not known[0].whole and known[0].higher_is_better and not known[0].after
        fix = "write one that is a mean over samples, higher is better, such as accuracy"
        require("metric", summed, "must be one that sites can add up", setting.metric, fix)
        _ = self.work.dump(), self.layout  # what it is can be sent, and the model can be made
        if setting.privacy is not None:
            setting.privacy.refuse_buffers(make(setting.model, self.sizes, None, self.seed, "init"))
            setting.privacy.epsilon(1)  # refuses where it cannot be counted

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
    def work(self) -> Work:
        return Work.of(self.spec, self.setting, self.method, self.sizes)

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(make(self.setting.model, self.sizes, None, self.seed, "init"))

    def start(self, purpose: str) -> Tensor:
        """The weights that a run starts with, or others drawn apart from them, (P,)."""
        module = make(self.setting.model, self.sizes, self.setting.init, self.seed, purpose)
        return self.layout.pack(module).to(self.work.arithmetic(torch.device("cpu")).dtype)

    @cached_property
    def _evaluator(self) -> tuple[Evaluator, np.ndarray] | None:
        if self.agreement.test is None:
            return None
        try:
            dataset = Pools().get({"name": self.agreement.test}).dataset
        except InputError as error:
            raise InputError("test", f"cannot be used: {error}") from error
        task = self.work.task(dataset, torch.device("cpu"))
        return Evaluator(task, stacked=False), np.arange(len(dataset.samples))

    def test(self, model: Tensor) -> float | None:
        """A model on the server's own test set, if it has one."""
        if self._evaluator is None:
            return None
        evaluator, samples = self._evaluator
        return float(evaluator(model[None], samples).metric[0])
