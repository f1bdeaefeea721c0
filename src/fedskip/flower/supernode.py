"""A client's machine: a SuperNode, which reaches the server and trains here."""

import time
from collections.abc import Callable
from pathlib import Path

from fedskip.errors import InputError
from fedskip.flower import NOT_ADMITTED
from fedskip.flower.config import ClientConfig, address
from fedskip.flower.processes import Process, Processes, environment, free_port, listens, tool

RESTART = 20.0  # seconds until a node that ended is started again
TRIES = 6  # of a node that ends within SOON seconds, again and again
SOON = 120.0


def start_supernode(
    config: ClientConfig, processes: Processes, log: Path, *, insecure: bool = False
) -> Process:
    """Start the node of a client."""
    state = Path(config.state_dir).resolve()
    state.mkdir(parents=True, exist_ok=True)
    command = [
        tool("flower-supernode"), "--superlink", config.server, "--host", "127.0.0.1",
        "--port", str(config.port or free_port()), "--node-config", config.text(),
    ]  # fmt: skip
    secure = ["--root-certificates", config.ca, "--auth-supernode-private-key", config.key]
    command += ["--insecure"] if insecure else secure
    name = f"the node of {config.name}"
    return processes.start(name, command, environment(state / "flower"), log)


def keep_running(
    config: ClientConfig, log: Path, say: Callable[[str], None], *, insecure: bool = False
) -> None:
    """Run the node of a client for ever: wait for the server, and restart the node when it ends.

    A node ends with the server, or if the server does not know its key yet, or if it starts within a minute
    after an earlier node of the same key. It is an error if it ends soon, again and again.
    """
    host, port = address(config.server)
    tries = 0
    while True:
        if not listens(host, port):
            say(f"{config.server} does not answer yet; waiting for it")
            while not listens(host, port):
                time.sleep(2.0)
        began = time.monotonic()
        try:
            with Processes() as processes:
                follow(start_supernode(config, processes, log, insecure=insecure), say)
        except InputError as error:
            tries = tries + 1 if time.monotonic() - began < SOON else 1
            if tries == TRIES:
                raise
            say(f"{error} It is started again in {RESTART:g} s ({tries} of {TRIES}).")
        time.sleep(RESTART)


def follow(process: Process, say: Callable[[str], None]) -> None:
    """Repeat what a node writes until it ends, which is an error."""
    while True:
        code = process.code  # before the log, so that its last lines are read
        for line in process.new_lines():
            say(line)
        if code is not None:
            rule, fix = f"has ended: {process.last_error()}", f"see {process.log}"
            if any(NOT_ADMITTED in line for line in process.tail(60)):
                rule = "has ended: the server does not let it in"
                fix = "is its key registered there? For a minute after an end the old node is still known."
            raise InputError(process.name, rule, fix=fix)
        time.sleep(0.5)
