"""What clients get of a study: model, local training and method. Never the seed or the period."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedskip.config import Setting, StudySpec
from fedskip.data.dataset import Dataset
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.local import Local
from fedskip.engine.task import Task
from fedskip.engine.upload_filters import Privacy
from fedskip.errors import InputError, require
from fedskip.federation import make_task
from fedskip.files import digest
from fedskip.methods.base import Method
from fedskip.methods.grammar import parse_many, text
from fedskip.models.construction import initial_model
from fedskip.models.vector import Layout

PROTOCOL = 3  # the version of the messages: server and clients must have the same
LONGEST = 100_000  # characters that are read of a job's text


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What is trained, and how: the same for every client and every round of a run."""

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

    @classmethod
    def make(
        cls, spec: StudySpec, setting: Setting, method: Method, sizes: Mapping[str, int]
    ) -> JobSpec:
        """What clients may know of a study; refuses what a message cannot carry."""
        for field in ("model", "loss", "metric"):
            value = getattr(setting, field)
            rule = "must have a name in a federation"
            fix = "write it in a module that every site has, and name it MODULE:NAME"
            require(field, isinstance(value, str | Mapping), rule, value, fix)
        assert isinstance(setting.model, Mapping)
        return cls(
            model=setting.model, sizes=dict(sizes), loss=str(setting.loss), metric=str(setting.metric),
            local=setting.local, method=dataclasses.replace(method, period=1), rounds=setting.rounds,
            precision=spec.precision, deterministic=spec.deterministic, privacy=setting.privacy,
        )  # fmt: skip

    def dump(self) -> str:
        """The text that messages carry."""
        plain = {**vars(self), "local": dataclasses.asdict(self.local), "method": text(self.method)}
        plain["privacy"] = self.privacy and dataclasses.asdict(self.privacy)
        return json.dumps({"protocol": PROTOCOL, **plain}, sort_keys=True)

    @classmethod
    def parse(cls, message: str) -> JobSpec:
        """The inverse of `dump`; refuses anything else."""
        rule = "cannot be read by this client"
        fix = "install the same fedskip on the server and on all clients"
        try:
            values = json.loads(message[:LONGEST])
            require("job", values.pop("protocol", None) == PROTOCOL, rule, ..., fix)
            [values["method"]] = parse_many(values["method"])
            privacy = values["privacy"]
            values["privacy"] = None if privacy is None else Privacy(**privacy)
            return cls(**{**values, "local": Local(**values["local"])})
        except InputError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError("job", rule, type(error).__name__, fix) from error

    def arithmetic(self, device: torch.device) -> Arithmetic:
        return Arithmetic.on(device, self.precision, self.deterministic)

    def task(self, dataset: Dataset, device: torch.device) -> Task:
        """The job on some data, as engines train it."""
        arithmetic = self.arithmetic(device)
        module = initial_model(self.model, self.sizes, None, 0, "init")
        return make_task(
            module, dataset, self.local, loss=self.loss, metric=self.metric, device=device,
            arithmetic=arithmetic,
        )  # fmt: skip


def layout_digest(layout: Layout) -> str:
    """Server and clients must lay out a model in the same way: they compare this."""
    return digest(repr(layout).encode())
