"""Ends what is left of a cluster of our own: `python -m fedskip.cluster.after FOLDER`.

It waits until whoever started it is done, or was killed: then the pipe that it reads from closes. Ray ends
most of its processes itself; those that still have a file of the cluster's folder open are ended here, and
the folder is removed.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 20.0  # after which it gives up
WAIT = 0.2


def start(folder: str) -> "subprocess.Popen[bytes]":
    """Begin to watch over a folder; close its standard input when all is done."""
    command = [sys.executable, "-m", "fedskip.cluster.after", folder]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def finish(watching: "subprocess.Popen[bytes]") -> None:
    """Have it end what is left."""
    if watching.stdin is not None:
        with contextlib.suppress(OSError):
            watching.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        watching.wait(SECONDS + 1)


def users(folder: str, spared: int) -> list[int]:
    """Processes that have a file of a folder open, but for this one and one that is spared."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            held = (os.readlink(file) for file in (process / "fd").iterdir())
            pid = int(process.name)
            if pid not in (os.getpid(), spared) and any(path.startswith(f"{folder}/") for path in held):
                found.append(pid)
    return found


def end(folder: str, spared: int) -> None:
    until = time.monotonic() + SECONDS
    while (left := users(folder, spared)) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(WAIT)
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    owner = os.getppid()
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    end(sys.argv[1], owner)


if __name__ == "__main__":
    main()
