"""Flower's processes, started and ended: none is left behind, however the command that started them ends."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from fedskip.input.errors import InputError

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
STOP = 20.0  # seconds, after which a guard is taken for stuck

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}


def tool(name: str) -> str:
    """A command of Flower's, which is installed beside this Python or on the path."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError(name, "is not installed", fix="install it: pip install 'fedskip[flower]'")
    return found


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of Flower's processes; they find its other commands where this Python is."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **ENVIRONMENT, "FLWR_HOME": str(home.resolve()), "PATH": path, **more}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def answers(host: str, port: int, seconds: float = 3.0) -> bool:
    """Whether something listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=seconds):
        return True
    return False


class Process:
    """A command under guard: it ends with us, even if we are killed."""

    def __init__(self, name: str, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.name, self.log = name, log
        self.from_here = log.stat().st_size if log.exists() else 0
        with log.open("ab") as file:
            self.guard = subprocess.Popen(
                [sys.executable, "-m", "fedskip.flower.guard", *command],
                env=env, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    @property
    def code(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self.guard.poll()

    def let_go(self) -> None:
        """Ask it to end, and do not wait."""
        if self.guard.stdin is not None:
            with contextlib.suppress(OSError):
                self.guard.stdin.close()

    def stop(self) -> None:
        self.let_go()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.guard.wait(STOP)
            return
        self.guard.kill()

    def tail(self, lines: int = 12) -> str:
        """The last that it has said since it was started here."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(self.from_here)
            said = _COLOURS.sub("", file.read()[-20_000:].decode(errors="replace")).splitlines()
            return "\n".join(said[-lines:])
        return ""


class Processes:
    """Several commands under guard; a context that ends them all, the one that was started first last."""

    def __init__(self) -> None:
        self.all: list[Process] = []
        self.first: list[Callable[[], None]] = []  # what is done before any of them is ended

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for do in self.first:
            do()
        for some in (self.all[1:], self.all[:1]):  # the server last: clients say goodbye to it
            for process in some:
                process.let_go()
            for process in some:
                process.stop()

    def start(self, name: str, command: Sequence[str], env: dict[str, str], log: Path) -> Process:
        self.all.append(Process(name, command, env, log))
        return self.all[-1]


def wait_for(process: Process, host: str, port: int, seconds: float) -> None:
    """Wait until a process listens; an error, with what it said last, if it ends or takes too long."""
    until = time.monotonic() + seconds
    while not answers(host, port, 1.0):
        if process.code is not None or time.monotonic() > until:
            why = "ended" if process.code is not None else f"did not listen within {seconds:g} s"
            raise InputError(process.name, f"{why}: {last_words(process)}", fix=f"see {process.log}")
        time.sleep(0.2)


def last_words(process: Process) -> str:
    """The line of a log that says what was wrong, as far as one can tell."""
    lines = [line.strip() for line in process.tail(40).splitlines() if line.strip()]
    telling = [line for line in lines if "ERROR" in line or "Error" in line or "error" in line]
    return (telling or lines or ["it said nothing"])[-1][:200]
