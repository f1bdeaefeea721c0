"""Flower's processes on this machine: the SuperLink of a server, the SuperNode of a client.

None of them outlives the command that started it, however that ends. A guard,
`python -m fedskip.flower.processes COMMAND ...`, starts the command and holds the reading end of a pipe. When
the other end closes, because its owner is done or was killed, the guard ends the command, with all processes
that it has started.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from fedskip.errors import InputError
from fedskip.files import write_text
from fedskip.flower import KEY_IN_USE
from fedskip.flower.config import (
    FOLDER,
    ROUNDS,
    RUN,
    STATUS,
    TRUST,
    ClientConfig,
    FederationConfig,
    address,
)

GRACE = 6.0  # seconds for processes to end by themselves
STOP = 20.0  # seconds, after which a guard is taken for stuck
LISTEN = 180.0  # seconds that a SuperLink has to begin to listen
COMMAND = 300.0  # and one of Flower's commands to end
PAUSE = 0.5  # seconds between two looks at what processes have written
RESTART = 20.0  # seconds until a node that ended is started again
STARTS = 6  # of a node that ends within SOON seconds, again and again
SOON = 120.0
CONNECTION = "federation"  # the SuperLink's name in Flower's configuration
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SUBREAPER = 36  # of Linux' prctl

# --- any process ---------------------------------------------------------------------------------


class LineReader:
    """Reads a file that grows: each call gives the complete lines that are new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = path.stat().st_size if path.exists() else 0  # what is there now is not new

    def __call__(self) -> list[str]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.at)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self.at += len(complete)
        return _COLOURS.sub("", complete.decode(errors="replace")).splitlines()


