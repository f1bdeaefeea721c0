"""What passes between server and clients: orders and replies as Flower's records, and which replies count.

    to a client    model {x}, sent {...}, visit {run, round, accepted, key, omega, layout, job}
    back           model {y}, upload {...}, visit {samples, steps, a, loss}; no loss with privacy

The messages of a skip round and of a round after a merge have the same fields. None of them tells whose model
it was, which slot it is, or when slots merge. The key is opaque, and the seed never leaves the server.
Whoever reads a message refuses what is not as it should be. A reply that is refused leaves its slot's weights
and counts as they were. Both sides keep an audit log.
"""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedskip.config.setting import SHARES
from fedskip.errors import InputError, require
from fedskip.federation import Orders, Replies, Server
from fedskip.files import digest
from fedskip.flower.plan import PROTOCOL
from fedskip.methods.base import MODEL, State, Visit
from fedskip.version import __version__

AUDIT = "audit.jsonl"
ME = np.zeros(1, np.int64)  # a client knows of one client, itself

# --- training ------------------------------------------------------------------------------------


def train_order(orders: Orders, header: dict[str, Any]) -> RecordDict:
    """The order of one visit. Every message gets its own copy, so that clients share nothing."""
    visit = ConfigRecord({"round": orders.round, "key": int(orders.keys[0]), **header})
    model, sent = _arrays({"x": orders.x[0]}), _arrays(orders.sent)
    return RecordDict({"model": model, "sent": sent, "visit": visit})


def read_train_order(content: RecordDict) -> tuple[Orders, dict[str, Any]]:
    """The order that a client gets, and the header that came with it."""
    visit: dict[str, Any] = dict(_record(content, "visit", ConfigRecord))
    sent = tensors(_record(content, "sent", ArrayRecord))
    try:
        round, key = int(visit.pop("round")), int(visit.pop("key"))
    except (KeyError, ValueError) as error:
        raise InputError("a message", f"lacks {error}") from None
    return Orders(round, ME, ME, [key], _model(content, "x")[None], sent), visit


def train_reply(replies: Replies, *, private: bool) -> RecordDict:
    """The reply to one order. `private`: the sum of the losses, which has no noise, stays here."""
    visit: dict[str, Any] = {
        "samples": int(replies.samples[0]), "steps": int(replies.steps[0]), "a": float(replies.a[0])
    }  # fmt: skip
    visit |= {} if private else {"loss": float(replies.loss[0])}
    model = _arrays({"y": replies.y[0]})
    upload = _arrays({name: rows[0] for name, rows in replies.upload.items()})
    return RecordDict({"model": model, "upload": upload, "visit": MetricRecord(visit)})


def read_train_reply(content: RecordDict, like: Tensor, *, private: bool) -> Replies:
    """What a client says it did, one row; `screen` decides whether to believe it.

    `private`: it says nothing of its loss, which is 0 then.
    """
    visit = _record(content, "visit", MetricRecord)
    samples, steps, a = _floats(visit, "samples", "steps", "a")
    [loss] = [0.0] if private else _floats(visit, "loss")
    upload = tensors(_record(content, "upload", ArrayRecord))
    return Replies(
        _model(content, "y")[None], {name: row[None] for name, row in upload.items()},
        np.array([samples]), np.array([steps]), np.array([a]), like.new_tensor([loss]),
    )  # fmt: skip


# --- evaluation ----------------------------------------------------------------------------------


def evaluation_order(x: Tensor, header: dict[str, Any]) -> RecordDict:
    return RecordDict({"model": _arrays({"x": x}), "visit": ConfigRecord(header)})


def read_evaluation_order(content: RecordDict) -> tuple[Tensor, dict[str, Any]]:
    return _model(content, "x"), dict(_record(content, "visit", ConfigRecord))


def evaluation_reply(scores: dict[str, float | int]) -> RecordDict:
    return RecordDict({"scores": MetricRecord(scores)})  # type: ignore[arg-type]


def read_evaluation_reply(content: RecordDict, tests: int, metric: object) -> dict[str, float]:
    """What a client has measured; refuses what it cannot have measured on its test samples."""
    names = ("metric", "loss", "samples")
    score = dict(zip(names, _floats(_record(content, "scores", MetricRecord), *names), strict=True))
    require("a test", all(map(math.isfinite, score.values())), "must be finite", score)
    rule = f"must be of the {tests} samples that the client has said it has"
    require("a test", score["samples"] == tests, rule, score["samples"])
    share = metric not in SHARES or 0 <= score["metric"] <= tests
    require("a test", share, f"must lie between 0 and {tests}", score["metric"])
    return score


# --- introductions -------------------------------------------------------------------------------


def introduction(name: str, samples: int, tests: int) -> RecordDict:
    """What a client says of itself, once."""
    about: dict[str, Any] = {"name": name, "samples": samples, "tests": tests, "protocol": PROTOCOL}
    about |= {"fedskip": __version__, "torch": str(torch.__version__)}
    return RecordDict({"client": ConfigRecord(about)})


def read_introduction(content: RecordDict) -> dict[str, Any]:
    about = dict(_record(content, "client", ConfigRecord))
    for key, least in {"samples": 1, "tests": 0, "protocol": 0}.items():
        ok = isinstance(about.get(key), int) and about[key] >= least
        require("an introduction", ok, f"must have {key} >= {least}", about.get(key))
    for key in ("name", "fedskip", "torch"):
        require("an introduction", isinstance(about.get(key), str), f"must have {key!r}")
    return about


