"""What a client is told of a study: model, local training and method. Never the seed, never the period."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedskip.data.base import Dataset
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.handed import Privacy
from fedskip.engine.local import Local
from fedskip.engine.task import Task
from fedskip.files import digest
from fedskip.input.errors import InputError, require
from fedskip.methods.base import Method
from fedskip.methods.grammar import parse_many, text
from fedskip.models.making import make
from fedskip.models.measures import loss
from fedskip.models.metrics import metrics
from fedskip.models.vector import Layout
from fedskip.spec import Setting, StudySpec
from fedskip.study.prepare import converted

PROTOCOL = 2  # of the messages: both sides must speak the same
LONGEST = 100_000  # characters of its text


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is trained, and how: the same for every client and every round of a run."""

    model: Mapping[str, Any]
    sizes: Mapping[str, int]  # what the model takes of them and was not told
    loss: str
    metric: str
    local: Local
    method: Method  # with period 1: when slots merge is the server's secret
    rounds: int
    precision: str | None
    deterministic: bool
    privacy: Privacy | None  # what a site does to a model before it hands it on

    @classmethod
    def of(cls, spec: StudySpec, setting: Setting, method: Method, sizes: Mapping[str, int]) -> Work:
        """What clients may know of a study; refuses what a message cannot carry."""
        for field in ("model", "loss", "metric"):
            value = getattr(setting, field)
            fix = "write it in a module that every site has, and name it MODULE:NAME"
            require(field, isinstance(value, str | Mapping), "must have a name in a federation", value, fix)
        assert isinstance(setting.model, Mapping)
        return cls(
            model=setting.model, sizes=dict(sizes), loss=str(setting.loss), metric=str(setting.metric),
            local=setting.local, method=dataclasses.replace(method, period=1), rounds=setting.rounds,
            precision=spec.precision, deterministic=spec.deterministic, privacy=setting.privacy,
        )  # fmt: skip

    def dump(self) -> str:
        """As the text that messages carry."""
        plain = {**vars(self), "local": dataclasses.asdict(self.local), "method": text(self.method)}
        plain["privacy"] = self.privacy and dataclasses.asdict(self.privacy)
        return json.dumps({"protocol": PROTOCOL, **plain}, sort_keys=True)

    @classmethod
    def parse(cls, written: str) -> Work:
        """What `dump` gave; refuses anything else."""
        rule, fix = "cannot be read by this site", "install the same fedskip on the server and on all sites"
        try:
            values = json.loads(written[:LONGEST])
            require("work", values.pop("protocol", None) == PROTOCOL, rule, ..., fix)
            [values["method"]] = parse_many(values["method"])
            values["privacy"] = Privacy(**values["privacy"]) if values["privacy"] is not None else None
            return cls(**{**values, "local": Local(**values["local"])})
        except InputError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError("work", rule, type(error).__name__, fix) from error

    def arithmetic(self, device: torch.device) -> Arithmetic:
        precision = self.precision or ("fp32" if device.type == "cpu" else "tf32")
        return Arithmetic(precision, self.deterministic)

    def task(self, dataset: Dataset, device: torch.device) -> Task:
        """The work on some data: engines train it."""
        arithmetic = self.arithmetic(device)
        module = make(self.model, self.sizes, None, 0, "init").to(device, arithmetic.dtype)
        return Task(
            module, Layout.of(module), loss(self.loss), metrics(self.metric),
            dataset.samples.to(device, arithmetic.dtype), self.local,
            converted(arithmetic.dtype, dataset.train_transform),
            converted(arithmetic.dtype, dataset.test_transform),
            arithmetic,
        )  # fmt: skip


def layout_digest(layout: Layout) -> str:
    """Both sides must lay out a model in the same way."""
    return digest(repr(layout).encode())
