"""Orders and replies as Flower's records, one row each. This is all that passes between server and sites.

    to a site      model {x}, sent {...}, visit {run, round, accepted, key, omega, layout, work}
    back           model {y}, upload {...}, visit {samples, steps, a, loss}; no loss where privacy is kept

A message of a skip round and one of a round after a merge have the same fields: none of them tells whose
model it was, which slot it is, or when slots merge. The key is opaque, the seed never leaves the server.
"""

import io
import math
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedskip.federation import Orders, Replies
from fedskip.files import digest
from fedskip.flower.site import ME
from fedskip.flower.work import PROTOCOL
from fedskip.input.errors import InputError, require
from fedskip.methods.base import State
from fedskip.version import __version__


def train_order(orders: Orders, **visit: Any) -> RecordDict:
    """One visit, for the site that it goes to; always made anew, so that sites share nothing."""
    visit = {"round": orders.round, "key": int(orders.keys[0]), **visit}
    return RecordDict(
        {"model": arrays({"x": orders.x[0]}), "sent": arrays(orders.sent), "visit": ConfigRecord(visit)}
    )


def read_train_order(content: RecordDict) -> tuple[Orders, dict[str, Any]]:
    """The visit that a message asks for, and what else it says of it."""
    visit: dict[str, Any] = dict(_record(content, "visit", ConfigRecord))
    x, sent = tensors(_record(content, "model", ArrayRecord)), tensors(_record(content, "sent", ArrayRecord))
    require("a message", "x" in x and x["x"].dim() == 1, "must hold a model")
    try:
        round, key = int(visit.pop("round")), int(visit.pop("key"))
    except (KeyError, ValueError) as error:
        raise InputError("a message", f"lacks {error}") from None
    return Orders(round, ME, ME, [key], x["x"][None], sent), visit


def train_reply(replies: Replies, *, private: bool) -> RecordDict:
    """`private`: the sum of the losses, which has no noise, stays here."""
    visit: dict[str, Any] = {
        "samples": int(replies.samples[0]), "steps": int(replies.steps[0]), "a": float(replies.a[0])
    }  # fmt: skip
    visit |= {} if private else {"loss": float(replies.loss[0])}
    upload = {name: rows[0] for name, rows in replies.upload.items()}
    return RecordDict(
        {"model": arrays({"y": replies.y[0]}), "upload": arrays(upload), "visit": MetricRecord(visit)}
    )


def read_train_reply(content: RecordDict, like: Tensor, *, private: bool) -> Replies:
    """What a site says it did, one row; whether that can be is for `screening` to say.

    `private`: it says nothing of its loss, which is 0 then.
    """
    visit: Any = _record(content, "visit", MetricRecord)
    y = tensors(_record(content, "model", ArrayRecord)).get("y")
    upload = tensors(_record(content, "upload", ArrayRecord))
    require("a reply", y is not None, "must hold a model")
    try:
        samples, steps, a = (float(visit[name]) for name in ("samples", "steps", "a"))
        loss = 0.0 if private else float(visit["loss"])
    except (KeyError, TypeError) as error:
        raise InputError("a reply", f"lacks {error}") from None
    assert y is not None
    return Replies(
        y[None], {name: row[None] for name, row in upload.items()},
        np.array([samples]), np.array([steps]), np.array([a]), like.new_tensor([loss]),
    )  # fmt: skip


def score_order(x: Tensor, **visit: Any) -> RecordDict:
    return RecordDict({"model": arrays({"x": x}), "visit": ConfigRecord(visit)})


def read_score_order(content: RecordDict) -> tuple[Tensor, dict[str, Any]]:
    x = tensors(_record(content, "model", ArrayRecord)).get("x")
    require("a message", x is not None and x.dim() == 1, "must hold a model")
    assert x is not None
    return x, dict(_record(content, "visit", ConfigRecord))


def score_reply(scores: dict[str, float | int]) -> RecordDict:
    return RecordDict({"scores": MetricRecord(scores)})  # type: ignore[arg-type]


def read_score_reply(content: RecordDict) -> dict[str, float]:
    scores: Any = _record(content, "scores", MetricRecord)
    try:
        return {name: float(scores[name]) for name in ("metric", "loss", "samples")}
    except (KeyError, TypeError) as error:
        raise InputError("a reply", f"lacks {error}") from None


def hello(name: str, samples: int, tests: int) -> RecordDict:
    """What a site says of itself, once."""
    about: dict[str, Any] = {"name": name, "samples": samples, "tests": tests, "protocol": PROTOCOL}
    about |= {"fedskip": __version__, "torch": str(torch.__version__)}
    return RecordDict({"site": ConfigRecord(about)})


def read_hello(content: RecordDict) -> dict[str, Any]:
    about = dict(_record(content, "site", ConfigRecord))
    whole = {"name": str, "samples": int, "tests": int, "protocol": int, "fedskip": str, "torch": str}
    for key, kind in whole.items():
        require("a site's answer", isinstance(about.get(key), kind), f"must have {key!r}", about.get(key))
    for key, least in {"samples": 1, "tests": 0}.items():
        require("a site's answer", about[key] >= least, f"must have {key} >= {least}", about[key])
    return about


# --- what they are made of -----------------------------------------------------------------------------


def arrays(state: State) -> ArrayRecord:
    """Tensors as arrays of the message's own."""
    return ArrayRecord({name: Array(t.detach().cpu().contiguous().numpy()) for name, t in state.items()})


def tensors(record: ArrayRecord) -> State:
    """Arrays as tensors; refuses what holds no numbers, and never unpickles."""
    found = {}
    for name, array in record.items():
        try:
            found[str(name)] = torch.from_numpy(_numbers(array.data))
        except (ValueError, TypeError, EOFError) as error:
            raise InputError(f"the array {name!r} of a message", f"cannot be read ({error})") from None
    return found


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


def measured(content: RecordDict) -> tuple[int, str]:
    """Bytes of what a message carries, and a digest of it: the same at both ends."""
    size, parts = 0, []
    for name, record in sorted(content.items()):
        if isinstance(record, ArrayRecord):
            for key, array in sorted(record.items()):
                size += len(array.data)
                parts.append(f"{name}/{key} {array.dtype} {tuple(array.shape)} {digest(array.data)}")
        else:
            text = f"{name} {sorted(record.items())}"
            size += len(text)
            parts.append(text)
    return size, digest("\n".join(parts).encode())


def _record(content: RecordDict, name: str, kind: type) -> Any:
    record = content.get(name)
    require("a message", isinstance(record, kind), f"must hold {name!r}", type(record).__name__)
    return record
