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
WAIT, CALM = 0.2, 5  # seconds between two looks, and how often there must be nothing to be seen


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
    """End all users of a folder and remove it; one that just starts may come a moment later."""
    until, calm = time.monotonic() + SECONDS, 0
    while calm < CALM and time.monotonic() < until:
        left = users(folder, spared)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            shutil.rmtree(folder, ignore_errors=True)
        calm = 0 if left or os.path.exists(folder) else calm + 1
        time.sleep(WAIT)


def main() -> None:
    owner = os.getppid()
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    end(sys.argv[1], owner)


if __name__ == "__main__":
    main()
