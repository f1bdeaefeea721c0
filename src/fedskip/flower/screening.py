"""Which replies the server takes in. What it refuses leaves a slot's weights and counts as they were."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedskip.federation import Orders, Replies
from fedskip.input.errors import require
from fedskip.methods.base import MODEL, Method, State, Visit
from fedskip.spec.setting import SHARES

Signature = tuple[tuple[str, tuple[int, ...]], ...]
Refused = dict[int, str]  # by place among the orders: why


def screen(
    orders: Orders,
    replies: Mapping[int, Replies],
    sizes: Mapping[int, int],
    wanted: Signature,
    trainable: int,
    limit: float,
) -> Refused:
    """The replies that are not taken in, and why.

    Args:
        orders: what was sent, row by row.
        replies: what came back, one row each, by place among the orders.
        sizes: how many samples each of these sites has said it has.
        wanted: what replies bring along beside the model.
        trainable: how many numbers of a model are trained.
        limit: an update larger than so many times the median of the round is refused; 0: none is.
    """
    refused = {k: why for k, one in replies.items() if (why := _broken(orders, k, one, sizes[k]))}
    whole = {k: one for k, one in replies.items() if k not in refused}
    for k, one in whole.items():
        if signature(one.upload) != wanted:
            refused[k] = "brings something else along than the method does"
    whole = {k: one for k, one in whole.items() if k not in refused}
    return refused | (_outliers(orders, whole, trainable, limit) if limit else {})


def _broken(orders: Orders, k: int, reply: Replies, size: int) -> str:
    """What is wrong with a reply by itself, or nothing."""
    x = orders.x[k : k + 1]
    if reply.y.shape != x.shape or reply.y.dtype != x.dtype:
        found, wanted = (f"{tuple(t.shape[1:])} {t.dtype}" for t in (reply.y, x))
        return f"has a model of {found}, not of {wanted}"
    if any(t.dtype != x.dtype for t in reply.upload.values()):
        return "brings numbers of another kind along"
    if not all(bool(t.isfinite().all()) for t in (reply.y, reply.loss, *reply.upload.values())):
        return "is not finite"
    if not (1 <= reply.steps[0] < 1e12 and 0 < reply.a[0] < 1e12):
        return f"claims {reply.steps[0]:g} steps of weight {reply.a[0]:g}"
    if reply.samples[0] != size:
        return f"claims {reply.samples[0]:g} samples, and had said {size}"
    return ""


def signature(upload: State) -> Signature:
    """Names and shapes."""
    return tuple(sorted((name, tuple(rows.shape)) for name, rows in upload.items()))


def along(method: Method, x: Tensor, trainable: int, sent: State) -> Signature:
    """What a visit that x (P,) comes back from unchanged would bring along."""
    here = x[None, :trainable]
    memory = {
        name: x[None] if kind == MODEL else torch.zeros_like(here) for name, kind in method.remembers.items()
    }
    return signature(method.end(here, here, memory, sent, Visit(here, [1.0], [1], [1.0], [True]))[1])


def _outliers(orders: Orders, replies: Mapping[int, Replies], trainable: int, limit: float) -> Refused:
    """Updates, of the model or of what comes along, that are far larger than is usual in this round."""
    places = list(replies)
    lengths = {"the model": {k: replies[k].y[0, :trainable] - orders.x[k, :trainable] for k in places}}
    if orders.x.shape[1] > trainable:
        lengths["the buffers"] = {k: replies[k].y[0, trainable:] - orders.x[k, trainable:] for k in places}
    for k in places:
        for name, row in replies[k].upload.items():
            lengths.setdefault(name, {})[k] = row[0]
    refused: Refused = {}
    for name, rows in lengths.items():
        norms = torch.stack([rows[k].double().norm() for k in places]) if places else torch.zeros(0)
        median = float(norms.quantile(0.5)) if len(norms) else 0.0
        for k, norm in zip(places, norms.tolist(), strict=True):
            if median > 0 and norm > limit * median:
                refused[k] = (
                    f"moves {name} by {norm:.3g}, more than {limit:g} times the median of {median:.3g}"
                )
    return refused


def sane_score(score: Mapping[str, float], tests: int, metric: object) -> None:
    """Refuse what a site cannot have measured on its test samples."""
    require("a test", all(map(math.isfinite, score.values())), "must be finite", dict(score))
    rule = f"must be of the {tests} samples that the site has said it has"
    require("a test", score["samples"] == tests, rule, score["samples"])
    share = metric not in SHARES or 0 <= score["metric"] <= tests
    require("a test", share, f"must lie between 0 and {tests}", score["metric"])
