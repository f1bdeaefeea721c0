"""Noise that only its site can draw, and an account of the visits that were private.

Who can draw the noise again can take it off. So it follows from a random key, which is made at the site and
never leaves it, and from all that it hides: the order, the clipped model and the size of the noise. The same
order, answered twice, gets the same answer, from which nobody learns more. Anything else gets noise of its
own: two models under the same noise would show their difference.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from fedskip.engine.handed import Draw, gaussian_epsilon
from fedskip.files import sync_folder
from fedskip.flower.keys import write_secret
from fedskip.input.errors import require
from fedskip.models.vector import on

KEY, ACCOUNT = "privacy.key", "privacy.jsonl"
BYTES = 32  # of the key
BLOCK = 1 << 20  # numbers that are drawn at once


def site_key(state_dir: Path) -> bytes:
    """The key of a site, which is made when it is needed first."""
    path = state_dir / KEY
    if not path.exists():
        partial = path.with_name(f".{KEY}.{os.getpid()}.part")
        partial.unlink(missing_ok=True)
        write_secret(partial, secrets.token_bytes(BYTES))
        os.replace(partial, path)
        sync_folder(state_dir)
    open_to_all = os.name == "posix" and path.stat().st_mode & 0o077
    require(str(path), not open_to_all, "can be read by others", ..., f"run chmod 600 {path}")
    key = path.read_bytes()
    rule, fix = f"must hold {BYTES} bytes", "remove it: a new one is made"
    require(str(path), len(key) == BYTES, rule, len(key), fix)
    return key


def fingerprint(*parts: str | Tensor, key: bytes = b"") -> bytes:
    """What tells these parts apart from all others; with a key, nobody else can compute it."""
    found = hashlib.blake2b(key=key, digest_size=32)
    for part in parts:
        content = part if isinstance(part, str) else part.detach().cpu().contiguous().numpy().tobytes()
        content = content.encode() if isinstance(content, str) else content
        found.update(len(content).to_bytes(8, "little"))
        found.update(content)
    return found.digest()


def own_noise(key: bytes, order: bytes, noted: Callable[[str], None]) -> Draw:
    """The noise of a visit that answers an order; `noted` hears of it, by a name, before it is used."""

    def draw(keys: Sequence[int], clipped: Tensor, deviation: float) -> Tensor:
        assert len(clipped) == 1, "a site has one visit at a time"
        seed = fingerprint(order.hex(), deviation.hex(), clipped, key=key)
        noted(seed[:8].hex())
        return deviation * on(clipped.device, normal(seed, clipped.shape[1])[None], clipped.dtype)

    return draw


def normal(seed: bytes, size: int) -> np.ndarray:
    """Standard normal numbers (Box and Muller's) of the words that SHAKE-256 makes of a seed."""
    found = np.empty(size)
    for start in range(0, size, BLOCK):
        count = min(BLOCK, size - start)
        pairs = (count + 1) // 2
        drawn = hashlib.shake_256(seed + start.to_bytes(8, "little")).digest(16 * pairs)
        words = np.frombuffer(drawn, "<u8").reshape(2, pairs) >> np.uint64(11)  # 53 bits each
        length = np.sqrt(-2 * np.log((words[0] + np.uint64(1)) * 2.0**-53))
        angle = words[1] * (2 * math.pi * 2.0**-53)
        both = np.concatenate([length * np.cos(angle), length * np.sin(angle)])
        found[start : start + count] = both[:count]
    return found


class Account:
    """The private visits of some clients: a file that is only ever added to; None: it is not kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._sigmas: dict[str, dict[str, float]] = defaultdict(dict)  # by client and visit
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
        for line in lines:
            one = json.loads(line)
            self._sigmas[one["client"]][one["visit"]] = one["sigma"]

    def note(self, client: str, visit: str, sigma: float) -> None:
        """Count a visit. The same one counts once, however often it is made."""
        if visit in self._sigmas[client]:
            return
        self._sigmas[client][visit] = sigma
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"client": client, "visit": visit, "sigma": sigma}) + "\n")

    def refuse_beyond(self, limit: float, delta: float, client: str, visit: str, sigma: float) -> None:
        """Refuse a visit with which a client would have spent more than a limit."""
        ahead = Account(None)
        ahead._sigmas[client] = {**self._sigmas[client], visit: sigma}
        spent = ahead.epsilon(delta)
        rule = f"would be overspent: {spent:.4g} at delta {delta:g}, with this visit"
        require("epsilon", spent <= limit, rule, limit, "raise it in client.yaml, or leave the federation")

    def epsilon(self, delta: float) -> float:
        """What the client that has spent most has spent."""
        most = max((sum(s**-2 for s in visits.values()) for visits in self._sigmas.values()), default=0.0)
        return gaussian_epsilon(most**-0.5, delta) if most else 0.0
