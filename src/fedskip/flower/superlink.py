"""The server's machine: a SuperLink, the registered keys of the clients, and the federation's run on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedskip.errors import InputError
from fedskip.files import write_text
from fedskip.flower import KEY_IN_USE
from fedskip.flower.config import RUN, FederationConfig, address
from fedskip.flower.processes import (
    LineReader,
    Processes,
    descendants,
    environment,
    is_running,
    tool,
    wait_for,
)
from fedskip.flower.server_app import FOLDER, ROUNDS, STATUS

CONNECTION = "federation"  # its name in Flower's configuration
LISTEN = 180.0  # seconds that a SuperLink has to begin to listen
COMMAND = 300.0  # and one of Flower's commands to end


class RunFailed(RuntimeError):
    """The run ended before its last round."""


class SuperLink:
    """A SuperLink for one federation."""

    def __init__(
        self, folder: Path, processes: Processes, host: str, *, insecure: bool = False
    ) -> None:
        """`host`: the address on which it listens. `insecure`: without TLS and without keys."""
        self.folder, self.insecure = folder.resolve(), insecure
        self.config = FederationConfig.read(folder)
        self.port = address(self.config.server)[1]
        self.env = environment(self.folder / "flower", **{FOLDER: str(self.folder)})
        certificates = self.folder / "certificates"
        self._configure(certificates / "ca.crt")
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
        self.process = processes.start("the SuperLink", list(map(str, command)), self.env, log)
        processes.before_end.append(self.stop_run)
        wait_for(self.process, "127.0.0.1", self.port, LISTEN)

    def _configure(self, ca: Path) -> None:
        """Tell Flower's commands how to reach the SuperLink."""
        trust = "insecure = true" if self.insecure else f'root-certificates = "{ca}"'
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        text += f'address = "127.0.0.1:{self.port}"\n{trust}\n'
        write_text(self.folder / "flower" / "config.toml", text)

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
            rule, fix = f"cannot be started: {done.stdout[-300:]}", f"see {self.process.log}"
            raise InputError("the run", rule, fix=fix)

    def watch(self) -> Iterator[list[dict[str, Any]]]:
        """Every half second, the rounds that are done; ends with the run, with an error if it fails."""
        new_lines = LineReader(self.folder / RUN / ROUNDS)
        began = time.monotonic()
        while True:
            status = self._status()
            yield [json.loads(line) for line in new_lines()]
            state = status.get("state")
            if state == "finished":
                return
            if state == "failed":
                raise RunFailed(status.get("why") or "the ServerApp failed")
            if self.process.code is not None:
                raise RunFailed("the SuperLink has ended")
            if state and not is_running(int(status["pid"])):
                raise RunFailed("the ServerApp was killed")
            if not state and time.monotonic() - began > COMMAND:
                raise RunFailed(f"the ServerApp did not start within {COMMAND:g} s")
            time.sleep(0.5)

    def stop_run(self) -> None:
        """End the ServerApp first, so that it does not take the end of the clients for failures."""
        pid = self._status().get("pid")
        if pid in descendants(self.process.guard.pid):
            os.kill(pid, signal.SIGKILL)  # its last round is completely on disk

    def _status(self) -> dict[str, Any]:
        file = self.folder / RUN / STATUS
        return dict(json.loads(file.read_text())) if file.exists() else {}
