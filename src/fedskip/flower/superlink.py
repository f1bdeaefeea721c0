"""The server's machine: a SuperLink, the registered keys, and the run of the federation on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedskip.files import write_text
from fedskip.flower.agreement import Agreement, address
from fedskip.flower.guard import descendants, runs
from fedskip.flower.processes import Process, Processes, environment, tool, wait_for
from fedskip.flower.serve import ROUNDS, RUN, STATUS
from fedskip.flower.serverapp import FOLDER
from fedskip.input.errors import InputError

NAME = "federation"  # how Flower's configuration calls the connection
LISTEN = 180.0  # seconds that a SuperLink has to begin to listen
COMMAND = 300.0  # and one of Flower's commands to end


class Failed(RuntimeError):
    """The run ended before its last round."""


class SuperLink:
    """A SuperLink for one federation."""

    def __init__(
        self, folder: Path, parties: Agreement, processes: Processes, host: str, *, insecure: bool = False
    ) -> None:
        """`host`: the address on which it listens."""
        self.folder, self.parties, self.insecure = folder.resolve(), parties, insecure
        self.port = address(parties.server)[1]
        self.env = environment(self.folder / "flower", **{FOLDER: str(self.folder)})
        self._configure()
        certificates = self.folder / "certificates"
        secure = [
            "--ssl-ca-certfile", certificates / "ca.crt", "--ssl-certfile", certificates / "server.crt",
            "--ssl-keyfile", certificates / "server.key", "--enable-supernode-auth",
        ]  # fmt: skip
        command = [
            tool("flower-superlink"), "--host", host, "--port", self.port,
            "--database", self.folder / "flower" / "superlink.db",
            "--disable-runtime-dependency-installation", *(["--insecure"] if insecure else secure),
        ]  # fmt: skip
        log = self.folder / "logs" / "superlink.log"
        self.process: Process = processes.start("the SuperLink", list(map(str, command)), self.env, log)
        processes.first.append(self.stop_run)
        wait_for(self.process, "127.0.0.1", self.port, LISTEN)

    def _configure(self) -> None:
        secure = f'root-certificates = "{self.folder / "certificates" / "ca.crt"}"\n'
        lines = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "127.0.0.1:{self.port}"\n'
        lines += "insecure = true\n" if self.insecure else secure
        write_text(self.folder / "flower" / "config.toml", lines)

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One of Flower's commands."""
        command = [tool("flwr"), *arguments]
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=COMMAND, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def register(self) -> None:
        """Let the clients in: their public keys, each for its name."""
        for name in () if self.insecure else self.parties.clients:
            key = self.folder / "keys" / f"{name}.pub"
            found = self.flwr("supernode", "register", str(key), NAME, "--name", name)
            said = " ".join((found.stdout + found.stderr).split())
            if found.returncode and "already in use" not in said and "already" not in said:
                raise InputError(str(key), f"cannot be registered: {said[-200:]}")

    def run(self) -> None:
        """Start the run."""
        (self.folder / RUN).mkdir(exist_ok=True)
        (self.folder / RUN / STATUS).unlink(missing_ok=True)
        found = self.flwr("run", str(self.folder / "app"), NAME)
        if found.returncode:
            said = " ".join((found.stdout + found.stderr).split())
            raise InputError("the run", f"cannot be started: {said[-300:]}", fix=f"see {self.process.log}")

    def watch(self, told: Callable[[dict[str, Any]], None], also: Callable[[], None] = lambda: None) -> None:
        """Tell of each round until the run is done; an error, if it fails or its process is killed.

        `also` is called again and again meanwhile.
        """
        lines = _new_lines(self.folder / RUN / ROUNDS)
        begun = time.monotonic()
        while True:
            state = self._state()
            for line in next(lines):
                told(line)
            if state.get("state") == "finished":
                return
            if state.get("state") == "failed":
                raise Failed(state.get("why") or "the ServerApp failed")
            if self.process.code is not None:
                raise Failed("the SuperLink has ended")
            if state and not runs(int(state["pid"])):
                raise Failed("the ServerApp was killed")
            if not state and time.monotonic() - begun > COMMAND:
                raise Failed(f"the ServerApp did not start within {COMMAND:g} s")
            also()
            time.sleep(0.5)

    def stop_run(self) -> None:
        """End the ServerApp, before it could take clients that are ended next for clients that fail."""
        pid = self._state().get("pid")
        if pid in descendants(self.process.guard.pid):
            os.kill(pid, signal.SIGKILL)  # its last round is on disk, whole

    def _state(self) -> dict[str, Any]:
        file = self.folder / RUN / STATUS
        return dict(json.loads(file.read_text())) if file.exists() else {}


def _new_lines(path: Path) -> Iterator[list[dict[str, Any]]]:
    """The whole lines that a file has got since the last time."""
    at = path.stat().st_size if path.exists() else 0
    while True:
        content = path.read_bytes()[at:] if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        at += len(whole)
        yield [json.loads(line) for line in whole.splitlines()]
