"""Keyed randomness: every random draw is a pure function of a key. No global generator is used.

Draws of a run are keyed by `(seed, purpose, round)`. All draws inside one visit follow from one opaque
visit key, so that an engine or a remote client never needs the seed. On the CPU a key opens a numpy
generator. On tensors (augmentation, dropout) an integer hash gives the same numbers on every device.
"""

import contextlib
import hashlib
import threading
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

_MASK = 0xFFFFFFFF  # tensors carry 32-bit words in int64, so that no product overflows


def key(*parts: int | str) -> int:
    """A 63-bit key from integers and words. Equal parts give equal keys on every machine.

    >>> key(0, "cohort", 1) == key(0, "cohort", 1) != key("0", "cohort", 1)
    True
    """
    text = "\x1f".join(f"{type(part).__name__[0]}{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def stream(*parts: int | str) -> np.random.Generator:
    """A numpy generator with the key of these parts."""
    return np.random.Generator(np.random.Philox(key=key(*parts)))


class _Reused(threading.local):
    """One generator per thread, which is given a new key six times faster than a new one is made."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.philox)
        self.start = self.philox.state  # a counter at 0 and an empty buffer

    def stream(self, *parts: int | str) -> np.random.Generator:
        """What `stream` gives, until the next call on this thread."""
        self.start["state"]["key"][0] = key(*parts)
        self.philox.state = self.start
        return self.generator


_reused = _Reused()


def shuffles(items: np.ndarray, times: int, *parts: int | str) -> np.ndarray:
    """Independent random orders of `items`, (times, len(items)), as `stream(*parts)` draws them."""
    orders = np.empty((times, len(items)), items.dtype)
    orders[:] = items
    return _reused.stream(*parts).permuted(orders, axis=1, out=orders)


def ordered_sample(n: int, size: int, *parts: int | str) -> np.ndarray:
    """`size` different numbers below `n` in random order, as `stream(*parts)` draws them."""
    return _reused.stream(*parts).choice(n, size, replace=False, shuffle=True)


def normal(size: int, *parts: int | str) -> np.ndarray:
    """Standard normal float32 numbers, (size,), as `stream(*parts)` draws them."""
    return _reused.stream(*parts).standard_normal(size, np.float32)


def visit_key(seed: int, round: int, client: int) -> int:
    """The key of one visit: all random draws in it follow from this number."""
    return key(seed, "visit", round, client)


@contextlib.contextmanager
def torch_scope(*parts: int | str, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's generators (CPU and `device`) by the key; afterwards they are as they were before."""
    gpu = device if device is not None and device.type == "cuda" else None
    with torch.random.fork_rng(devices=[] if gpu is None else [gpu]):
        torch.default_generator.manual_seed(key(*parts))
        if gpu is not None:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(key(*parts))
        yield


def scramble(x: Tensor) -> Tensor:
    """A bijection of 32-bit words that leaves no visible structure (hash-prospector's two-round mix).

    Both constants are below 2^31, so int64 products never overflow: the result is the same on every
    device and under every compiler.
    """
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _MASK
    x = ((x ^ (x >> 15)) * 0x735A2D97) & _MASK
    return x ^ (x >> 15)


def fold(word: Tensor) -> Tensor:
    """Fold 63-bit keys to the 32-bit words that `mix` and `uniform` take."""
    return (word ^ (word >> 32)) & _MASK


def mix(word: Tensor, counter: Tensor | int) -> Tensor:
    """The `counter`-th 32-bit word that follows from `word`; shapes broadcast."""
    # the first mask keeps a compiler from computing the product as an index of 32 bits
    added = (counter & _MASK) * 0x1E3779B9
    if isinstance(added, int):
        added &= _MASK  # compiled code gets a constant of 32 bits
    return scramble((scramble(word) + added) & _MASK)


def uniform(word: Tensor, counter: Tensor | int) -> Tensor:
    """Float32 in [0, 1): the `counter`-th draw of `word`, of 24 random bits (exact in float32)."""
    return (mix(word, counter) >> 8).to(torch.float32) * (1.0 / (1 << 24))
