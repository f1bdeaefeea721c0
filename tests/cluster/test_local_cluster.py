"""The folder of a local cluster: processes that use it end with it, and no others."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fedskip.cluster.local_cluster import temporary_folder


def holder(folder: Path) -> "subprocess.Popen[bytes]":
    """A process that has a file of a folder open."""
    code = (
        f"import time; file = open({str(folder / 'log')!r}, 'w'); print(flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_processes_that_use_the_folder_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    with temporary_folder() as name:
        mine, other = Path(name), Path(f"{name}2")
        other.mkdir()
        holders = [holder(mine), holder(other)]
        held = (mine / "own").open("w")  # this process has a file open there, too
        time.sleep(0.5)
        assert holders[0].poll() is None, "nothing happens before its owner leaves"
    held.close()
    assert holders[0].wait(10) == -9
    assert holders[1].poll() is None
    assert not mine.exists()
    assert other.exists()
    holders[1].kill()
    holders[1].wait()
    (other / "log").unlink()
    other.rmdir()
