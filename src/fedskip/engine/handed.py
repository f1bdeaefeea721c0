"""What a client hands on after a visit: its model, unless a study says that it is made private, or poisoned.

    private     y <- x + d min(1, clip / |d|) + sigma clip g            d = y - x,   g ~ N(0, 1)
    flip        y <- x - scale d
    noise       y <- x + scale |d| g / |g|

x is the model received. What a client remembers and uploads beside its model follows from the y handed on,
so the noise covers that, too. All of this acts on the trainable slice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedskip.input.errors import InputError, require
from fedskip.input.fit import SMALLEST, fit_all
from fedskip.models.vector import on
from fedskip.rng import passing, stream

EPSILON = "x_epsilon"  # a column of the history: what the client that was visited most has spent


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Local differential privacy of a visit, for all data of the client (Gaussian mechanism)."""

    clip: float  # the largest norm of an update
    sigma: float  # the noise's standard deviation, over `clip`
    delta: float = 1e-5

    def __post_init__(self) -> None:
        fit_all(self, "privacy.")
        for name in ("clip", "sigma"):
            value = getattr(self, name)
            require(f"privacy.{name}", value >= SMALLEST, "must be > 0", value)
        require("privacy.delta", 0 < self.delta < 1, "must be in (0, 1)", self.delta)

    def epsilon(self, visits: int) -> float:
        """What `visits` visits to a client cost it together.

        Any change of a client's data moves a clipped update by at most 2 clip, and Gaussian noise of v visits
        weighs as much as that of one visit with sigma / sqrt(v).
        """
        if visits == 0:
            return 0.0
        return float(_accountant()(self.sigma / 2 / math.sqrt(visits), self.delta))


def _accountant():  # type: ignore[no-untyped-def]
    """epsilon of (sigma over sensitivity, delta), exact for the Gaussian mechanism."""
    try:
        from dp_accounting import get_epsilon_gaussian
    except ImportError:
        fix = "pip install 'fedskip[privacy]'"
        raise InputError("privacy", "needs the package dp-accounting to count epsilon", fix=fix) from None
    return get_epsilon_gaussian


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Some clients hand on a model that is meant to harm."""

    clients: int = 1  # how many; the seed chooses which
    kind: Literal["flip", "noise"] = "flip"
    scale: float = 1.0  # of the harm, over the norm of the honest update

    def __post_init__(self) -> None:
        fit_all(self, "attack.")
        require("attack.clients", self.clients >= 0, "must be >= 0", self.clients)
        require("attack.scale", self.scale > 0, "must be > 0", self.scale, "use attack.clients=0 for none")

    def poisoners(self, seed: int, clients: int) -> frozenset[int]:
        """Which of N clients they are; with more of them, the fewer are among the more."""
        rule = f"must be <= {clients}, the number of clients"
        require("attack.clients", self.clients <= clients, rule, self.clients)
        return frozenset(stream(seed, "attack").permutation(clients)[: self.clients].tolist())


class Handing:
    """What the clients of one run hand on."""

    def __init__(
        self, trainable: int, privacy: Privacy | None, attack: Attack | None, poisoners: Collection[int]
    ) -> None:
        self.trainable, self.privacy, self.attack, self.poisoners = trainable, privacy, attack, poisoners

    def __call__(self, clients: np.ndarray, keys: Sequence[int], x: Tensor, y: Tensor) -> Tensor:
        """The models (k, P) that leave these clients, whose training took x to y."""
        bad = np.array([int(client) in self.poisoners for client in clients], dtype=bool)
        if self.privacy is None and not bad.any():
            return y
        x, d = x[:, : self.trainable], y[:, : self.trainable] - x[:, : self.trainable]
        size = d.norm(dim=1, keepdim=True)
        out = y[:, : self.trainable]
        if self.privacy is not None:
            out = x + d * (self.privacy.clip / size).clamp_max(1.0)
            out = out + self.privacy.sigma * self.privacy.clip * self._noise("privacy", keys, d)
        if self.attack is not None and bad.any():
            harm = -d
            if self.attack.kind == "noise":
                g = self._noise("attack", keys, d)
                harm = size * g / g.norm(dim=1, keepdim=True)
            out = torch.where(on(d.device, bad)[:, None], x + self.attack.scale * harm, out)
        return torch.cat([out, y[:, self.trainable :]], 1)

    @staticmethod
    def _noise(purpose: str, keys: Sequence[int], like: Tensor) -> Tensor:
        """Standard normal numbers that follow from the visits' keys, (k, D)."""
        rows = [passing(key, purpose).standard_normal(like.shape[1], np.float32) for key in keys]
        return on(like.device, np.stack(rows), like.dtype)
