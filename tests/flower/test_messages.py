"""What is read from a message, whoever wrote it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedskip.errors import InputError
from fedskip.flower.messages import introduction, read_introduction, tensors


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