class Process:
    """A command under guard: it ends with us, even if we are killed."""

    def __init__(
        self, name: str, command: Sequence[object], env: dict[str, str], log: Path
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.name, self.log, self._new_lines = name, log, LineReader(log)
        self._last: deque[str] = deque(maxlen=40)  # lines that it has written
        with log.open("ab") as file:
            self.guard = subprocess.Popen(
                [sys.executable, "-m", "fedskip.flower.processes", *map(str, command)],
                env=env, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    @property
    def code(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self.guard.poll()

    def new_lines(self) -> list[str]:
        """What it has written since this was last asked."""
        lines = self._new_lines()
        self._last.extend(line.strip() for line in lines if line.strip())
        return lines

    def failure(self, why: str = "has ended", fix: str = "") -> InputError:
        """The error that it is not as it should be, with the line of its log that probably says why."""
        self.new_lines()
        errors = [line for line in self._last if "error" in line.lower()]
        words = [*self._last, *errors][-1:] or ["it said nothing"]
        return InputError(self.name, f"{why}: {words[0][:200]}", fix=f"see {self.log}{fix}")

    def ask_to_end(self) -> None:
        """Ask it to end, and do not wait."""
        assert self.guard.stdin is not None
        with contextlib.suppress(OSError):
            self.guard.stdin.close()

    def wait_for_end(self) -> None:
        try:
            self.guard.wait(STOP)
        except subprocess.TimeoutExpired:
            self.guard.kill()


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
                process.wait_for_end()

    def start(
        self, name: str, command: Sequence[object], env: dict[str, str], log: Path
    ) -> Process:
        self.all.append(Process(name, command, env, log))
        return self.all[-1]


def tool(name: str) -> str:
    """The path of one of Flower's commands, installed beside this Python or on the path."""
    path = shutil.which(name, path=_search_path())
    if path is None:
        raise InputError(name, "is not installed", fix="install it: pip install 'fedskip[flower]'")
    return path


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of Flower's processes, in which they find its other commands."""
    own = {**ENVIRONMENT, "FLWR_HOME": str(home.resolve()), "PATH": _search_path()}
    return {**os.environ, **own, **more}


def _search_path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def listens(host: str, port: int, seconds: float = 3.0) -> bool:
    """Whether something answers there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=seconds):
        return True
    return False


# --- the server's machine ------------------------------------------------------------------------


class RunFailed(RuntimeError):
    """The run ended before its last round."""


class SuperLink:
    """A SuperLink with the registered keys of the clients, and the federation's run on it."""

    def __init__(
        self,
        folder: Path,
        processes: Processes,
        host: str,
        *,
        insecure: bool = False,
        trust: bool = False,
    ) -> None:
        """`host`: the address on which it listens. `insecure`: without TLS and without keys. `trust`: the study may
        name code.
        """
        self.folder, self.insecure = folder.resolve(), insecure
        self.config = FederationConfig.read(folder)
        self.port = address(self.config.server)[1]
        home, certificates = self.folder / "flower", self.folder / "certificates"
        self.env = environment(
            home, **{FOLDER: str(self.folder)}, **({TRUST: "1"} if trust else {})
        )
        vouches = "insecure = true"
        options: list[object] = ["--insecure"]
        if not insecure:
            vouches = f'root-certificates = "{certificates / "ca.crt"}"'
            options = [
                "--ssl-ca-certfile", certificates / "ca.crt", "--ssl-certfile", certificates / "server.crt",
                "--ssl-keyfile", certificates / "server.key", "--enable-supernode-auth",
            ]  # fmt: skip
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        text += f'address = "127.0.0.1:{self.port}"\n{vouches}\n'
        write_text(home / "config.toml", text)  # how Flower's commands reach it
        command = [
            tool("flower-superlink"), "--host", host, "--port", self.port,
            "--database", home / "superlink.db", "--disable-runtime-dependency-installation", *options,
        ]  # fmt: skip
        log = self.folder / "logs" / "superlink.log"
        self.process = processes.start("the SuperLink", command, self.env, log)
        processes.before_end.append(self.stop_run)
        until = time.monotonic() + LISTEN
        while not listens("127.0.0.1", self.port, 1.0):
            if self.process.code is not None:
                raise self.process.failure()
            if time.monotonic() > until:
                raise self.process.failure(f"did not listen within {LISTEN:g} s")
            time.sleep(PAUSE)

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of Flower's commands; its output is one line in `stdout`."""
        done = subprocess.run(
            [tool("flwr"), *arguments],
            env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=COMMAND, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        done.stdout = " ".join(done.stdout.split())
        return done

    def register(self) -> None:
        """Register the clients' public keys, each for its name."""
        for name in () if self.insecure else self.config.clients:
            key = str(self.folder / "keys" / f"{name}.pub")
            done = self.flwr("supernode", "register", key, CONNECTION, "--name", name)
            if done.returncode and KEY_IN_USE not in done.stdout:
                raise InputError(key, f"cannot be registered: {done.stdout[-200:]}")

    def run(self) -> None:
        """Start the run."""
        (self.folder / RUN).mkdir(exist_ok=True)
        (self.folder / RUN / STATUS).unlink(missing_ok=True)
        done = self.flwr("run", str(self.folder / "app"), CONNECTION)
        if done.returncode:
            rule, fix = f"cannot be started: {done.stdout[-200:]}", f"see {self.process.log}"
            raise InputError("the run", rule, fix=fix)

    def watch(self) -> Iterator[list[dict[str, Any]]]:
        """Twice a second, the rounds that are done; ends with the run, with an error if it fails."""
        new_rounds = LineReader(self.folder / RUN / ROUNDS)
        began = time.monotonic()
        while True:
            status = self._status()  # before the rounds, so that the last ones are read
            yield [json.loads(line) for line in new_rounds()]
            state = status.get("state")
            if state == "finished":
                return
            if state == "failed":
                raise RunFailed(status["why"] or "the ServerApp failed")
            if self.process.code is not None:
                raise RunFailed("the SuperLink has ended")
            if state and not is_running(status["pid"]):
                raise RunFailed("the ServerApp was killed")
            if not state and time.monotonic() - began > COMMAND:
                raise RunFailed(f"the ServerApp did not start within {COMMAND:g} s")
            time.sleep(PAUSE)

    def stop_run(self) -> None:
        """End the ServerApp first, so that it does not take the end of the clients for failures."""
        pid = self._status().get("pid")
        if pid in descendants(self.process.guard.pid):
            os.kill(pid, signal.SIGKILL)  # its last round is completely on disk

    def _status(self) -> dict[str, Any]:
        file = self.folder / RUN / STATUS
        return dict(json.loads(file.read_text())) if file.exists() else {}


def train(
    folder: Path,
    say: Callable[[str], None],
    *,
    host: str,
    nodes: bool,
    insecure: bool = False,
    trust: bool = False,
) -> Generator[dict[str, Any], None, None]:
    """Serve a federation to its end; gives rounds as they are done. `nodes`: with all its clients here. `trust`:
    its study may name code.

    All processes end with the generator: close it, whatever happens.
    """
    with Processes() as processes:
        say("starting the SuperLink ...")
        link = SuperLink(folder, processes, host, insecure=insecure, trust=trust)
        link.register()
        here = local_nodes(folder, processes, insecure=insecure) if nodes else []
        link.run()
        say(f"listening on port {link.port}; waiting for {', '.join(link.config.clients)}")
        for rounds in link.watch():
            yield from rounds
            for node in here:
                node.tend()


# --- a client's machine --------------------------------------------------------------------------


class SuperNode:
    """The node of a client, which waits for the server and trains here. It is started again when it ends.

    It ends with the server, or if the server does not know its key yet, or if it starts within a minute
    after an earlier node of the same key. It is an error if it ends soon, again and again.
    """

    def __init__(
        self, config: ClientConfig, processes: Processes, log: Path, *, insecure: bool = False
    ) -> None:
        self.config, self.processes, self.log, self.insecure = config, processes, log, insecure
        self._tries = 0
        self._start()

    def _start(self) -> None:
        config = self.config
        state = Path(config.state_dir).resolve()
        state.mkdir(parents=True, exist_ok=True)
        secure = ["--root-certificates", config.ca, "--auth-supernode-private-key", config.key]
        command = [
            tool("flower-supernode"), "--superlink", config.server, "--host", "127.0.0.1",
            "--port", config.port or free_port(), "--node-config", config.for_node(),
            *(["--insecure"] if self.insecure else secure),
        ]  # fmt: skip
        name, env = f"the node of {config.name}", environment(state / "flower")
        self.process = self.processes.start(name, command, env, self.log)
        self._began, self._ended = time.monotonic(), math.inf

    def tend(self) -> list[str]:
        """Start it again where that is due; to be called often. Gives what it has written since."""
        now, ended = time.monotonic(), self.process.code is not None
        lines = self.process.new_lines()  # after the look, so that the last ones are read
        if now - self._ended > RESTART:
            self._start()
        elif ended and self._ended == math.inf:
            self._ended = now
            self._tries = self._tries + 1 if now - self._began < SOON else 1
            fix = "; is its key registered at the server? For a minute the server may know the old node"
            error = self.process.failure(fix=fix)
            if self._tries == STARTS:
                raise error
            lines.append(f"{error} It is started again in {RESTART:g} s.")
        return lines


def keep_running(
    config: ClientConfig, log: Path, say: Callable[[str], None], *, insecure: bool = False
) -> None:
    """Run the node of a client for ever, and repeat what it writes."""
    with Processes() as processes:
        node = SuperNode(config, processes, log, insecure=insecure)
        while True:
            for line in node.tend():
                say(line)
            time.sleep(PAUSE)


def local_nodes(folder: Path, processes: Processes, *, insecure: bool = False) -> list[SuperNode]:
    """The nodes of a federation whose clients are all on this machine. They write into its logs."""
    return [
        SuperNode(
            ClientConfig.read(folder / "clients" / name), processes, folder / "logs" / f"{name}.log",
            insecure=insecure,
        )
        for name in FederationConfig.read(folder).clients
    ]  # fmt: skip


# --- processes by their numbers ------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


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
