"""Noise that only its client can draw, and an account of the private visits.

Whoever can draw the noise again can take it off. So it follows from a random key, which never leaves the client,
and from all that it hides: the order, the clipped model and the size of the noise. The same order, answered
twice, gets the same answer, from which nobody learns more. Anything else gets other noise: two models under
the same noise would reveal their difference.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from fedskip.engine.upload_filters import Draw, gaussian_epsilon
from fedskip.errors import require
from fedskip.flower.keys import refuse_open_to_others, write_secret
from fedskip.models.vector import on

KEY, ACCOUNT = "privacy.key", "privacy.jsonl"
BYTES = 32  # of the key
BLOCK = 1 << 20  # numbers that are drawn at once


def noise_key(state_dir: Path) -> bytes:
    """The key of a client's noise, made when it is first needed."""
    path = state_dir / KEY
    if not path.exists():
        write_secret(path, secrets.token_bytes(BYTES))
    refuse_open_to_others(path)
    key = path.read_bytes()
    rule, fix = f"must hold {BYTES} bytes", "remove it: a new one is made"
    require(str(path), len(key) == BYTES, rule, len(key), fix)
    return key


def fingerprint(*parts: str | Tensor, key: bytes = b"") -> bytes:
    """A digest of texts and tensors; with a key, nobody else can compute it."""
    hashed = hashlib.blake2b(key=key, digest_size=32)
    for part in parts:
        content = part.encode() if isinstance(part, str) else part.detach().cpu().numpy().tobytes()
        hashed.update(len(content).to_bytes(8, "little"))
        hashed.update(content)
    return hashed.digest()


def client_noise(key: bytes, order: bytes, before: Callable[[str], None]) -> Draw:
    """The noise for the answer to an order. `before` gets the visit's name before the noise is used."""

    def draw(keys: Sequence[int], clipped: Tensor, deviation: float) -> Tensor:
        assert len(clipped) == 1, "a client has one visit at a time"
        seed = fingerprint(order.hex(), deviation.hex(), clipped, key=key)
        before(seed[:8].hex())
        noise = standard_normal(seed, clipped.shape[1])[None]
        return deviation * on(clipped.device, noise, clipped.dtype)

    return draw


def standard_normal(seed: bytes, size: int) -> np.ndarray:
    """Standard normal numbers (Box-Muller) from the words that SHAKE-256 makes of a seed."""
    numbers = np.empty(size)
    for start in range(0, size, BLOCK):
        count = min(BLOCK, size - start)
        pairs = (count + 1) // 2
        drawn = hashlib.shake_256(seed + start.to_bytes(8, "little")).digest(16 * pairs)
        words = np.frombuffer(drawn, "<u8").reshape(2, pairs) >> np.uint64(11)  # 53 bits each
        radius = np.sqrt(-2 * np.log((words[0] + np.uint64(1)) * 2.0**-53))
        angle = words[1] * (2 * math.pi * 2.0**-53)
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        numbers[start : start + count] = both[:count]
    return numbers


class PrivacyAccount:
    """The private visits to some clients, in a file that is only ever added to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sigmas: dict[str, dict[str, float]] = defaultdict(dict)  # by client and visit
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for entry in map(json.loads, lines):
            self._sigmas[entry["client"]][entry["visit"]] = entry["sigma"]

    def add(self, client: str, visit: str, sigma: float) -> None:
        """Count a visit. The same visit counts once, however often it is made."""
        if visit in self._sigmas[client]:
            return
        self._sigmas[client][visit] = sigma
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"client": client, "visit": visit, "sigma": sigma}) + "\n")

    def refuse_beyond(
        self, limit: float, delta: float, client: str, visit: str, sigma: float
    ) -> None:
        """Refuse a visit with which a client would have spent more than a limit."""
        spent = _epsilon(_weight({**self._sigmas[client], visit: sigma}), delta)
        rule = f"would be overspent: {spent:.4g} at delta {delta:g}, with this visit"
        fix = "raise it in client.yaml, or leave the federation"
        require("epsilon", spent <= limit, rule, limit, fix)

    def epsilon(self, delta: float) -> float:
        """What the client that has spent most has spent."""
        return _epsilon(max(map(_weight, self._sigmas.values()), default=0.0), delta)


def _weight(visits: dict[str, float]) -> float:
    """How much visits with noise of these sigmas reveal together, as a visit with sigma 1 counts 1."""
    return sum(sigma**-2 for sigma in visits.values())


def _epsilon(weight: float, delta: float) -> float:
    return gaussian_epsilon(weight**-0.5, delta) if weight else 0.0
