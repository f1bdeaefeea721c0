"""Connects this process to a Ray cluster, or starts one on this machine; leaves nothing of it behind.

A process of its own cleans up after a cluster that was started here: `python -m fedskip.cluster.connection
FOLDER`. It waits until the study that started it ends or is killed, which closes the pipe that it reads from.
Ray ends most of its processes itself; this one ends those that still have a file of the folder open, and
removes the folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fedskip.errors import InputError, first_line, option

LOCAL = "local"
TOKEN = uuid.uuid4().hex  # one for all clusters of this process: Ray keeps the first it has used
CONNECT_TIMEOUT = 5.0  # seconds
CLEAN_TIMEOUT = 20.0  # seconds after which the process that cleans up gives up
INTERVAL, QUIET = 0.2, 5  # seconds between two looks, and how many of them must find nothing
LONGEST_FOLDER = (
    26  # characters of a parent folder, so that the paths of Ray's sockets are short enough
)


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Inside, this process is part of a cluster; `local` starts one and ends it."""
    check(address)
    ray = _import_ray()
    if ray.is_initialized():  # by a notebook, say: stay connected afterwards
        current = ray.get_runtime_context().gcs_address
        if address not in (LOCAL, "auto", current):
            rule, fix = f"must be {current}, which this process is connected to", "use 'auto'"
            raise InputError("cluster", rule, address, fix)
        yield
        return
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {}
        name = "RAY_gcs_server_port_wait_time_s"
        variables = {name: os.environ.get(name, "2")}
        if address == LOCAL:
            folder = stack.enter_context(temporary_folder())
            options = {"num_cpus": cores(), "_temp_dir": folder, "include_dashboard": False}
            variables = {"RAY_AUTH_TOKEN": TOKEN}
        stack.enter_context(_environment(variables))
        stack.callback(ray.shutdown)  # again, where Ctrl-C interrupts the first
        stack.callback(ray.shutdown)
        _connect(ray, address, options)
        yield


def check(address: str) -> None:
    """Refuse an address that cannot be a cluster's, before anything is started."""
    if address in (LOCAL, "auto"):
        return
    if address.startswith("ray://"):
        fix = "run fedskip on a node of the cluster, and give the address that `ray start` printed: HOST:6379"
        raise InputError("cluster", "must not be the address of a Ray client", address, fix)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        rule, fix = "must be local, auto or HOST:PORT", "such as 10.0.0.5:6379"
        raise InputError("cluster", rule, address, fix)
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()
    except OSError as error:
        fix = "start one there with `ray start --head --port PORT`, or use local"
        raise InputError("cluster", f"is not there ({first_line(error)})", address, fix) from None


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _import_ray() -> ModuleType:
    for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        fix = "install it: pip install 'fedskip[ray]'"
        raise InputError("cluster", "needs Ray, which is not installed", fix=fix) from None
    logging.getLogger("ray").setLevel(logging.ERROR)
    module: ModuleType = ray
    return module


def _connect(ray: ModuleType, address: str, options: dict[str, Any]) -> None:
    on_sigterm = signal.getsignal(signal.SIGTERM)  # Ray replaces it
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    try:
        ray.init(address, **quiet, **options)
    except (RuntimeError, ConnectionError, ValueError, OSError) as error:
        if address == LOCAL:
            rule = f"cannot be started ({first_line(error)})"
            raise InputError("cluster", rule, address, "try again") from None
        fix = (
            "see whether `ray status` finds it; install the same Python and Ray on all nodes; if it asks "
            "for a token, set RAY_AUTH_MODE=token and have the token in ~/.ray/auth_token; "
            f"or use {option('cluster', LOCAL, repr(LOCAL))}"
        )
        raise InputError(
            "cluster", f"cannot be joined ({first_line(error)})", address, fix
        ) from None
    finally:
        if threading.current_thread() is threading.main_thread() and on_sigterm is not None:
            signal.signal(signal.SIGTERM, on_sigterm)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Inside, the environment has these variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


# --- the folder of a local cluster ----------------------------------------------------------------------


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder for Ray's files; afterwards it is gone, and so is every process that uses it."""
    parent = tempfile.gettempdir()
    folder = tempfile.mkdtemp(
        prefix="fedskip-", dir=parent if len(parent) <= LONGEST_FOLDER else "/tmp"
    )
    command = [sys.executable, "-m", "fedskip.cluster.connection", folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as cleaner:
        try:
            yield folder
        finally:
            assert cleaner.stdin is not None
            cleaner.stdin.close()
            cleaner.wait()


def clean_up(folder: str, owner: int) -> None:
    """End all processes that use a folder, except its owner, and remove it."""
    deadline, quiet = time.monotonic() + CLEAN_TIMEOUT, 0
    while quiet < QUIET and time.monotonic() < deadline:  # a process may be just starting
        users = _users(folder) - {owner, os.getpid()}
        for pid in users:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not users:
            shutil.rmtree(folder, ignore_errors=True)
        quiet = 0 if users or os.path.exists(folder) else quiet + 1
        time.sleep(INTERVAL)


def _users(folder: str) -> set[int]:
    """The processes that have a file of a folder open."""
    users = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
            if any(os.readlink(f).startswith(f"{folder}/") for f in (process / "fd").iterdir()):
                users.add(int(process.name))
    return users


if __name__ == "__main__":
    owner = os.getppid()
    sys.stdin.read()
    clean_up(sys.argv[1], owner)
