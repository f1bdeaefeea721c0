"""The folder of a Ray cluster on this machine, and the process that cleans up after it.

The process runs `python -m fedskip.cluster.local_cluster FOLDER`. It waits until the study that started it
ends or is killed, which closes the pipe that it reads from. Ray ends most of its processes itself; this one
ends those that still have a file of the folder open, and removes the folder.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TIMEOUT = 20.0  # seconds after which it gives up
INTERVAL, QUIET = 0.2, 5  # seconds between two looks, and how many of them must find nothing
LONGEST = 26  # characters of a parent folder, so that the paths of Ray's sockets are short enough


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder for Ray's files; afterwards it is gone, and so is every process that uses it."""
    parent = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="fedskip-", dir=parent if len(parent) <= LONGEST else "/tmp")
    command = [sys.executable, "-m", "fedskip.cluster.local_cluster", folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as cleaner:
        try:
            yield folder
        finally:
            assert cleaner.stdin is not None
            cleaner.stdin.close()
            cleaner.wait()


def clean_up(folder: str, owner: int) -> None:
    """End all processes that use a folder, except its owner, and remove it."""
    deadline, quiet = time.monotonic() + TIMEOUT, 0
    while quiet < QUIET and time.monotonic() < deadline:  # a process may be just starting
        users = _users(folder) - {owner, os.getpid()}
        for pid in users:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not users:
            shutil.rmtree(folder, ignore_errors=True)
        quiet = 0 if users or os.path.exists(folder) else quiet + 1
        time.sleep(INTERVAL)


def _users(folder: str) -> set[int]:
    """The processes that have a file of a folder open."""
    users = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
            if any(os.readlink(f).startswith(f"{folder}/") for f in (process / "fd").iterdir()):
                users.add(int(process.name))
    return users


if __name__ == "__main__":
    owner = os.getppid()
    sys.stdin.read()
    clean_up(sys.argv[1], owner)
