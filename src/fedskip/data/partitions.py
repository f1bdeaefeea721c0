"""Partitions: which client owns which training samples, and the ways to draw one.

Each `kind` of partition is a pure function of the samples' labels (for `natural`: their owners), the
number of clients and a random generator. It assigns the positions 0..m-1 of the training samples to
clients. `partition` makes the generator from the seed, and turns positions into indices of the pool.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from fedskip.data.archives import read_npz
from fedskip.errors import InputError, require, unknown
from fedskip.files import write_bytes
from fedskip.parsing import Above, Count, fit, fit_options
from fedskip.rng import stream

TRIES = 1000  # random draws before a partition is refused as impossible
Beta = Annotated[float, Above(0, "use 0.5 as the paper does, or partition.kind=iid for no skew")]


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
        indices, offsets = arrays["indices"], arrays["offsets"]
        is_whole = (
            all(array.ndim == 1 and array.dtype.kind in "iu" for array in (indices, offsets))
            and len(offsets) > 0 and (offsets[0], offsets[-1]) == (0, len(indices))
            and (np.diff(offsets) >= 0).all() and (indices >= 0).all()
            and len(np.unique(indices)) == len(indices)  # no sample has two clients
        )  # fmt: skip
        loaded = cls(indices, offsets)
        if not is_whole or loaded.hash != str(arrays["hash"]):
            raise InputError(str(path), "does not hold what was saved in it", fix=fix)
        return loaded


def class_counts(partition: Partition, labels: np.ndarray, classes: int) -> np.ndarray:
    """How many samples of each class each client has, (C, N); `labels` (n,) of the whole pool."""
    client = np.repeat(np.arange(len(partition)), partition.sizes)
    cell = labels[partition.indices].astype(np.int64) * len(partition) + client
    return np.bincount(cell, minlength=classes * len(partition)).reshape(classes, len(partition))


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
    options = fit_options("partition", draw, options, kind)
    clients = fit("clients", clients, Count | None)
    if draw is natural and owner is None:
        fix = "use 'iid' or 'dirichlet', or give every sample its `owner`"
        raise InputError("partition.kind", "needs a data set whose samples have owners", kind, fix)

    train = np.asarray(train, dtype=np.int64)
    fix = "check the data set's split"
    require("partition", len(train) > 0, "has no training samples to assign", fix=fix)
    traits = np.asarray(owner if draw is natural else labels)[train]
    drawn = draw(traits, clients, stream(seed, "partition"), **options)
    return Partition(train[drawn.indices], drawn.offsets)


def iid(labels: np.ndarray, clients: int | None, rng: np.random.Generator) -> Partition:
    """A random permutation, cut into equal parts; sizes differ by one at most."""
    n = _number_of_clients(clients, len(labels))
    share, extra = divmod(len(labels), n)
    return Partition(rng.permutation(len(labels)), _offsets(share + (np.arange(n) < extra)))


def dirichlet(
    labels: np.ndarray,
    clients: int | None,
    rng: np.random.Generator,
    *,
    beta: Beta = 0.5,
    min_size: Count = 10,
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
    beta: Beta = 0.5,
    min_size: Count = 10,
) -> Partition:
    """`dirichlet` without the fair-share rule: both labels and sizes are skewed."""
    return _dirichlet(_classes(labels), clients, rng, beta, min_size, balance=False)


def quantity(
    labels: np.ndarray,
    clients: int | None,
    rng: np.random.Generator,
    *,
    beta: Beta = 0.5,
    min_size: Count = 10,
) -> Partition:
    """Quantity skew: sizes ~ m Dir(beta), labels IID."""
    one_class = np.zeros(len(labels), dtype=np.int64)
    return _dirichlet(one_class, clients, rng, beta, min_size, balance=False)


def shards(
    labels: np.ndarray,
    clients: int | None,
    rng: np.random.Generator,
    *,
    classes_per_client: Count = 2,
) -> Partition:
    """Every client holds exactly `classes_per_client` classes; the owners of a class share it equally.

    All classes have equally many owners, give or take one. Clients take hands of k classes from a
    shuffled deck of all classes, which is used in a circle until a hand ends where the deck ends; then
    it is shuffled again. So no hand holds a class twice.
    """
    field, n, k = (
        "partition.classes_per_client",
        _number_of_clients(clients, len(labels)),
        classes_per_client,
    )
    classes = _classes(labels)
    class_sizes = np.bincount(classes)
    C = len(class_sizes)
    require(field, k <= C, f"must be <= {C}, the number of classes", k)
    rule = f"x {n} clients leaves some of the {C} classes without an owner"
    require(field, n * k >= C, rule, k, f"use {math.ceil(C / n)} or more, or more clients")

    hands = C // math.gcd(C, k)  # from one shuffle to the next
    decks = rng.permuted(np.tile(np.arange(C), (math.ceil(n / hands), 1)), axis=1)
    chosen = decks[:, np.arange(hands * k) % C].reshape(-1, k)[:n]  # (N, k)
    held = np.zeros((C, n), dtype=bool)
    held[chosen.T, np.arange(n)] = True
    owners = held.sum(axis=1)
    rarest = int(np.argmax(owners - class_sizes))
    rule = f"x {n} clients gives a class of {class_sizes[rarest]} samples {owners[rarest]} owners"
    fix = "use a smaller number or fewer clients"
    require(field, owners[rarest] <= class_sizes[rarest], rule, k, fix)

    share, extra = np.divmod(class_sizes, owners)
    rank = held.cumsum(axis=1)  # (C, N): an owner's place among the owners of the class, from 1
    return _assign(classes, held * (share[:, None] + (rank <= extra[:, None])), rng)


def natural(owner: np.ndarray, clients: int | None, rng: np.random.Generator) -> Partition:
    """One client per owner, in the order of their numbers; `clients` of them at random if given."""
    _, client = np.unique(owner, return_inverse=True)
    everyone = _gather(client, np.arange(len(owner)))
    if clients is None:
        return everyone
    rule = f"must be <= {len(everyone)}, the number of owners"
    require("clients", clients <= len(everyone), rule, clients, "leave it out to use all of them")
    return everyone.select(np.sort(rng.permutation(len(everyone))[:clients]))


def pooled(labels: np.ndarray, clients: int | None, rng: np.random.Generator) -> Partition:
    """One client with all samples: centralised training, the upper bound."""
    rule = "must be 1 when partition.kind is 'pooled'"
    require("clients", clients in (None, 1), rule, clients, "leave it out")
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
    n = _number_of_clients(clients, len(classes))
    rule = f"x {n} clients must be <= {len(classes)}, the number of training samples"
    fix = f"use {len(classes) // n} or less, or fewer clients"
    require("partition.min_size", min_size * n <= len(classes), rule, min_size, fix)

    # only the counts decide whether a draw will do, so samples are assigned once, at the end
    class_sizes = np.bincount(classes)
    for _ in range(TRIES):
        counts = _dirichlet_counts(class_sizes, n, rng, beta, balance)
        if counts.sum(axis=0).min() >= min_size:
            return _assign(classes, counts, rng)
    rule = f"left one of {n} clients with < {min_size} samples in each of {TRIES} draws"
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
    rule = f"needs one class per sample, but the labels are {labels.dtype} of shape {labels.shape}"
    one_class = labels.ndim == 1 and labels.dtype.kind in "biu"
    require("partition.kind", one_class, rule, fix="use 'iid', 'quantity' or 'natural'")
    return np.unique(labels, return_inverse=True)[1]


def _number_of_clients(clients: int | None, samples: int) -> int:
    """The number of clients, which these kinds need."""
    if clients is None:
        fix = "the paper uses 10, 50 and 100"
        raise InputError("clients", "must be given for this partition.kind", fix=fix)
    rule = f"must be <= {samples}, the number of training samples"
    require("clients", clients <= samples, rule, clients)
    return clients
