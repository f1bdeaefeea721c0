"""Decides which replies the server takes in. A refused one leaves its slot's weights and counts as they were."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedskip.config.setting import SHARES
from fedskip.errors import require
from fedskip.federation import Orders, Replies
from fedskip.methods.base import MODEL, Method, State, Visit

Signature = tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes of tensors
Refused = dict[int, str]  # by row of the orders: why


def screen(
    orders: Orders,
    replies: Mapping[int, Replies],
    sizes: Mapping[int, int],
    expected: Signature,
    trainable: int,
    limit: float,
) -> Refused:
    """The replies that are refused, and why.

    Args:
        orders: what was sent, row by row.
        replies: what came back, one row each, by row of the orders.
        sizes: how many samples each of these clients has said it has.
        expected: what replies bring beside the model.
        trainable: how many numbers of a model are trained.
        limit: an update above this multiple of the round's median is refused; 0: none is.
    """
    refused = {}
    for k, reply in replies.items():
        why = _fault(orders.x[k : k + 1], reply, sizes[k])
        if not why and signature(reply.upload) != expected:
            why = "brings something else than the method asks for"
        if why:
            refused[k] = why
    valid = {k: reply for k, reply in replies.items() if k not in refused}
    return refused | (_outliers(orders, valid, trainable, limit) if limit else {})


def _fault(x: Tensor, reply: Replies, size: int) -> str:
    """What is wrong with a single reply to a model x (1, P), or nothing."""
    if reply.y.shape != x.shape or reply.y.dtype != x.dtype:
        got, sent = (f"{tuple(t.shape[1:])} {t.dtype}" for t in (reply.y, x))
        return f"has a model of {got}, not of {sent}"
    if any(t.dtype != x.dtype for t in reply.upload.values()):
        return "brings numbers of another type"
    if not all(bool(t.isfinite().all()) for t in (reply.y, reply.loss, *reply.upload.values())):
        return "is not finite"
    if not (1 <= reply.steps[0] < 1e12 and 0 < reply.a[0] < 1e12):
        return f"claims {reply.steps[0]:g} steps of weight {reply.a[0]:g}"
    if reply.samples[0] != size:
        return f"claims {reply.samples[0]:g} samples, and had said {size}"
    return ""


def signature(upload: State) -> Signature:
    return tuple(sorted((name, tuple(rows.shape)) for name, rows in upload.items()))


def expected_upload(method: Method, x: Tensor, trainable: int, sent: State) -> Signature:
    """What a visit that left x (P,) unchanged would bring beside the model."""
    here = x[None, :trainable]
    memory = {
        name: x[None] if kind == MODEL else torch.zeros_like(here)
        for name, kind in method.remembers.items()
    }
    visit = Visit(here, [1.0], [1], [1.0], [True])
    _, upload = method.end(here, here, memory, sent, visit)
    return signature(upload)


def _outliers(
    orders: Orders, replies: Mapping[int, Replies], trainable: int, limit: float
) -> Refused:
    """Updates of the model, or uploads, that are far larger than is usual in this round."""
    if not replies:
        return {}
    moved = {k: reply.y[0] - orders.x[k] for k, reply in replies.items()}
    parts = {"the model": {k: d[:trainable] for k, d in moved.items()}}
    if orders.x.shape[1] > trainable:
        parts["the buffers"] = {k: d[trainable:] for k, d in moved.items()}
    for k, reply in replies.items():
        for name, row in reply.upload.items():
            parts.setdefault(name, {})[k] = row[0]
    refused: Refused = {}
    for name, vectors in parts.items():
        norms = torch.stack([vector.double().norm() for vector in vectors.values()])
        median = float(norms.quantile(0.5))
        for k, norm in zip(vectors, norms.tolist(), strict=True):
            if median > 0 and norm > limit * median:
                often = f"more than {limit:g} times the median of {median:.3g}"
                refused[k] = f"moves {name} by {norm:.3g}, {often}"
    return refused


def refuse_false_score(score: Mapping[str, float], tests: int, metric: object) -> None:
    """Refuse what a client cannot have measured on its test samples."""
    require("a test", all(map(math.isfinite, score.values())), "must be finite", dict(score))
    rule = f"must be of the {tests} samples that the client has said it has"
    require("a test", score["samples"] == tests, rule, score["samples"])
    share = metric not in SHARES or 0 <= score["metric"] <= tests
    require("a test", share, f"must lie between 0 and {tests}", score["metric"])
