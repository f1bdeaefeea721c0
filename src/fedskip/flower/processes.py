"""Processes of Flower under guard: none of them outlives the command that started it, however that ends.

A guard, `python -m fedskip.flower.processes COMMAND ...`, starts the command and holds the reading end of a pipe.
When the other end closes, because its owner is done or was killed, the guard ends the command, with all
processes that it has started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from fedskip.errors import InputError

GRACE = 6.0  # seconds for processes to end by themselves
STOP = 20.0  # seconds, after which a guard is taken for stuck
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SUBREAPER = 36  # of Linux' prctl

# --- starting ------------------------------------------------------------------------------------


class Process:
    """A command under guard: it ends with us, even if we are killed."""

    def __init__(self, name: str, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.name, self.log = name, log
        self._at = log.stat().st_size if log.exists() else 0  # where its own lines begin
        with log.open("ab") as file:
            self.guard = subprocess.Popen(
                [sys.executable, "-m", "fedskip.flower.processes", *command],
                env=env, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        self.new_lines = LineReader(log, self._at)

    @property
    def code(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self.guard.poll()

    def ask_to_end(self) -> None:
        """Ask it to end, and do not wait."""
        if self.guard.stdin is not None:
            with contextlib.suppress(OSError):
                self.guard.stdin.close()

    def stop(self) -> None:
        self.ask_to_end()
        try:
            self.guard.wait(STOP)
        except subprocess.TimeoutExpired:
            self.guard.kill()

    def tail(self, lines: int = 12) -> list[str]:
        """The last lines that it has written."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(self._at)
            text = file.read()[-20_000:].decode(errors="replace")
            return _COLOURS.sub("", text).splitlines()[-lines:]
        return []

    def last_error(self) -> str:
        """The line of its log that probably says what went wrong."""
        lines = [line.strip() for line in self.tail(40) if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or ["it said nothing"])[-1][:200]


class LineReader:
    """Reads a log that grows: each call gives the complete lines that are new."""

    def __init__(self, path: Path, at: int | None = None) -> None:
        """`at`: the byte at which to begin; None: at the end of what is there now."""
        self.path = path
        self.at = (path.stat().st_size if path.exists() else 0) if at is None else at

    def __call__(self) -> list[str]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.at)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self.at += len(complete)
        return complete.decode(errors="replace").splitlines()


class Processes:
    """Several commands under guard; leaving the context ends them all, the first one last."""

    def __init__(self) -> None:
        self.all: list[Process] = []
        self.before_end: list[Callable[[], None]] = []  # called before any of them is ended

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for call in self.before_end:
            call()
        for some in (self.all[1:], self.all[:1]):  # the server last: clients sign off from it
            for process in some:
                process.ask_to_end()
            for process in some:
                process.stop()

    def start(self, name: str, command: Sequence[str], env: dict[str, str], log: Path) -> Process:
        self.all.append(Process(name, command, env, log))
        return self.all[-1]


def tool(name: str) -> str:
    """The path of one of Flower's commands, installed beside this Python or on the path."""
    beside = Path(sys.executable).with_name(name)
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        raise InputError(name, "is not installed", fix="install it: pip install 'fedskip[flower]'")
    return path


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of Flower's processes, in which they find its other commands."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **ENVIRONMENT, "FLWR_HOME": str(home.resolve()), "PATH": path, **more}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def listens(host: str, port: int, seconds: float = 3.0) -> bool:
    """Whether something answers there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=seconds):
        return True
    return False


def wait_for(process: Process, host: str, port: int, seconds: float) -> None:
    """Wait until a process listens; an error, with its last words, if it ends or takes too long."""
    until = time.monotonic() + seconds
    while not listens(host, port, 1.0):
        if process.code is not None or time.monotonic() > until:
            why = "ended" if process.code is not None else f"did not listen within {seconds:g} s"
            rule, fix = f"{why}: {process.last_error()}", f"see {process.log}"
            raise InputError(process.name, rule, fix=fix)
        time.sleep(0.2)


# --- the processes of this machine ---------------------------------------------------------------


def descendants(root: int) -> set[int]:
    """The processes that a process has started, directly or not, and that still run."""
    try:
        children = psutil.Process(root).children(recursive=True)
    except psutil.NoSuchProcess:
        return set()
    return {child.pid for child in children if is_running(child.pid)}


def is_running(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# --- the guard -----------------------------------------------------------------------------------


def guard(command: Sequence[str]) -> int:
    """Run a command until it ends or standard input closes; gives its exit status."""
    with contextlib.suppress(OSError, AttributeError):  # orphans below become our children: Linux
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def close(*_: object) -> None:  # as if the other end had
        with contextlib.suppress(OSError):
            os.close(0)

    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    for number in signals:
        signal.signal(number, close)

    def wait() -> None:
        process.wait()
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=wait, daemon=True).start()
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    for number in signals:  # from here on descriptor 0 may be another file
        signal.signal(number, signal.SIG_IGN)
    code = process.poll()
    _end_descendants()
    return 1 if code is None or code < 0 else code


def _end_descendants() -> None:
    """End all processes below this one: ask first, then kill."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        until = time.monotonic() + GRACE
        while descendants(os.getpid()) and time.monotonic() < until:
            time.sleep(0.1)
    with contextlib.suppress(OSError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # no zombies are left, either
            pass


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1:]))
