"""Clusters that are joined and left, and addresses that are none."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedskip import InputError
from fedskip.cluster.joined import _left, _refuse_other, check, joined
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


def test_a_process_that_is_connected_to_another() -> None:
    for address in ("local", "auto", "10.0.0.5:6379", "127.0.0.1:6379"):
        _refuse_other(address, "10.0.0.5:6379")
    for address in ("10.0.0.5:6380", "10.0.0.6:6379"):
        with pytest.raises(InputError, match=r"must be 10.0.0.5:6379, which this process is connected to"):
            _refuse_other(address, "10.0.0.5:6379")
    _refuse_other("[fd00::5]:6379", "[fd00::5]:6379")


def test_ctrl_c_while_ray_ends() -> None:
    """It ends all the same; else its end, with that of the process, would make its folder anew."""
    called = []

    class Ray:
        def shutdown(self) -> None:
            called.append(1)
            if len(called) == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), _left(Ray()):  # type: ignore[arg-type]
        pass
    assert len(called) == 2


@pytest.mark.slow
def test_signals_are_heard_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a folder for temporary files whose name is too long for Ray is no obstacle."""
    pytest.importorskip("ray")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    with joined("local"):
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
