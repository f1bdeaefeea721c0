"""The page of a study on localhost."""

import base64
import hashlib
import http.client
import re
import threading
import time

import pytest

from fedskip.errors import InputError
from fedskip.report.page import Watched, serve
from studies import study


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("watched") / "s"
    study(out, methods="fedavg, fedskip(period=2)", rounds=4, seeds=1).run()
    return out


@pytest.fixture
def port(folder):
    """A server of that folder, and its port."""
    started = []
    thread = threading.Thread(target=serve, args=(folder, 0, started.append), daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not started and time.monotonic() < deadline:
        time.sleep(0.01)
    yield started[0].server_port
    started[0].shutdown()
    thread.join(10)
    assert not thread.is_alive()


def ask(port, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def test_the_page_and_what_it_may_do(port):
    answer = ask(port)
    text = answer.read().decode()
    assert answer.status == 200
    assert "FedSkip-2" in text
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    for script in re.findall("<script>(.*?)</script>", text, re.DOTALL):
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert text.count("<script") == text.count("<script>") + 1 == 2, "the second holds numbers"
    assert "unsafe-inline" not in policy.partition("script-src")[2]
    assert answer.headers["Cache-Control"] == "no-store"
    assert ask(port).read().decode() == text, "rendered once"
    assert ask(port, "/main").read().decode() in text


def test_only_what_it_is_asked_for_and_only_from_here(port):
    assert ask(port, "/study.yaml").status == 404
    assert ask(port, "/../../etc/passwd").status == 404
    assert ask(port, Host=f"evil.example:{port}").status == 403
    assert ask(port, Host="localhost").status == 200
    assert ask(port, method="POST").status == 501


def test_a_new_row_is_told(port, folder):
    events = ask(port, "/events")
    assert events.headers["Content-Type"] == "text/event-stream"
    first = events.readline()
    assert first.startswith(b"data: ")
    assert events.readline() == b"\n"
    history = folder / "history.csv"
    before = history.read_text()
    history.write_text(before + before.splitlines()[-1] + "\n")
    told = events.readline()
    assert told.startswith(b"data: ")
    assert told != first
    history.write_text(before)


def test_a_study_without_results_is_waited_for(tmp_path, folder):
    watched = Watched(tmp_path)
    (tmp_path / "study.yaml").write_bytes((folder / "study.yaml").read_bytes())
    assert "holds a study without results yet" in watched.page()
    (tmp_path / "history.csv").write_bytes((folder / "history.csv").read_bytes())
    assert "Not finished" in watched.page()


def test_bad_input(port, folder, tmp_path):
    with pytest.raises(InputError, match=r"port cannot be used \(Address already in use\)"):
        serve(folder, port)
    with pytest.raises(InputError, match="port must be from 0 to 65535, got 70000"):
        serve(folder, 70000)
    with pytest.raises(InputError, match="out holds no study"):
        serve(tmp_path, 0)
