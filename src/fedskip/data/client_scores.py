"""The score of a model for each client.

Clients that own test samples are tested on these. Otherwise a client is tested on the pooled test set
with its own mix of classes: a test sample of class c weighs n_ic / (n_i m_c), where n_ic of the client's
n_i training samples and m_c of the test samples are of that class. This is the expected score on test
samples drawn by the client's mix of classes, but nothing is drawn. Classes without test samples are
left out of the mix.
"""

import math
from collections.abc import Iterable

import numpy as np

from fedskip.data.dataset import Dataset
from fedskip.data.division import Division
from fedskip.data.heatmap import class_counts
from fedskip.errors import InputError


def owns_tests(dataset: Dataset, division: Division) -> bool:
    """Whether test samples belong to natural clients."""
    return dataset.owner is not None and bool((dataset.owner[division.test] >= 0).any())


def refuse_unmixed(dataset: Dataset, divisions: Iterable[Division], mean: bool = True) -> None:
    """Refuse data sets and metrics for which the score of a client is not defined.

    `mean` says whether the metric is a mean over samples.
    """
    if all(owns_tests(dataset, division) for division in divisions):
        return
    if not mean:
        rule = (
            "cannot be had with this metric: it is no mean over samples, so classes cannot be mixed"
        )
        fix = "name the client of each sample, or put one such as accuracy first"
        raise InputError("client_accuracy", rule, True, fix)
    if dataset.classes is None:
        rule = f"is not defined for {dataset.name!r}, which has no classes and no test samples of clients"
        fix = "name the client of each sample, or leave it out: a client's share follows its mix of classes"
        raise InputError("client_accuracy", rule, True, fix)


def grouped(dataset: Dataset, division: Division) -> tuple[np.ndarray, np.ndarray]:
    """The samples to test on, as places in `division.test`, and the group of each, numbered from 0.

    A group is a client if clients own test samples, else a class.
    """
    if dataset.owner is not None and owns_tests(dataset, division):
        owner = dataset.owner[division.test]
        own = np.flatnonzero(owner >= 0)  # -1: it belongs to nobody
        return own, owner[own]
    labels = dataset.samples.labels()[division.test]
    return np.arange(len(labels)), labels.astype(np.int64)


def worst_decile(scores: Iterable[float], higher: bool = True) -> float | None:
    """The mean score of the worst tenth of the clients, rounded up; None without clients.

    >>> worst_decile([0.5, 0.25, 1.0]), worst_decile([0.5, 0.25, 1.0], higher=False)
    (0.25, 1.0)
    """
    worst = sorted(scores, reverse=not higher)
    return float(np.mean(worst[: math.ceil(len(worst) / 10)])) if worst else None


def by_client(dataset: Dataset, division: Division, scores: np.ndarray) -> dict[str | int, float]:
    """The score of each client, from the scores of the groups of `grouped`; NaN scores are left out."""
    if owns_tests(dataset, division):
        names = dataset.owner_names
        return {
            names[i] if names else i: float(score)
            for i, score in enumerate(scores)
            if np.isfinite(score)
        }
    counts = class_counts(
        division.clients, dataset.samples.labels(), dataset.classes or 0
    )  # (C, N)
    seen = np.flatnonzero(np.isfinite(scores))
    mix = counts[seen].astype(float)
    with np.errstate(invalid="ignore"):
        mean = (mix * scores[seen, None]).sum(0) / mix.sum(0)
    return {client: float(score) for client, score in enumerate(mean) if np.isfinite(score)}
