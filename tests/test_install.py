"""install.py: where torch comes from, told before pip starts, also where an index does not answer."""

from __future__ import annotations

import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "install.py"
PYTHON = Path(sys.executable)


class Index(BaseHTTPRequestHandler):
    """A stub of a package index, with nothing in it."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def index() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    server.server_close()


@pytest.fixture
def silent() -> Iterator[str]:
    """An index that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple"


def options(monkeypatch: pytest.MonkeyPatch, pip: str, torch: str, gpu: bool = False) -> list[str]:
    """What install.py gives pip, on Linux, with these two indexes."""
    monkeypatch.setenv("PIP_INDEX_URL", pip)
    monkeypatch.setenv("TORCH_INDEX", torch)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("shutil.which", lambda name: name if gpu else None)
    script = runpy.run_path(str(SCRIPT))
    script["pip_options"].__globals__["SECONDS"] = 1
    found: list[str] = script["pip_options"](PYTHON)
    return found


def test_builds_for_cpus_without_a_gpu(
    index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert options(monkeypatch, index, index) == ["--extra-index-url", index]
    assert "about 200 MB" in capsys.readouterr().out


def test_cuda_with_a_gpu(
    index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert options(monkeypatch, index, index, gpu=True) == []
    assert "several GB" in capsys.readouterr().out


def test_an_index_that_is_silent_is_left_out_within_seconds(
    index: str, silent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    assert options(monkeypatch, index, silent) == []
    assert f"{silent} does not answer" in capsys.readouterr().out
    assert "--retries" in options(monkeypatch, silent, index)
    assert f"{silent} does not answer" in capsys.readouterr().out
    assert time.monotonic() - began < 20


def test_pip_without_an_index_is_left_alone(
    silent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert options(monkeypatch, silent, "") == []


def test_it_ends_within_seconds_where_there_is_no_index(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"http://127.0.0.1:{server.getsockname()[1]}/simple"
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "venv"],
        env={"PATH": "", "PIP_INDEX_URL": closed, "PIP_CONFIG_FILE": "/dev/null"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode
    assert f"{closed} does not answer" in done.stdout
