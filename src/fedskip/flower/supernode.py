"""A client's machine: a SuperNode that reaches the server and runs the visits."""

import time
from collections.abc import Callable
from pathlib import Path

from fedskip.flower.agreement import address
from fedskip.flower.folder import ClientFile
from fedskip.flower.processes import Process, Processes, answers, environment, free_port, last_words, tool
from fedskip.input.errors import InputError, require

REFUSED = "Exit Code: 305"  # what a node says last whose key the server does not take
AGAIN = 20.0  # seconds until a node that ended is started again: its key is refused for about a minute
TRIES = 6  # of a node that ends within SOON seconds, again and again
SOON = 120.0


def start_supernode(file: ClientFile, processes: Processes, log: Path, *, insecure: bool = False) -> Process:
    """Start the node of a site."""
    state = Path(file.state_dir).resolve()
    state.mkdir(parents=True, exist_ok=True)
    command = [
        tool("flower-supernode"), "--superlink", file.server, "--host", "127.0.0.1",
        "--port", str(file.port or free_port()), "--node-config", node_config(file),
    ]  # fmt: skip
    secure = ["--root-certificates", file.ca, "--auth-supernode-private-key", file.key]
    command += ["--insecure"] if insecure else secure
    return processes.start(f"the node of {file.name}", command, environment(state / "flower"), log)


def node_config(file: ClientFile) -> str:
    """What the ClientApp gets to know of its site, as Flower's command takes it."""
    values = {
        "name": file.name, "data": file.data, "loader": file.loader, "share": file.share,
        "state-dir": str(Path(file.state_dir).resolve()), "device": file.device,
    }  # fmt: skip
    for key, value in values.items():
        plain = not value or not any(c in value for c in "'\"\\\n")
        require(key, plain, "must hold no quotes, backslashes or line breaks", value)
    limit = "" if file.epsilon is None else f" epsilon={float(file.epsilon)!r}"
    return " ".join(f"{key}='{value}'" for key, value in values.items() if value) + limit


def keep_up(file: ClientFile, log: Path, said: Callable[[str], None], *, insecure: bool = False) -> None:
    """Run the node of a site: wait for the server, and start the node again where it ends.

    A node ends when the server does, or if it is there before the server knows its key, or within a minute
    after an earlier one. It is an error if it ends soon again and again.
    """
    host, port = address(file.server)
    tries = 0
    while True:
        if not answers(host, port):
            said(f"{file.server} does not answer yet; waiting for it")
            while not answers(host, port):
                time.sleep(2.0)
        began = time.monotonic()
        try:
            with Processes() as processes:
                follow(start_supernode(file, processes, log, insecure=insecure), said)
        except InputError as error:
            tries = tries + 1 if time.monotonic() - began < SOON else 1
            if tries == TRIES:
                raise
            said(f"{error} It is started again in {AGAIN:g} s ({tries} of {TRIES}).")
        time.sleep(AGAIN)


def follow(process: Process, said: Callable[[str], None]) -> None:
    """Say what a node says, until it ends; that is an error."""
    at = process.from_here
    while True:
        code = process.code  # before the log, so that its last lines are read
        content = process.log.read_bytes()[at:]
        whole = content[: content.rfind(b"\n") + 1]
        at += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            said(line)
        if code is not None:
            rule, fix = f"has ended: {last_words(process)}", f"see {process.log}"
            if REFUSED in process.tail(60):
                rule = "has ended: the server does not let it in"
                fix = "is its key registered there? For a minute after an end the old node is still known."
            raise InputError(process.name, rule, fix=fix)
        time.sleep(0.5)
