"""Ray, joined at an address or started for a study: nothing of it is left afterwards."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from fedskip.cluster import after
from fedskip.input.errors import InputError, option, said

LOCAL = "local"
TOKEN = uuid.uuid4().hex  # Ray keeps the first that a process has used
SECRET = "RAY_AUTH_TOKEN"
REACH = 5.0  # seconds in which something must listen at an address
LONGEST, SHORT = 26, "/tmp"  # characters of a folder that Ray's sockets fit in, and one that is short
ATTEMPTS = {"RAY_gcs_server_port_wait_time_s": "2"}  # to reach what listens there
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}


def check(address: str) -> None:
    """Refuse an address that can be no cluster's, before anything is started."""
    if address in (LOCAL, "auto"):
        return
    if address.startswith("ray://"):
        fix = "run fedskip on a node of the cluster, and give the address that `ray start` printed: HOST:6379"
        raise InputError("cluster", "must not be the address of a Ray client", address, fix)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError("cluster", "must be local, auto or HOST:PORT", address, "such as 10.0.0.5:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
    except OSError as error:
        fix = "start one there with `ray start --head --port PORT`, or use local"
        raise InputError("cluster", f"is not there ({said(error)})", address, fix) from None


@contextlib.contextmanager
def joined(address: str) -> Iterator[None]:
    """Inside, this process is part of a cluster; with `local`, of one that is started and ended here."""
    check(address)
    ray = _ray()
    if ray.is_initialized():  # somebody's notebook: what is theirs stays
        _refuse_other(address, ray.get_runtime_context().gcs_address)
        yield
    elif address == LOCAL:
        with _started(ray):
            yield
    else:
        with _left(ray):
            with (
                _own_signals(),
                _set({name: os.environ.get(name, value) for name, value in ATTEMPTS.items()}),
            ):
                _connect(ray, address)
            yield


@contextlib.contextmanager
def _started(ray: ModuleType) -> Iterator[None]:
    """Ray for this process alone: nobody else has its token, and its files are in a folder of their own."""
    parent = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="fedskip-", dir=parent if len(parent) <= LONGEST else SHORT)
    watching = after.start(folder)  # also over our own end
    try:
        with _set({SECRET: TOKEN}), _left(ray):
            with _own_signals():
                _connect(ray, LOCAL, num_cpus=cores(), _temp_dir=folder, include_dashboard=False)
            yield
    finally:
        after.finish(watching)


@contextlib.contextmanager
def _left(ray: ModuleType) -> Iterator[None]:
    """Afterwards this process is no part of a cluster."""
    try:
        yield
    finally:
        try:
            ray.shutdown()
        except BaseException:  # Ctrl-C: Ray would do the rest as the process ends, in a folder that is gone
            ray.shutdown()
            raise


@contextlib.contextmanager
def _set(variables: dict[str, str]) -> Iterator[None]:
    """Inside, the environment has these."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, was in before.items():
            os.environ.pop(name)
            os.environ.update({} if was is None else {name: was})


def _refuse_other(address: str, here: str) -> None:
    """Refuse a cluster that is not the one that this process is part of."""
    if address not in (LOCAL, "auto") and not _same(address, here):
        fix = "leave that with ray.shutdown(), or use 'auto'"
        raise InputError("cluster", f"must be {here}, which this process is connected to", address, fix)


def _same(address: str, other: str) -> bool:
    """Whether two addresses may be one; a host may have several names."""
    (host, _, port), (there, _, at) = address.rpartition(":"), other.rpartition(":")
    if port != at:
        return False
    try:
        mine, theirs = (
            {info[4][0] for info in socket.getaddrinfo(one.strip("[]"), None)} for one in (host, there)
        )
    except OSError:
        return True  # nobody can tell
    return bool(mine & theirs) or bool(mine & {"127.0.0.1", "::1"})


def _ray() -> ModuleType:
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    try:
        import ray
    except ImportError:
        fix = "install it: pip install 'fedskip[ray]'"
        raise InputError("cluster", "needs Ray, which is not installed", fix=fix) from None
    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of what is meant
    found: ModuleType = ray
    return found


def _connect(ray: ModuleType, address: str, **how: Any) -> None:
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **how)
    except (RuntimeError, ConnectionError, ValueError, OSError) as error:
        if "ersion" in str(error):  # Ray compares its own and Python's
            rule = f"has another version of Python or Ray ({said(error)})"
            raise InputError("cluster", rule, address, "install the same on all nodes") from None
        token = "if it asks for a token, set RAY_AUTH_MODE=token and have the token in ~/.ray/auth_token"
        fix = f"see whether `ray status` finds it; {token}; or use {option('cluster', LOCAL, repr(LOCAL))}"
        if address == LOCAL:
            raise InputError("cluster", f"cannot be started ({said(error)})", address, "try again") from None
        raise InputError("cluster", f"cannot be joined ({said(error)})", address, fix) from None


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself: afterwards it is heard as it was before."""
    here = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if here and before is not None:
            signal.signal(signal.SIGTERM, before)
