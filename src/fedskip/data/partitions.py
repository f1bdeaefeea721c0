"""Who owns which training sample: partitions, and the ways to draw one.

A way to draw one (a *kind*) is a pure function of the samples' labels (for `natural`: their owners),
the number of clients and a generator. It deals the positions 0..m-1 of the training samples;
`partition` opens the generator from the seed and turns positions into pool indices.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedskip.data.arrays import read_npz
from fedskip.files import write_bytes
from fedskip.input.errors import InputError, unknown
from fedskip.rng import stream

TRIES = 1000  # draws of a random partition before we say that it cannot be had


@dataclass(frozen=True, eq=False)  # two partitions are equal when their hashes are
class Partition:
    """The samples of N clients, one client after another: client i owns `indices[offsets[i]:offsets[i + 1]]`.

    Two flat arrays, so that 100,000 tiny clients cost no more than ten large ones.
    """

    indices: np.ndarray  # (M,) int64, into the pool
    offsets: np.ndarray  # (N + 1,) int64, from 0 to M

    def __repr__(self) -> str:
        spread = f", {self.sizes.min():,} to {self.sizes.max():,} each" if len(self) else ""
        return f"Partition({len(self):,} clients, {len(self.indices):,} samples{spread})"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> np.ndarray:
        """The pool indices of one client: a view."""
        return self.indices[self.offsets[:-1][client] : self.offsets[1:][client]]

    @property
    def sizes(self) -> np.ndarray:
        """Samples of each client, (N,)."""
        return np.diff(self.offsets)

    @cached_property
    def hash(self) -> str:
        """A short fingerprint: equal for equal partitions, on every machine."""
        digest = hashlib.sha256()
        for array in (self.offsets, self.indices):
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def select(self, clients: ArrayLike) -> Partition:
        """The partition of these clients only, in this order; `clients` are ids or a mask (N,)."""
        chosen = np.arange(len(self))[np.asarray(clients)]
        offsets = _offsets(self.sizes[chosen])
        # client j's samples move from where they start here to offsets[j]
        moved = np.repeat(self.offsets[chosen] - offsets[:-1], np.diff(offsets))
        return Partition(self.indices[moved + np.arange(offsets[-1])], offsets)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as npz, in one rename: nobody ever reads half a file."""
        content = io.BytesIO()
        np.savez(content, indices=self.indices, offsets=self.offsets, hash=np.array(self.hash))
        write_bytes(Path(path), content.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Partition:
        """Read what `save` wrote; a missing file is a FileNotFoundError, a damaged one an InputError."""
        path = Path(path)
        fix = "delete the file, and the partition is drawn again from its seed"
        if not path.exists():
            raise FileNotFoundError(str(path))
        arrays = read_npz(path, str(path), fix)
        if arrays.keys() != {"indices", "offsets", "hash"}:
            raise InputError(str(path), "is not a partition file", fix=fix)
        found = cls(arrays["indices"], arrays["offsets"])
        if not found._is_whole() or found.hash != str(arrays["hash"]):
            raise InputError(str(path), "does not hold what was saved in it", fix=fix)
        return found

    def _is_whole(self) -> bool:
        """Whether the offsets cut the indices into clients, and no sample is dealt twice."""
        flat = all(array.ndim == 1 and array.dtype.kind in "iu" for array in (self.indices, self.offsets))
        if not flat or not len(self.offsets) or (self.indices < 0).any():
            return False
        ends = (self.offsets[0], self.offsets[-1]) == (0, len(self.indices))
        return bool(ends and (self.sizes >= 0).all() and len(np.unique(self.indices)) == len(self.indices))


def partition(
    kind: str,
    train: ArrayLike,
    labels: np.ndarray,
    *,
    clients: int | None,
    seed: int,
    owner: np.ndarray | None = None,
    **options: Any,
) -> Partition:
    """Deal the training samples to clients.

    Args:
        kind: one of `KINDS`.
        train: pool indices of the training samples, (m,).
        labels: the labels of the whole pool, (n, ...).
        clients: N; None means all owners (`natural`) or one (`pooled`).
        seed: the partition is a function of the seed and of the other arguments, and of nothing else.
        owner: the natural owner of every sample of the pool, (n,), or None.
        options: of that kind, such as `beta` and `min_size`; dotted `partition.*` in a study.

    >>> partition("iid", [4, 5, 6, 7], np.arange(8), clients=2, seed=0).sizes
    array([2, 2])
    """
    if kind not in KINDS:
        raise unknown("partition.kind", kind, KINDS)
    deal = KINDS[kind]
    known = [p.name for p in inspect.signature(deal).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in sorted(options.keys() - known):
        fix = unknown("", name, known).fix if known else "remove it"
        raise InputError(f"partition.{name}", f"is not an option of {kind!r}", options[name], fix)
    if deal is natural and owner is None:
        fix = "use 'iid' or 'dirichlet', or give every sample its `owner`"
        raise InputError("partition.kind", "needs a data set whose samples have owners", kind, fix)

    train = np.asarray(train, dtype=np.int64)
    if not len(train):
        raise InputError("partition", "has no training samples to deal", fix="check the data set's split")
    traits = owner if deal is natural else labels
    dealt = deal(np.asarray(traits)[train], clients, stream(seed, "partition"), **options)
    return Partition(train[dealt.indices], dealt.offsets)


def iid(labels: np.ndarray, clients: int | None, rng: np.random.Generator) -> Partition:
    """A random permutation cut into equal parts (sizes differ by one at most)."""
    n = _clients(clients, len(labels))
    share, extra = divmod(len(labels), n)
    return Partition(rng.permutation(len(labels)), _offsets(share + (np.arange(n) < extra)))


def dirichlet(
    labels: np.ndarray,
    clients: int | None,
    rng: np.random.Generator,
    *,
    beta: float = 0.5,
    min_size: int = 10,
) -> Partition:
    """Label skew as in NIID-Bench, MOON and FedSkip.

    Each class is divided by p ~ Dir(beta), but a client that already holds its fair share m/N gets
    nothing more; all is drawn anew until every client has `min_size` samples.

    References:
        Li, Diao, Chen, He: Federated Learning on Non-IID Data Silos, ICDE 2022.
    """
    return _dirichlet(_classes(labels), clients, rng, beta, min_size, balance=True)


def dirichlet_plain(
    labels: np.ndarray,
    clients: int | None,
    rng: np.random.Generator,
    *,
    beta: float = 0.5,
    min_size: int = 10,
) -> Partition:
    """`dirichlet` without the fair-share rule: labels and sizes are both skewed."""
    return _dirichlet(_classes(labels), clients, rng, beta, min_size, balance=False)


def quantity(
    labels: np.ndarray,
    clients: int | None,
    rng: np.random.Generator,
    *,
    beta: float = 0.5,
    min_size: int = 10,
) -> Partition:
    """Quantity skew: sizes ~ m Dir(beta), labels IID."""
    one_class = np.zeros(len(labels), dtype=np.int64)
    return _dirichlet(one_class, clients, rng, beta, min_size, balance=False)


def shards(
    labels: np.ndarray, clients: int | None, rng: np.random.Generator, *, classes_per_client: int = 2
) -> Partition:
    """Every client holds exactly `classes_per_client` classes; the owners of a class share it equally.

    The classes have equally many owners, give or take one: clients take their hands from a shuffled
    deck of classes, k cards at a time and round and round, until a hand ends where the deck ends; then
    the deck is shuffled anew. So no hand holds a class twice.
    """
    classes = _classes(labels)
    class_sizes = np.bincount(classes)
    n, k = _clients(clients, len(labels)), _whole("partition.classes_per_client", classes_per_client)
    C = len(class_sizes)
    if k > C:
        raise InputError("partition.classes_per_client", f"must be <= {C}, the number of classes", k)
    if n * k < C:
        rule = f"x {n} clients leaves some of the {C} classes without an owner"
        fix = f"use {math.ceil(C / n)} or more, or more clients"
        raise InputError("partition.classes_per_client", rule, k, fix)

    hands = C // math.gcd(C, k)  # from one shuffle to the next
    decks = rng.permuted(np.tile(np.arange(C), (math.ceil(n / hands), 1)), axis=1)
    chosen = decks[:, np.arange(hands * k) % C].reshape(-1, k)[:n]  # (N, k)
    held = np.zeros((C, n), dtype=bool)
    held[chosen.T, np.arange(n)] = True
    owners = held.sum(axis=1)
    if (owners > class_sizes).any():
        rarest = int(np.argmax(owners - class_sizes))
        rule = f"x {n} clients gives a class of {class_sizes[rarest]} samples {owners[rarest]} owners"
        raise InputError("partition.classes_per_client", rule, k, "use a smaller number or fewer clients")

    share, extra = np.divmod(class_sizes, owners)
    rank = held.cumsum(axis=1)  # (C, N): an owner's place among the owners of the class, from 1
    return _deal(classes, held * (share[:, None] + (rank <= extra[:, None])), rng)


def natural(owner: np.ndarray, clients: int | None, rng: np.random.Generator) -> Partition:
    """One client per owner, in the order of their ids; with `clients`, that many owners at random."""
    _, client = np.unique(owner, return_inverse=True)
    everyone = _gather(client, np.arange(len(owner)))
    if clients is None:
        return everyone
    if _whole("clients", clients) > len(everyone):
        fix = "leave it out to use all of them"
        raise InputError("clients", f"must be <= {len(everyone)}, the number of owners", clients, fix)
    return everyone.select(np.sort(rng.permutation(len(everyone))[:clients]))


def pooled(labels: np.ndarray, clients: int | None, rng: np.random.Generator) -> Partition:
    """One client with all the data: centralised training, the upper bound."""
    if clients not in (None, 1):
        raise InputError("clients", "must be 1 when partition.kind is 'pooled'", clients, "leave it out")
    return Partition(np.arange(len(labels)), _offsets(np.array([len(labels)])))


KINDS: dict[str, Callable[..., Partition]] = {
    kind.__name__: kind for kind in (iid, dirichlet, dirichlet_plain, shards, quantity, natural, pooled)
}


def _dirichlet(
    classes: np.ndarray,
    clients: int | None,
    rng: np.random.Generator,
    beta: float,
    min_size: int,
    balance: bool,
) -> Partition:
    """Divide each class by its own p ~ Dir(beta), until all clients have `min_size` samples."""
    n, least = _clients(clients, len(classes)), _whole("partition.min_size", min_size)
    if not isinstance(beta, Real) or not 0 < beta < math.inf:
        fix = "use 0.5 as the paper does, or partition.kind=iid for no skew"
        raise InputError("partition.beta", "must be a number > 0", beta, fix)
    if least * n > len(classes):
        rule = f"x {n} clients must be <= {len(classes)}, the number of training samples"
        fix = f"use {len(classes) // n} or less, or fewer clients"
        raise InputError("partition.min_size", rule, least, fix)

    # Only the counts decide whether a draw will do, so the samples are shuffled and dealt just once.
    class_sizes = np.bincount(classes)
    for _ in range(TRIES):
        counts = _dirichlet_counts(class_sizes, n, rng, float(beta), balance)
        if counts.sum(axis=0).min() >= least:
            return _deal(classes, counts, rng)
    rule = f"left one of {n} clients with < {least} samples in each of {TRIES} draws"
    fix = "use a larger beta, fewer clients or a smaller partition.min_size"
    raise InputError("partition.beta", rule, beta, fix)


def _dirichlet_counts(
    class_sizes: np.ndarray, n: int, rng: np.random.Generator, beta: float, balance: bool
) -> np.ndarray:
    """How many samples of each class each client gets, (C, N); all zero if the draw is unusable."""
    counts = np.zeros((len(class_sizes), n), dtype=np.int64)
    held, fair = np.zeros(n, dtype=np.int64), class_sizes.sum() / n
    shares = rng.dirichlet(np.full(n, beta), size=len(class_sizes))  # (C, N)
    for c, (p, size) in enumerate(zip(shares, class_sizes, strict=True)):
        if balance:
            p = p * (held < fair)
        if not p.sum() > 0:  # a tiny beta puts all its weight on clients that are full
            return np.zeros_like(counts)
        cuts = np.floor(np.cumsum(p / p.sum())[:-1] * size)
        counts[c] = np.diff(cuts, prepend=0, append=size)
        held += counts[c]
    return counts


def _deal(classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Partition:
    """Deal the samples (m,) at random such that client j gets counts[c, j] (C, N) of class c."""
    order = rng.permutation(len(classes))
    by_class = order[np.argsort(classes[order], kind="stable")]
    client = np.empty_like(classes)
    client[by_class] = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())
    return _gather(client, rng.permutation(len(classes)))


def _gather(client: np.ndarray, order: np.ndarray) -> Partition:
    """List the samples client by client, those of one client in the given order. client (m,), order (m,)."""
    return Partition(order[np.argsort(client[order], kind="stable")], _offsets(np.bincount(client)))


def _offsets(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def _classes(labels: np.ndarray) -> np.ndarray:
    """Class ids 0..C-1 without gaps, (m,): a class that the training samples lack is no class."""
    if labels.ndim != 1 or labels.dtype.kind not in "biu":
        rule = f"needs one class per sample, but the labels are {labels.dtype} of shape {labels.shape}"
        raise InputError("partition.kind", rule, fix="use 'iid', 'quantity' or 'natural'")
    return np.unique(labels, return_inverse=True)[1]


def _clients(clients: int | None, samples: int) -> int:
    if clients is None:
        fix = "the paper uses 10, 50 and 100"
        raise InputError("clients", "must be given for this partition.kind", fix=fix)
    if _whole("clients", clients) > samples:
        raise InputError("clients", f"must be <= {samples}, the number of training samples", clients)
    return int(clients)


def _whole(field: str, value: Any) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(field, "must be a whole number >= 1", value)
    return int(value)
