"""Addresses that are no cluster's."""

import signal

import pytest

from fedskip import InputError
from fedskip.cluster.joined import check, joined
from nodes import free_port


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://head:10001", "must not be the address of a Ray client"),
        ("head", "must be local, auto or HOST:PORT, got 'head'"),
        ("head:many", "must be local, auto or HOST:PORT"),
        ("127.0.0.1:99999", "must be local, auto or HOST:PORT"),
    ],
)
def test_what_no_address_looks_like(address: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check(address)


def test_nobody_is_there() -> None:
    with pytest.raises(
        InputError, match=r"cluster is not there \(.*refused.*\), got '127.0.0.1:\d+'. Start one"
    ):
        check(f"127.0.0.1:{free_port()}")


@pytest.mark.slow
def test_signals_are_heard_as_before() -> None:
    pytest.importorskip("ray")
    before = signal.getsignal(signal.SIGTERM)
    with joined("local"):
        assert signal.getsignal(signal.SIGTERM) is before
