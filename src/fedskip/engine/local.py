"""How a client trains: what a study says about it, and the steps that follow for one visit."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedskip.errors import InputError, require
from fedskip.parsing import MOST, AtLeast, AtMost, Count, In, Positive, fit, fit_all
from fedskip.rng import shuffles


@dataclass(frozen=True, kw_only=True)
class Local:
    """How a client trains. The defaults are the paper's."""

    lr: Positive = 0.01
    """The learning rate η."""
    momentum: Annotated[float, In("[0, 1)")] = 0.9
    """ρ. It starts again with every client update."""
    weight_decay: Annotated[float, AtLeast(0), AtMost(MOST)] = 1e-5
    """Added to the gradient."""
    batch: Count = 64
    """The samples of a step."""
    epochs: Count = 10
    """E: passes over the client's samples."""
    decay: str = "constant"
    """The rule for the learning rate, such as `cosine(floor=0)`."""
    last_batch: Literal["drop", "keep"] = "drop"
    """The incomplete batch of an epoch: `drop` or `keep`."""
    small_clients: Literal["error", "drop", "short"] = "error"
    """Clients with fewer samples than a batch: `error`, `drop` (leave them out) or `short` (train on what
    they have)."""
    clip: Positive | None = None
    """The largest norm of a gradient."""
    max_steps: Count | None = None
    """The most steps of a client update, to try things out."""
    optimizer: str = "sgd"
    """Nothing else: the methods are written for it."""

    def __post_init__(self) -> None:
        fit_all(self, "local.")
        why = "all methods are written for it; for its momentum set local.momentum"
        require("local.optimizer", self.optimizer == "sgd", "must be 'sgd'", self.optimizer, why)
        Decay.parse(self.decay)

    @property
    def short_batches(self) -> bool:
        """Whether a batch may hold fewer samples than `batch`."""
        return self.last_batch == "keep" or self.small_clients == "short"

    @property
    def fewest(self) -> int:
        """The samples that a client must have."""
        return 1 if self.short_batches else self.batch

    def steps_per_epoch(self, size: int) -> int:
        """How many batches an epoch over `size` samples has."""
        whole, rest = divmod(size, self.batch)
        keep = self.last_batch == "keep" or (whole == 0 and self.small_clients == "short")
        return whole + (rest > 0 and keep)

    def steps(self, size: int) -> int:
        """tau_i: the steps of a visit to a client of `size` samples."""
        steps = self.epochs * self.steps_per_epoch(size)
        return steps if self.max_steps is None else min(steps, self.max_steps)


@dataclass(frozen=True)
class Route:
    """One visit as a sequence of steps: which samples, at which rate."""

    batches: np.ndarray  # (steps, B) int64 pool indices; -1 fills up a short batch
    eta: np.ndarray  # (steps,) float64
    key: int  # the visit key: augmentation and dropout follow from it
    a: float  # the weight of a constant gradient in x - y; see `momentum_sum`

    @property
    def steps(self) -> int:
        return len(self.batches)


def route(key: int, indices: np.ndarray, local: Local, round: int = 0, rounds: int = 1) -> Route:
    """The steps of one visit: every epoch is a fresh order of the client's samples, cut into batches."""
    per_epoch, steps = local.steps_per_epoch(len(indices)), local.steps(len(indices))
    epochs = math.ceil(steps / per_epoch)
    orders = shuffles(indices, epochs, key)
    width = per_epoch * local.batch
    if width > len(indices):  # the last batch of an epoch is short
        orders = np.pad(orders, ((0, 0), (0, width - len(indices))), constant_values=-1)
    batches = orders[:, :width].reshape(-1, local.batch)[:steps]
    constant = local.decay == "constant"
    eta, a = _rates(steps, local, 0 if constant else round, 1 if constant else rounds)
    return Route(np.ascontiguousarray(batches, dtype=np.int64), eta, key, a)


@functools.lru_cache(maxsize=1024)
def _rates(steps: int, local: Local, round: int, rounds: int) -> tuple[np.ndarray, float]:
    """The learning rate of each step of a visit, and their `momentum_sum`."""
    eta = local.lr * Decay.parse(local.decay).at(round + np.arange(steps) / steps, rounds)
    return eta, momentum_sum(eta, local.momentum)


def momentum_sum(eta: np.ndarray, rho: float) -> float:
    """Sum over steps s of eta_s (1 - rho^(s+1)) / (1 - rho): the weight of a constant gradient in x - y.

    With a constant eta it is eta times FedNova's a_i.
    """
    s = np.arange(1, len(eta) + 1)
    return float((eta * (1 - rho**s) / (1 - rho)).sum())


_RULE = re.compile(r"(\w+)(?:\((\w+)=([^,()]+)(?:,\s*(\w+)=([^,()]+))?\))?")
_DEFAULTS: dict[str, dict[str, float]] = {
    "constant": {},
    "cosine": {"floor": 0.0},
    "step": {"every": 50.0, "factor": 0.1},
    "inverse": {"half": 50.0},
}
# a rate of 0 would leave SCAFFOLD and FedNova to divide by it; a cosine only tends to its floor
_RANGES = {
    "floor": Annotated[float, In("[0, 1]", "it is a share of local.lr")],
    "every": Positive, "factor": Positive, "half": Positive,
}  # fmt: skip


@dataclass(frozen=True)
class Decay:
    """The learning rate as a multiple of its start, at a position counted in rounds.

    `constant`; `cosine(floor=0)` over the whole run; `step(every=50, factor=0.1)`;
    `inverse(half=50)`: 1 / (1 + r / half), the 1-over-t rule of convergence theorems.
    A step inside a visit has a fractional position: local step s of n in round t is at r = t + s/n.
    """

    kind: str
    options: tuple[tuple[str, float], ...]

    @classmethod
    def parse(cls, rule: str) -> Decay:
        match = _RULE.fullmatch(rule.strip()) if isinstance(rule, str) else None
        if not match or match[1] not in _DEFAULTS:
            rules = "constant, cosine, step(every=50, factor=0.1) or inverse(half=50)"
            raise InputError("local.decay", f"must be {rules}", rule)
        options = dict(_DEFAULTS[match[1]])
        for name, text in ((match[2], match[3]), (match[4], match[5])):
            if name is None:
                continue
            if name not in options:
                takes = ", ".join(options) or "no options"
                rule_of = f"has no option {name!r}; {match[1]} takes {takes}"
                raise InputError("local.decay", rule_of, rule)
            options[name] = fit(f"local.decay: {name}", text, _RANGES[name])
        return cls(match[1], tuple(options.items()))

    def at(self, position: np.ndarray, rounds: int) -> np.ndarray:
        """The factors at positions counted in rounds, in a run of `rounds`."""
        o = dict(self.options)
        if self.kind == "cosine":
            falling = (1 + np.cos(np.pi * np.minimum(position / rounds, 1.0))) / 2
            return np.asarray(o["floor"] + (1 - o["floor"]) * falling)
        if self.kind == "step":
            return o["factor"] ** (position // o["every"])
        if self.kind == "inverse":
            return 1 / (1 + position / o["half"])
        return np.ones_like(position)
