"""Partitions: which client owns which training samples, and the ways to draw one.

Each `kind` of partition is a pure function of the samples' labels (for `natural`: their owners), the
number of clients and a random generator. It assigns the positions 0..m-1 of the training samples to
clients. `partition` makes the generator from the seed, and turns positions into indices of the pool.
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

from fedskip.data.archives import read_npz
from fedskip.errors import InputError, unknown
from fedskip.files import write_bytes
from fedskip.rng import stream

TRIES = 1000  # random draws before a partition is refused as impossible


@dataclass(frozen=True, eq=False)  # to compare two, compare their hashes
class Partition:
    """The samples of N clients, one client after another.

    Client i owns `indices[offsets[i]:offsets[i + 1]]`, which is `partition[i]`. With two flat arrays,
    100,000 tiny clients cost no more than ten large ones.
    """

    indices: np.ndarray  # (M,) int64, into the pool
    offsets: np.ndarray  # (N + 1,) int64, from 0 to M

    def __repr__(self) -> str:
        spread = f", {self.sizes.min():,} to {self.sizes.max():,} each" if len(self) else ""
        return f"Partition({len(self):,} clients, {len(self.indices):,} samples{spread})"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> np.ndarray:
        """The pool indices of one client, without a copy."""
        return self.indices[self.offsets[:-1][client] : self.offsets[1:][client]]

    @property
    def sizes(self) -> np.ndarray:
        """The number of samples of each client, (N,)."""
        return np.diff(self.offsets)

    @cached_property
    def hash(self) -> str:
        """A short digest: equal for equal partitions, on every machine."""
        digest = hashlib.sha256()
        for array in (self.offsets, self.indices):
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def select(self, clients: ArrayLike) -> Partition:
        """The partition of some clients, in this order; `clients` are numbers or a mask (N,)."""
        chosen = np.arange(len(self))[np.asarray(clients)]
        offsets = _offsets(self.sizes[chosen])
        # the samples of client j move from where they start here to offsets[j]
        moved = np.repeat(self.offsets[chosen] - offsets[:-1], np.diff(offsets))
        return Partition(self.indices[moved + np.arange(offsets[-1])], offsets)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an npz file, by one rename: nobody ever reads half a file."""
        content = io.BytesIO()
        np.savez(content, indices=self.indices, offsets=self.offsets, hash=np.array(self.hash))
        write_bytes(Path(path), content.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Partition:
        """Read a file of `save`. A missing file is a FileNotFoundError, a damaged one an InputError."""
        path = Path(path)
        fix = "delete the file, and the partition is drawn again from its seed"
        if not path.exists():
            raise FileNotFoundError(str(path))
        arrays = read_npz(path, str(path), fix)
        if arrays.keys() != {"indices", "offsets", "hash"}:
            raise InputError(str(path), "is not a partition file", fix=fix)
        loaded = cls(arrays["indices"], arrays["offsets"])
        if not loaded._is_whole() or loaded.hash != str(arrays["hash"]):
            raise InputError(str(path), "does not hold what was saved in it", fix=fix)
        return loaded

    def _is_whole(self) -> bool:
        """Whether the offsets cut the indices into clients, and no sample has two clients."""
        flat = all(
            array.ndim == 1 and array.dtype.kind in "iu" for array in (self.indices, self.offsets)
        )
        if not flat or not len(self.offsets) or (self.indices < 0).any():
            return False
        ends = (self.offsets[0], self.offsets[-1]) == (0, len(self.indices))
        return bool(
            ends and (self.sizes >= 0).all() and len(np.unique(self.indices)) == len(self.indices)
        )


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
    """Assign training samples to clients.

    The same arguments give the same partition, on every machine.

    Args:
        kind: one of `KINDS`.
        train: pool indices of the training samples, (m,).
        labels: the labels of the whole pool, (n, ...).
        clients: their number N. None means all owners for `natural`, and one for `pooled`.
        seed: of the random draws.
        owner: the natural owner of every sample of the pool, (n,), or None.
        options: of that kind, such as `beta` and `min_size`; `partition.*` in a study.

    Returns:
        The clients' indices into the pool.

    >>> partition("iid", [4, 5, 6, 7], np.arange(8), clients=2, seed=0).sizes
    array([2, 2])
    """
    if kind not in KINDS:
        raise unknown("partition.kind", kind, KINDS)
    draw = KINDS[kind]
    options_of_kind = [
        p.name for p in inspect.signature(draw).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    for name in sorted(options.keys() - options_of_kind):
        fix = unknown("", name, options_of_kind).fix if options_of_kind else "remove it"
        raise InputError(f"partition.{name}", f"is not an option of {kind!r}", options[name], fix)
    if draw is natural and owner is None:
        fix = "use 'iid' or 'dirichlet', or give every sample its `owner`"
        raise InputError("partition.kind", "needs a data set whose samples have owners", kind, fix)

    train = np.asarray(train, dtype=np.int64)
    if not len(train):
        fix = "check the data set's split"
        raise InputError("partition", "has no training samples to assign", fix=fix)
    traits = np.asarray(owner if draw is natural else labels)[train]
    drawn = draw(traits, clients, stream(seed, "partition"), **options)
    return Partition(train[drawn.indices], drawn.offsets)


def iid(labels: np.ndarray, clients: int | None, rng: np.random.Generator) -> Partition:
    """A random permutation, cut into equal parts; sizes differ by one at most."""
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
    nothing more. The draw is repeated until every client has `min_size` samples.

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
    """`dirichlet` without the fair-share rule: both labels and sizes are skewed."""
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
    labels: np.ndarray,
    clients: int | None,
    rng: np.random.Generator,
    *,
    classes_per_client: int = 2,
) -> Partition:
    """Every client holds exactly `classes_per_client` classes; the owners of a class share it equally.

    All classes have equally many owners, give or take one. Clients take hands of k classes from a
    shuffled deck of all classes, which is used in a circle until a hand ends where the deck ends; then
    it is shuffled again. So no hand holds a class twice.
    """
    classes = _classes(labels)
    class_sizes = np.bincount(classes)
    n, k = (
        _clients(clients, len(labels)),
        _whole("partition.classes_per_client", classes_per_client),
    )
    C = len(class_sizes)
    if k > C:
        raise InputError(
            "partition.classes_per_client", f"must be <= {C}, the number of classes", k
        )
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
        rule = (
            f"x {n} clients gives a class of {class_sizes[rarest]} samples {owners[rarest]} owners"
        )
        raise InputError(
            "partition.classes_per_client", rule, k, "use a smaller number or fewer clients"
        )

    share, extra = np.divmod(class_sizes, owners)
    rank = held.cumsum(axis=1)  # (C, N): an owner's place among the owners of the class, from 1
    return _assign(classes, held * (share[:, None] + (rank <= extra[:, None])), rng)


def natural(owner: np.ndarray, clients: int | None, rng: np.random.Generator) -> Partition:
    """One client per owner, in the order of their numbers; `clients` of them at random if given."""
    _, client = np.unique(owner, return_inverse=True)
    everyone = _gather(client, np.arange(len(owner)))
    if clients is None:
        return everyone
    if _whole("clients", clients) > len(everyone):
        fix = "leave it out to use all of them"
        rule = f"must be <= {len(everyone)}, the number of owners"
        raise InputError("clients", rule, clients, fix)
    return everyone.select(np.sort(rng.permutation(len(everyone))[:clients]))


def pooled(labels: np.ndarray, clients: int | None, rng: np.random.Generator) -> Partition:
    """One client with all samples: centralised training, the upper bound."""
    if clients not in (None, 1):
        rule = "must be 1 when partition.kind is 'pooled'"
        raise InputError("clients", rule, clients, "leave it out")
    return Partition(np.arange(len(labels)), _offsets(np.array([len(labels)])))


KINDS: dict[str, Callable[..., Partition]] = {
    kind.__name__: kind
    for kind in (iid, dirichlet, dirichlet_plain, shards, quantity, natural, pooled)
}


def _dirichlet(
    classes: np.ndarray,
    clients: int | None,
    rng: np.random.Generator,
    beta: float,
    min_size: int,
    balance: bool,
) -> Partition:
    """Divide each class by its own p ~ Dir(beta); repeat until all clients have `min_size` samples."""
    n, least = _clients(clients, len(classes)), _whole("partition.min_size", min_size)
    if not isinstance(beta, Real) or not 0 < beta < math.inf:
        fix = "use 0.5 as the paper does, or partition.kind=iid for no skew"
        raise InputError("partition.beta", "must be a number > 0", beta, fix)
    if least * n > len(classes):
        rule = f"x {n} clients must be <= {len(classes)}, the number of training samples"
        fix = f"use {len(classes) // n} or less, or fewer clients"
        raise InputError("partition.min_size", rule, least, fix)

    # only the counts decide whether a draw will do, so samples are assigned once, at the end
    class_sizes = np.bincount(classes)
    for _ in range(TRIES):
        counts = _dirichlet_counts(class_sizes, n, rng, float(beta), balance)
        if counts.sum(axis=0).min() >= least:
            return _assign(classes, counts, rng)
    rule = f"left one of {n} clients with < {least} samples in each of {TRIES} draws"
    fix = "use a larger beta, fewer clients or a smaller partition.min_size"
    raise InputError("partition.beta", rule, beta, fix)


def _dirichlet_counts(
    class_sizes: np.ndarray, n: int, rng: np.random.Generator, beta: float, balance: bool
) -> np.ndarray:
    """How many samples of each class each client gets, (C, N); all zero if the draw failed."""
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


def _assign(classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Partition:
    """Assign samples at random so that client j gets counts[c, j] of class c; classes (m,), counts (C, N)."""
    order = rng.permutation(len(classes))
    by_class = order[np.argsort(classes[order], kind="stable")]
    client = np.empty_like(classes)
    client[by_class] = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())
    return _gather(client, rng.permutation(len(classes)))


def _gather(client: np.ndarray, order: np.ndarray) -> Partition:
    """The samples client by client, those of one client in the given order; client (m,), order (m,)."""
    return Partition(order[np.argsort(client[order], kind="stable")], _offsets(np.bincount(client)))


def _offsets(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def _classes(labels: np.ndarray) -> np.ndarray:
    """Class numbers 0..C-1 without gaps, (m,); classes without training samples do not count."""
    if labels.ndim != 1 or labels.dtype.kind not in "biu":
        rule = (
            f"needs one class per sample, but the labels are {labels.dtype} of shape {labels.shape}"
        )
        raise InputError("partition.kind", rule, fix="use 'iid', 'quantity' or 'natural'")
    return np.unique(labels, return_inverse=True)[1]


def _clients(clients: int | None, samples: int) -> int:
    if clients is None:
        fix = "the paper uses 10, 50 and 100"
        raise InputError("clients", "must be given for this partition.kind", fix=fix)
    if _whole("clients", clients) > samples:
        rule = f"must be <= {samples}, the number of training samples"
        raise InputError("clients", rule, clients)
    return int(clients)


def _whole(field: str, value: Any) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(field, "must be a whole number >= 1", value)
    return int(value)
