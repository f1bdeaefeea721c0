"""What a client does to its model before it uploads it: privacy adds noise, an attack adds harm.

    private     y <- x + d min(1, clip / |d|) + sigma clip g            d = y - x,   g ~ N(0, 1)
    flip        y <- x - scale d
    noise       y <- x + scale |d| g / |g|

x is the model received, and y the trained one. What a client remembers and uploads beside its model follows
from the y that it uploads, so the noise covers that, too. All of this acts on the trainable slice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedskip.errors import InputError, require
from fedskip.models.vector import on
from fedskip.parsing import Above, AtLeast, In, Positive, fit_all
from fedskip.rng import normal, stream

EPSILON = "x_epsilon"  # a column of the history: what the client that was visited most has spent

# The noise of visits with these keys, (k, D), for clipped models (k, D) and its standard deviation.
Draw = Callable[[Sequence[int], Tensor, float], Tensor]


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Local differential privacy of a visit, for all data of the client (Gaussian mechanism)."""

    clip: Positive
    """Needed. The largest norm of an update."""
    sigma: Positive
    """Needed. The noise's standard deviation, in units of `clip`."""
    delta: Annotated[float, In("(0, 1)")] = 1e-5
    """The δ at which ε is counted."""

    def __post_init__(self) -> None:
        fit_all(self, "privacy.")

    def epsilon(self, visits: int) -> float:
        """What `visits` visits to a client cost it together.

        The Gaussian noise of v visits weighs as much as that of one visit with sigma / sqrt(v).
        """
        if visits == 0:
            return 0.0
        return gaussian_epsilon(self.sigma / math.sqrt(visits), self.delta)

    @staticmethod
    def refuse_buffers(module: nn.Module) -> None:
        """Refuse a model that has numbers which would leave without noise."""
        if any(buffer.is_floating_point() for buffer in module.buffers()):
            rule = "cannot be had with a model that has buffers (BatchNorm): they would leave without noise"
            raise InputError("privacy", rule, fix="use a model without them, as with GroupNorm")


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """What a visit with noise of `sigma` clips costs, exactly.

    Any change of a client's data moves a clipped update by at most 2 clip.
    """
    try:
        from dp_accounting import get_epsilon_gaussian
    except ImportError:
        fix = "pip install 'fedskip[privacy]'"
        raise InputError(
            "privacy", "needs the package dp-accounting to count epsilon", fix=fix
        ) from None
    return float(get_epsilon_gaussian(sigma / 2, delta))


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Some clients upload a model that is meant to harm."""

    clients: Annotated[int, AtLeast(0)] = 1
    """How many clients do harm; the seed chooses which."""
    kind: Literal["flip", "noise"] = "flip"
    """`flip`: the honest update turned round; `noise`: a random update."""
    scale: Annotated[float, Above(0, "use attack.clients=0 for none")] = 1.0
    """The norm of the harm, over that of the honest update."""

    def __post_init__(self) -> None:
        fit_all(self, "attack.")

    def poisoners(self, seed: int, clients: int) -> frozenset[int]:
        """Which of N clients they are; with more of them, the fewer are among the more."""
        rule = f"must be <= {clients}, the number of clients"
        require("attack.clients", self.clients <= clients, rule, self.clients)
        return frozenset(stream(seed, "attack").permutation(clients)[: self.clients].tolist())


class UploadFilter:
    """Makes the models that the clients of one run upload private, or poisons them."""

    def __init__(
        self,
        trainable: int,
        privacy: Privacy | None,
        attack: Attack | None = None,
        poisoners: Collection[int] = (),
        draw: Draw | None = None,
    ) -> None:
        """`draw` gives the noise of privacy; None: it follows from the visits' keys, as in simulations."""
        self.trainable, self.privacy, self.attack = trainable, privacy, attack
        self.poisoners, self.draw = poisoners, draw or from_keys

    def __call__(self, clients: np.ndarray, keys: Sequence[int], x: Tensor, y: Tensor) -> Tensor:
        """The models (k, P) that leave these clients, whose training took x to y."""
        bad = np.array([int(client) in self.poisoners for client in clients], dtype=bool)
        if self.privacy is None and not bad.any():
            return y
        x, y, rest = x[:, : self.trainable], y[:, : self.trainable], y[:, self.trainable :]
        d = y - x
        size, out = d.norm(dim=1, keepdim=True), y
        if self.privacy is not None:  # an update that is not finite leaves as zeros
            clip = self.privacy.clip
            clipped = x + torch.where(size.isfinite(), d * (clip / size).clamp_max(1.0), 0.0)
            out = clipped + self.draw(keys, clipped, self.privacy.sigma * clip)
        if self.attack is not None and bad.any():
            harm = -d
            if self.attack.kind == "noise":
                g = _normal("attack", keys, d)
                harm = size * g / g.norm(dim=1, keepdim=True)
            out = torch.where(on(d.device, bad)[:, None], x + self.attack.scale * harm, out)
        return torch.cat([out, rest], 1)


def from_keys(keys: Sequence[int], clipped: Tensor, deviation: float) -> Tensor:
    """Noise that whoever knows the visits' keys can draw again: for simulations."""
    return deviation * _normal("privacy", keys, clipped)


def _normal(purpose: str, keys: Sequence[int], like: Tensor) -> Tensor:
    """Standard normal numbers that follow from the visits' keys, (k, D)."""
    rows = [normal(like.shape[1], key, purpose) for key in keys]
    return on(like.device, np.stack(rows), like.dtype)
