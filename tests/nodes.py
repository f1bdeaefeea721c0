"""A Ray cluster of real processes on loopback: each node has an address of its own, as machines do."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fedskip.flower.processes import descendants

RAY = str(Path(sys.executable).with_name("ray"))
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_period_ms": "500",
}
STORE = 80 << 20  # bytes of a node's object store
WAIT_FOR_ALL = """
import logging, sys, time, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
until = time.monotonic() + 60
while len([node for node in ray.nodes() if node["Alive"]]) < int(sys.argv[2]):
    assert time.monotonic() < until, "the other nodes did not start"
    time.sleep(0.2)
"""


class Nodes:
    """Nodes that can be killed. The first is the head, and no study must lose that."""

    def __init__(self, **env: str) -> None:
        """`env`: of its nodes, besides what all have."""
        self.env = {**os.environ, **QUIET, **env}
        # a short path: sockets lie there
        self.folder, self.port = tempfile.mkdtemp(prefix="fs-", dir="/tmp"), free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, name: str, cores: int = 1, store: int = STORE) -> None:
        number = len(self.running) + 1
        head = [
            "--head",
            f"--port={self.port}",
            f"--temp-dir={self.folder}",
            "--include-dashboard=false",
        ]
        where = head if number == 1 else [f"--address={self.address}"]
        more = [
            f"--node-name={name}",
            f"--num-cpus={cores}",
            "--num-gpus=0",
            f"--object-store-memory={store}",
        ]
        self.running[name] = subprocess.Popen(
            [RAY, "start", *where, f"--node-ip-address=127.0.0.{number}", *more, "--block"],
            env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        if number == 1:
            self._wait()

    def _wait(self, seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 1.0),
            ):
                return
            time.sleep(0.2)
        raise AssertionError("the head did not start")

    def wait_for_all(self) -> None:
        """Wait until all nodes have joined the head."""
        subprocess.run(
            [sys.executable, "-c", WAIT_FOR_ALL, self.address, str(len(self.running))],
            env=self.env, check=True, timeout=120,
        )  # fmt: skip

    def kill(self, name: str) -> None:
        """As a power cut does."""
        process = self.running[name]
        for pid in [*descendants(process.pid), process.pid]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.wait(30)

    def close(self) -> None:
        for name in reversed(self.running):
            self.kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    """Outside of the ports that Ray gives to its workers."""
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        if port > 20_000:
            return port


@contextlib.contextmanager
def nodes(*names: str, **env: str) -> Iterator[Nodes]:
    """A cluster with these nodes, of one core each; nothing of it is left."""
    found = Nodes(**env)
    try:
        for name in names:
            found.start(name)
        if len(names) > 1:
            found.wait_for_all()
        yield found
    finally:
        found.close()
