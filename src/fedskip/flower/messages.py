"""What passes between server and clients: orders and replies as Flower's records, and the audit log of them.

    to a client    model {x}, sent {...}, visit {run, round, accepted, key, omega, layout, job}
    back           model {y}, upload {...}, visit {samples, steps, a, loss}; no loss with privacy

The messages of a skip round and of a round after a merge have the same fields. None of them tells whose model
it was, which slot it is, or when slots merge. The key is opaque, and the seed never leaves the server.
Whoever reads a message refuses what is not as it should be.
"""

from __future__ import annotations

import io
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedskip.errors import InputError, require
from fedskip.federation import Orders, Replies
from fedskip.files import digest
from fedskip.flower.job_spec import PROTOCOL
from fedskip.methods.base import State
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
    """What a client says it did, one row; `screening` decides whether to believe it.

    `private`: it says nothing of its loss, which is 0 then.
    """
    visit: Any = _record(content, "visit", MetricRecord)
    upload = tensors(_record(content, "upload", ArrayRecord))
    try:
        samples, steps, a = (float(visit[name]) for name in ("samples", "steps", "a"))
        loss = 0.0 if private else float(visit["loss"])
    except (KeyError, TypeError) as error:
        raise InputError("a reply", f"lacks {error}") from None
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


def read_evaluation_reply(content: RecordDict) -> dict[str, float]:
    scores: Any = _record(content, "scores", MetricRecord)
    try:
        return {name: float(scores[name]) for name in ("metric", "loss", "samples")}
    except (KeyError, TypeError) as error:
        raise InputError("a reply", f"lacks {error}") from None


# --- introductions -------------------------------------------------------------------------------


def introduction(name: str, samples: int, tests: int) -> RecordDict:
    """What a client says of itself, once."""
    about: dict[str, Any] = {"name": name, "samples": samples, "tests": tests, "protocol": PROTOCOL}
    about |= {"fedskip": __version__, "torch": str(torch.__version__)}
    return RecordDict({"client": ConfigRecord(about)})


def read_introduction(content: RecordDict) -> dict[str, Any]:
    about = dict(_record(content, "client", ConfigRecord))
    kinds = dict.fromkeys(("name", "fedskip", "torch"), str)
    for key, kind in {**kinds, **dict.fromkeys(("samples", "tests", "protocol"), int)}.items():
        value = about.get(key)
        require("an introduction", isinstance(value, kind), f"must have {key!r}", value)
    for key, least in {"samples": 1, "tests": 0}.items():
        require("an introduction", about[key] >= least, f"must have {key} >= {least}", about[key])
    return about


# --- records -------------------------------------------------------------------------------------


def _record(content: RecordDict, name: str, kind: type) -> Any:
    record = content.get(name)
    require("a message", isinstance(record, kind), f"must hold {name!r}", type(record).__name__)
    return record


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


# --- the audit log -------------------------------------------------------------------------------


class AuditLog:
    """The messages of one side, a line of JSON for each; nothing is ever removed. None: no log."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def note(self, direction: str, message: Message, **facts: Any) -> None:
        """Note a message that was "sent" or "received"; `facts`: what else to say of it."""
        if self.path is None:
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"time": now, "way": direction, "kind": message.metadata.message_type, **facts}
        if message.has_error():
            line["error"] = message.error.code
        else:
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
