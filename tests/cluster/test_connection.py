"""Clusters that are joined and left, and addresses that are none."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedskip import InputError
from fedskip.cluster import connection as module
from fedskip.cluster.connection import check, connected, temporary_folder
from nodes import free_port, nodes


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://head:10001", "must not be the address of a Ray client"),
        ("head", "must be local, auto or HOST:PORT, got 'head'"),
        ("head:many", "must be local, auto or HOST:PORT"),
        ("127.0.0.1:99999", "must be local, auto or HOST:PORT"),
    ],
)
def test_what_no_address_looks_like(address: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check(address)


def test_nobody_is_there() -> None:
    with pytest.raises(
        InputError, match=r"cluster is not there \(.*refused.*\), got '127.0.0.1:\d+'. Start one"
    ):
        check(f"127.0.0.1:{free_port()}")


def fake_ray(monkeypatch: pytest.MonkeyPatch, **names: Any) -> SimpleNamespace:
    context = SimpleNamespace(gcs_address="10.0.0.5:6379")
    ray = SimpleNamespace(get_runtime_context=lambda: context, init=lambda *_, **__: None, **names)
    monkeypatch.setattr(module, "_import_ray", lambda: ray)
    monkeypatch.setattr(module, "check", lambda address: None)
    return ray


def test_a_process_that_is_connected_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ray(monkeypatch, is_initialized=lambda: True)
    for address in ("local", "auto", "10.0.0.5:6379"):
        with connected(address):
            pass
    for address in ("10.0.0.5:6380", "10.0.0.6:6379"):
        with pytest.raises(InputError, match=r"cluster must be 10.0.0.5:6379"), connected(address):
            pass


def test_ctrl_c_while_ray_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends all the same; else it would end at exit, and make its folder again."""
    calls = []

    def shutdown() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    fake_ray(monkeypatch, is_initialized=lambda: False, shutdown=shutdown)
    with pytest.raises(KeyboardInterrupt), connected("10.0.0.5:6379"):
        pass
    assert len(calls) == 2


@pytest.mark.slow
def test_signals_are_heard_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a folder for temporary files whose name is too long for Ray is no obstacle."""
    pytest.importorskip("ray")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    with connected("local"):
        assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_a_cluster_that_asks_for_a_token(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    fedskip, out = str(Path(sys.executable).with_name("fedskip")), tmp_path / "out"
    with nodes("one", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0123456789abcdef") as cluster:
        command = [fedskip, "run", "quickstart", "--cluster", cluster.address, "--out", str(out)]
        env = {**os.environ, "RAY_AUTH_MODE": "disabled"}
        found = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert found.returncode == 2
    assert "if it asks for a token, set RAY_AUTH_MODE=token" in " ".join(found.stderr.split())
    assert not out.exists()


# --- the folder of a local cluster ---------------------------------------------------------------------


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
