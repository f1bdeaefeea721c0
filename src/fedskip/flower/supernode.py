"""A client's machine: a SuperNode that reaches the server and runs the visits."""

import time
from collections.abc import Callable
from pathlib import Path

from fedskip.flower.folder import ClientFile
from fedskip.flower.processes import Process, Processes, environment, free_port, last_words, tool
from fedskip.input.errors import InputError, require

REFUSED = "Exit Code: 305"  # what a node says last whose key the server does not take


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
            fix = f"see {process.log}"
            if REFUSED in process.tail():
                fix = (
                    "is its key registered there? After a restart, wait a minute: the old node is still known"
                )
            raise InputError(process.name, f"has ended: {last_words(process)}", fix=fix)
        time.sleep(0.5)
