"""Runs a command for as long as whoever started it lives: `python -m fedskip.flower.guard COMMAND ...`.

It holds the reading end of a pipe. When the other end closes, because its owner is done or was killed,
the command ends, with all that it started.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

SUBREAPER = 36  # of Linux' prctl
GRACE = 6.0  # seconds that processes have to end by themselves


def descendants(root: int) -> set[int]:
    """The processes that one has started, and those they have."""
    children: dict[int, list[int]] = {}
    for parent, child in _processes():
        children.setdefault(parent, []).append(child)
    found: set[int] = set()
    todo = [root]
    while todo:
        new = [child for child in children.get(todo.pop(), ()) if child not in found]
        found.update(new)
        todo += new
    return found


def _processes() -> list[tuple[int, int]]:
    """All processes that run, as parent and child; not those of which only the name is left."""
    if not Path("/proc/self/stat").exists():
        command = ["ps", "-A", "-o", "ppid=,pid=,state="]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        each = [line.split() for line in listed.splitlines()]
        return [(int(one[0]), int(one[1])) for one in each if len(one) == 3 and one[2][0] != "Z"]
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if folder.name.isdigit():  # its name, in brackets, may hold anything
                stat = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if stat[0] != "Z":
                    found.append((int(stat[1]), int(folder.name)))
    return found


def runs(pid: int) -> bool:
    return any(child == pid for _, child in _processes())


def adopt() -> None:
    """Become the parent of what is orphaned below, where the system can: nothing gets out of sight."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def end() -> None:
    """End all processes that this one has started, and those they have: by asking, then by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        until = time.monotonic() + GRACE
        while descendants(os.getpid()) and time.monotonic() < until:
            time.sleep(0.1)
    with contextlib.suppress(OSError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # so that not even their names are left
            pass


def main() -> None:
    adopt()
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)

    def close(*_: object) -> None:  # as if the other end had
        with contextlib.suppress(OSError):
            os.close(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, close)

    def wait() -> None:
        process.wait()
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=wait, daemon=True).start()
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    code = process.poll()
    end()
    sys.exit(1 if code is None or code < 0 else code)


if __name__ == "__main__":
    main()
