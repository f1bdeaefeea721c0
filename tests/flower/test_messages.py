"""What is read from a message, whoever wrote it, and which replies count."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

from fedskip.errors import InputError
from fedskip.federation import Orders, Replies, Server
from fedskip.flower.messages import (
    introduction,
    read_introduction,
    screen,
    tensors,
)
from fedskip.methods import FedAvg, Method, Scaffold
from fedskip.models.vector import Layout


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archived() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3, np.float32))
    return file.getvalue()


HUGE = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }"
)
OPEN = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3,"
UNREADABLE = {
    "an unclosed header": OPEN.ljust(127) + b"\n",
    "an archive": archived(), "no bytes": b"", "cut": saved(np.zeros(9, np.float32))[:-4],
    "a header without its bytes": HUGE.ljust(127) + b"\n", "objects": saved(np.array([{}], object)),
    "whole numbers": saved(np.zeros(3, np.int64)), "columns": saved(np.asfortranarray(np.ones((2, 3)))),
}  # fmt: skip


def record(data: bytes) -> ArrayRecord:
    return ArrayRecord({"y": Array(dtype="float32", shape=(3,), stype="numpy.ndarray", data=data)})


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_no_array_of_numbers_is_refused_by_name(kind: str) -> None:
    with pytest.raises(InputError, match="the array 'y' of a message cannot be read"):
        tensors(record(UNREADABLE[kind]))


@pytest.mark.parametrize("shape", [(3,), (2, 3), ()])
def test_numbers_are_read_as_they_were_saved(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=shape)
    assert np.array_equal(tensors(record(saved(array)))["y"].numpy(), array)


@pytest.mark.parametrize(("samples", "tests"), [(-5, 10), (0, 0), (10, -3)])
def test_sites_have_samples(samples: int, tests: int) -> None:
    with pytest.raises(InputError, match=r"an introduction must have (samples >= 1|tests >= 0)"):
        read_introduction(introduction("a", samples, tests))


# --- which replies count --------------------------------------------------------------------------------


def server(method: Method, module: nn.Module, slots: int = 5) -> Server:
    layout = Layout.of(module)
    return Server(method, layout.pack(module), layout, clients=slots, slots=slots, seed=0)


def reply(y: Tensor, upload: dict[str, Tensor] | None = None) -> Replies:
    return Replies(
        y[None], upload or {}, np.array([5]), np.array([1]), np.array([1.0]), torch.zeros(1)
    )


def screened(server: Server, orders: Orders, replies: dict[int, Replies]) -> dict[int, str]:
    return screen(server, orders, replies, dict.fromkeys(replies, 5), 10.0)


def test_absurd_buffers_are_refused_although_the_model_is_fine() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    d, one = Layout.of(module).trainable, server(FedAvg(), module)
    orders = one.orders(0)
    replies = {k: reply(orders.x[k] + 0.1) for k in range(5)}
    replies[3].y[0, d:] += 1e6
    refused = screened(one, orders, replies)
    assert list(refused) == [3]
    assert "the buffers" in refused[3]


@pytest.mark.parametrize("brings", [{}, {"other": torch.zeros(1, 6)}])
def test_what_comes_along_is_what_the_method_says_also_where_nobody_else_answers(
    brings: dict[str, Tensor],
) -> None:
    one = server(Scaffold(), nn.Linear(2, 2), slots=2)
    orders = one.orders(0)
    refused = screened(one, orders, {0: reply(orders.x[0] + 0.1, brings)})
    assert refused == {0: "brings something else than the method asks for"}


@pytest.mark.parametrize(("times", "refused"), [(9.0, False), (11.0, True)])
@pytest.mark.parametrize("step", [1e-3, 1.0, 1e3])
def test_an_update_is_measured_by_the_median_of_its_round(
    step: float, times: float, refused: bool
) -> None:
    one = server(FedAvg(), nn.Linear(2, 2))
    orders = one.orders(0)
    moved = [step, step, step, step, times * step]
    replies = {k: reply(orders.x[k] + move) for k, move in enumerate(moved)}
    assert list(screened(one, orders, replies)) == [4] * refused


@pytest.mark.parametrize(
    ("usual", "odd", "refused"),
    [
        (1.0, 10.0, []),  # ten times the median is the limit
        (1.0, 10.5, [3]),
        (4.0, 32.0, []),  # long, as all are
        (0.125, 2.0, [3]),  # short, but sixteen times the median
    ],
)
def test_the_limit_is_a_multiple_of_the_median(
    usual: float, odd: float, refused: list[int]
) -> None:
    module = nn.Linear(2, 2)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    layout = Layout.of(module)
    server = Server(FedAvg(), layout.pack(module), layout, clients=5, slots=5, seed=0)
    orders = server.orders(0)
    replies = {}
    for k, length in enumerate([usual, usual, usual, odd, usual]):
        y = orders.x[k : k + 1].clone()
        y[0, 0] = length
        one = np.array([1])
        replies[k] = Replies(y, {}, np.array([5]), one, one.astype(float), torch.zeros(1))
    found = screen(server, orders, replies, dict.fromkeys(replies, 5), 10.0)
    assert list(found) == refused