# --- records -------------------------------------------------------------------------------------


def _record(content: RecordDict, name: str, kind: type) -> Any:
    record = content.get(name)
    require("a message", isinstance(record, kind), f"must hold {name!r}", type(record).__name__)
    return record


def _floats(record: Any, *names: str) -> list[float]:
    try:
        return [float(record[name]) for name in names]
    except (KeyError, TypeError) as error:
        raise InputError("a reply", f"lacks {error}") from None


def _model(content: RecordDict, name: str) -> Tensor:
    model = tensors(_record(content, "model", ArrayRecord)).get(name)
    if model is None or model.dim() != 1:
        raise InputError("a message", "must hold a model")
    return model


def _arrays(state: State) -> ArrayRecord:
    arrays = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    return ArrayRecord({name: Array(array.numpy()) for name, array in arrays.items()})


def tensors(record: ArrayRecord) -> State:
    """Arrays as tensors; refuses what holds no numbers, and never unpickles."""
    state = {}
    for name, array in record.items():
        try:
            state[str(name)] = torch.from_numpy(_numbers(array.data))
        except Exception as error:  # whatever numpy raises on bytes that anybody may have sent
            rule = f"cannot be read ({error})"
            raise InputError(f"the array {name!r} of a message", rule) from None
    return state


def _numbers(data: bytes) -> np.ndarray:
    """What numpy has saved, if it is numbers of 32 or 64 bits, as many as there are bytes for."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"version {version}")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype not in (np.float32, np.float64) or (by_columns and len(shape) > 1):
        raise ValueError("it must hold rows of numbers of 32 or 64 bits")
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError(f"its {len(data):,} bytes do not hold the shape {shape}")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape).copy()


# --- which replies count -------------------------------------------------------------------------


def screen(
    server: Server,
    orders: Orders,
    replies: Mapping[int, Replies],
    sizes: Mapping[int, int],
    limit: float,
) -> dict[int, str]:
    """The replies that are refused, and why, by row of the orders.

    `sizes`: how many samples each of these clients has said it has. `limit`: an update above this multiple of
    the round's median is refused; 0: none is.
    """
    expected, refused = _expected_upload(server, orders.sent), {}
    for k, reply in replies.items():
        why = _fault(orders.x[k : k + 1], reply, sizes[k])
        if not why and _signature(reply.upload) != expected:
            why = "brings something else than the method asks for"
        if why:
            refused[k] = why
    valid = {k: reply for k, reply in replies.items() if k not in refused}
    if valid and limit:
        refused |= _outliers(orders, valid, server.layout.trainable, limit)
    return refused


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


def _signature(upload: State) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((name, tuple(rows.shape)) for name, rows in upload.items())


def _expected_upload(server: Server, sent: State) -> list[tuple[str, tuple[int, ...]]]:
    """The names and shapes of what a visit that left the model unchanged would bring beside it."""
    x, method = server.x[None], server.method
    here = x[:, : server.layout.trainable]
    memory = {
        name: x if kind == MODEL else torch.zeros_like(here)
        for name, kind in method.remembers.items()
    }
    visit = Visit(here, [1.0], [1], [1.0], [True])
    return _signature(method.end(here, here, memory, sent, visit)[1])


def _outliers(
    orders: Orders, replies: Mapping[int, Replies], trainable: int, limit: float
) -> dict[int, str]:
    """Updates of the model, or uploads, that are far larger than is usual in this round."""
    moved = {k: reply.y[0] - orders.x[k] for k, reply in replies.items()}
    parts = {"the model": {k: d[:trainable] for k, d in moved.items()}}
    if orders.x.shape[1] > trainable:
        parts["the buffers"] = {k: d[trainable:] for k, d in moved.items()}
    for k, reply in replies.items():
        for name, row in reply.upload.items():
            parts.setdefault(name, {})[k] = row[0]
    refused = {}
    for name, vectors in parts.items():
        norms = torch.stack([vector.double().norm() for vector in vectors.values()])
        median = float(norms.quantile(0.5))
        for k, norm in zip(vectors, norms.tolist(), strict=True):
            if median > 0 and norm > limit * median:
                often = f"more than {limit:g} times the median of {median:.3g}"
                refused[k] = f"moves {name} by {norm:.3g}, {often}"
    return refused


# --- the audit log -------------------------------------------------------------------------------


class AuditLog:
    """The messages of one side, a line of JSON for each; nothing is ever removed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, direction: str, message: Message, **facts: Any) -> None:
        """Note a message that was "sent" or "received"; `facts`: what else to say of it."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"time": now, "way": direction, "kind": message.metadata.message_type, **facts}
        if message.has_error():
            line["error"] = message.error.code
        elif message.has_content():
            line["bytes"], line["digest"] = measure(message.content)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def measure(content: RecordDict) -> tuple[int, str]:
    """Bytes of what a message carries, and a digest of it: the same at both ends."""
    size, parts = 0, []
    for name, record in sorted(content.items()):
        if isinstance(record, ArrayRecord):
            for key, array in sorted(record.items()):
                size += len(array.data)
                shape = tuple(array.shape)
                parts.append(f"{name}/{key} {array.dtype} {shape} {digest(array.data)}")
        else:
            text = f"{name} {sorted(record.items())}"
            size += len(text)
            parts.append(text)
    return size, digest("\n".join(parts).encode())
