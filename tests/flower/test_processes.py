"""Nothing that is started under guard outlives the one who started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("psutil", reason="needs Flower: pip install 'fedskip[flower]'")

from fedskip.flower.processes import is_running

# a command that starts another, which leaves its session and does not listen to SIGTERM
STUBBORN = """
import os, signal, subprocess, sys, time
child = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
started = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {started.pid} ")
time.sleep(float(sys.argv[2]))
sys.exit(7)
"""


def guarded(file: Path, seconds: float) -> tuple[subprocess.Popen[bytes], list[int]]:
    command = [
        sys.executable,
        "-m",
        "fedskip.flower.processes",
        sys.executable,
        "-c",
        STUBBORN,
        str(file),
    ]
    guard = subprocess.Popen([*command, str(seconds)], stdin=subprocess.PIPE)
    until = time.monotonic() + 60
    while not (file.exists() and file.read_text().endswith(" ")) and time.monotonic() < until:
        time.sleep(0.05)
    return guard, list(map(int, file.read_text().split()))


@pytest.mark.parametrize("how", ["closed", "terminated"])
def test_all_end_with_whoever_started_them(tmp_path: Path, how: str) -> None:
    guard, pids = guarded(tmp_path / "pids", 600)
    assert all(map(is_running, pids))
    assert guard.stdin is not None
    if how == "terminated":
        guard.send_signal(signal.SIGTERM)
    else:
        guard.stdin.close()  # which the system does, too, if we are killed
    assert guard.wait(40) == 1
    assert not any(map(is_running, pids))


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    guard, pids = guarded(tmp_path / "pids", 0.5)
    assert guard.wait(40) == 7, "its exit status is passed on"
    assert not any(map(is_running, pids))


def test_a_process_of_which_only_the_name_is_left_does_not_run() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    until = time.monotonic() + 10
    while is_running(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(child)
    os.waitpid(child, 0)
