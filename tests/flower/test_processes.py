"""Flower's processes on this machine, of which none is left; the slow tests are whole deployments."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedskip[flower]'")

from fedskip.config import build, load_yaml
from fedskip.engine.upload_filters import Privacy
from fedskip.errors import InputError
from fedskip.flower import processes
from fedskip.flower.config import ClientConfig, FederationConfig
from fedskip.flower.folder import write_folder, write_local
from fedskip.flower.keys import write_certificates, write_key
from fedskip.flower.plan import FederationPlan
from fedskip.flower.processes import Processes, RunFailed, SuperLink, SuperNode, is_running
from fedskip.records.checkpoint import list_checkpoints, load_checkpoint
from fedskip.records.table import Table
from fedskip.report.results import Results
from grid import OWN_METHOD, data_file, in_process
from studies import as_table

POISON = """
import dataclasses, fedskip
from fedskip.data.arrays import load_arrays as read

def load(path):
    data = read(path)
    return dataclasses.replace(data, samples=fedskip.Arrays(data.samples.x * 1e8, data.samples.y))
"""

MAIN = [sys.executable, "-c", "from fedskip.cli import main; main()", "federation"]
PATIENCE = (
    900.0  # seconds; most go into starting Python, over and over, on a machine that may be busy
)


def study(folder: Path, clients: int, **keys: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        "name": "small", "data": {"name": str(data_file(folder, clients))}, "cohort": clients,
        "model": {"name": "mlp", "hidden": [4]}, "methods": ["fedskip(period=2)"], "rounds": 2, "seeds": [5],
        "local": {"epochs": 1, "batch": 8, "lr": 0.1},
    }  # fmt: skip
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(written | keys))
    return file


def started(*arguments: object) -> subprocess.Popen[str]:
    command = [*MAIN, *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # else it may be ignored
    )  # fmt: skip


def done(*arguments: object, code: int = 0) -> str:
    """What a command says; it must end as expected."""
    process = started(*arguments)
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == code, said
    return said


def processes_of(folder: Path) -> dict[int, str]:
    """The processes that belong to a federation: its folder is in their environment or command."""
    there = {}
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if each.name.isdigit() and int(each.name) != os.getpid():
                command = (each / "cmdline").read_bytes()
                if str(folder).encode() in command + (each / "environ").read_bytes():
                    there[int(each.name)] = command.replace(b"\0", b" ").decode()
    return there


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Of a federation; whatever the test does, no process of it may be left."""
    path = tmp_path / "federation"
    yield path
    until = time.monotonic() + 30
    while (left := processes_of(path)) and time.monotonic() < until:
        time.sleep(0.3)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def assert_undisturbed(folder: Path, trust: bool = False) -> None:
    """All that the server has after the last round is what the loop engine leads to, to the bit."""
    plan = FederationPlan.read(folder, trust=trust)
    expected, _ = in_process(plan, finish=False).server.save()
    tensors, notes = load_checkpoint(
        list_checkpoints(folder / "run" / "checkpoints", plan.setting.name)[-1][1]
    )
    [run] = notes["runs"]
    assert notes["round"] == plan.setting.rounds
    for name, tensor in expected.items():
        assert torch.equal(tensors[f"{run}/server.{name}"], tensor), name


def rounds(folder: Path) -> list[dict[str, Any]]:
    file = folder / "run" / "rounds.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_until(ready: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    until = time.monotonic() + PATIENCE
    while not (answer := ready()):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.1)
    return answer


# --- the guard ------------------------------------------------------------------------------------------

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


# --- nodes and runs, with commands in the place of Flower's ---------------------------------------------


@pytest.fixture
def flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands that are found in the place of Flower's: each says what it was started with."""
    for name in ("flower-supernode", "flower-superlink"):
        file = tmp_path / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text('#!/bin/sh\necho "$@"\necho "an ERROR in it"\nexit 3\n')
        file.chmod(0o755)
    monkeypatch.setattr(processes, "tool", lambda name: str(tmp_path / "bin" / name))
    return tmp_path / "bin"


def test_a_node_that_ends_is_started_again_and_not_for_ever(
    tmp_path: Path, flower: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "RESTART", 0.0)
    monkeypatch.setattr(processes, "STARTS", 3)
    config = ClientConfig(name="a", state_dir=str(tmp_path / "state"))
    said: list[str] = []
    with Processes() as started:
        node = SuperNode(config, started, tmp_path / "node.log", insecure=True)

        def tend() -> None:
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                said.extend(node.tend())
                time.sleep(0.02)

        with pytest.raises(InputError, match="the node of a has ended: an ERROR in it"):
            tend()
    assert len(started.all) == 3
    assert any("--superlink 127.0.0.1:8000" in line for line in said)
    assert sum("It is started again in" in line for line in said) == 2


def test_a_superlink_that_ends_is_an_error_with_its_last_words(
    tmp_path: Path, flower: Path
) -> None:
    write_folder(tmp_path / "fed", FederationConfig(clients=("a",)), "", [])
    with Processes() as started, pytest.raises(InputError, match="has ended: an ERROR in it"):
        SuperLink(tmp_path / "fed", started, "127.0.0.1")


def test_a_run_is_watched_until_it_ends(tmp_path: Path) -> None:
    link = SuperLink.__new__(SuperLink)
    link.folder, link.process = tmp_path, SimpleNamespace(code=None)  # type: ignore[assignment]
    (tmp_path / "run").mkdir()
    watched = link.watch()
    assert next(watched) == []
    file = tmp_path / "run" / "rounds.jsonl"
    file.write_text('{"round": 1}\n{"rou')
    assert next(watched) == [{"round": 1}]
    file.write_text('{"round": 1}\n{"round": 2}\n')
    status = {"state": "running", "pid": 2**22 + 1, "why": ""}
    (tmp_path / "run" / "status.json").write_text(json.dumps(status))
    assert next(watched) == [{"round": 2}]
    with pytest.raises(RunFailed, match="the ServerApp was killed"):
        next(watched)


# --- deployments ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_short_deployment_with_tls_and_registered_keys(tmp_path: Path, folder: Path) -> None:
    said = done("local", study(tmp_path, 2), "-n", 2, "--out", folder)
    assert "round 2/2" in said
    assert "2 clients  test" in said
    assert_undisturbed(folder)
    results = Results.read(folder / "run")
    assert results.finished
    assert [row["round"] for row in as_table(results.history)] == [2]
    assert as_table(results.history)[0]["x_clients"] == 2
    assert Table.read(folder / "run" / "sites.csv").column("client") == ["client-0", "client-1"]
    books = [
        folder / "audit.jsonl",
        *(folder / "clients" / f"client-{i}/state/audit.jsonl" for i in range(2)),
    ]
    server, *sites = [
        [json.loads(line) for line in book.read_text().splitlines()] for book in books
    ]
    digests = {(one["way"], one["digest"]) for one in server}
    for site in sites:
        assert [one["kind"] for one in site[2:]] == ["train"] * 4 + ["evaluate"] * 2
        others = {"sent": "received", "received": "sent"}
        assert all((others[one["way"]], one["digest"]) in digests for one in site)
    log = (folder / "logs" / "superlink.log").read_text()
    assert "https://" in log
    assert "Activated node_id" in log
    assert "finished" in done("server", folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fedavg", "fedskip(period=2)", "scaffold", "feddyn(alpha=0.1,period=2)"]
)
def test_a_deployment_ends_with_the_weights_of_the_loop_engine(
    tmp_path: Path, folder: Path, method: str
) -> None:
    insecure = ["--insecure"] if method == "fedavg" else []
    done("local", study(tmp_path, 3, methods=[method], rounds=4), "--out", folder, *insecure)
    assert_undisturbed(folder)


@pytest.mark.slow
def test_killed_at_once_nothing_is_left(tmp_path: Path, folder: Path) -> None:
    process = started("local", study(tmp_path, 2, rounds=50), "-n", 2, "--out", folder)
    wait_until(lambda: rounds(folder), process)
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_killed_server_app_is_resumed_in_the_middle_of_a_period(
    tmp_path: Path, folder: Path
) -> None:
    file = study(tmp_path, 3, methods=["scaffold(period=4)"], rounds=6)
    process = started("local", file, "--out", folder)
    wait_until(lambda: len(rounds(folder)) >= 2, process)
    status = json.loads((folder / "run" / "status.json").read_text())
    time.sleep(3)  # it is in the middle of round 3
    os.kill(status["pid"], signal.SIGKILL)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "the ServerApp was killed" in said
    assert f"fedskip federation local --out {folder}" in said
    assert "round 6/6" in done("local", "--out", folder)
    assert_undisturbed(folder)


@pytest.mark.slow
def test_a_method_of_ones_own_is_found_where_the_command_is_started(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_method.py").write_text(OWN_METHOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    done(
        "local",
        study(tmp_path, 2, methods=["own_method:Pulled(period=2)"]),
        "-n",
        2,
        "--out",
        folder,
        "--trust",
    )
    assert "allow:\n- own_method:Pulled" in (folder / "clients/client-0/client.yaml").read_text()
    assert "names code" in done("check", folder, code=2)
    assert_undisturbed(folder, trust=True)
    sys.modules.pop("own_method")


@pytest.mark.slow
def test_private_visits(tmp_path: Path, folder: Path) -> None:
    privacy = {"clip": 0.5, "sigma": 0.1}
    file = study(tmp_path, 2, methods=["scaffold"], privacy=privacy)
    done("local", file, "-n", 2, "--out", folder)
    rows = as_table(Results.read(folder / "run").history)
    assert [row["x_epsilon"] for row in rows] == pytest.approx(
        [Privacy(**privacy).epsilon(v) for v in (1, 2)]
    )
    assert all(row["train_loss"] is None for row in rows)
    keys = [folder / "clients" / f"client-{i}" / "state" / "privacy.key" for i in range(2)]
    assert all(key.stat().st_mode & 0o777 == 0o600 for key in keys)
    assert keys[0].read_bytes() != keys[1].read_bytes()


@pytest.mark.slow
def test_ctrl_c_and_a_killed_superlink(tmp_path: Path, folder: Path) -> None:
    file = study(tmp_path, 2, rounds=4)
    process = started("local", file, "-n", 2, "--out", folder)
    wait_until(lambda: rounds(folder), process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Stopped, all processes have ended; go on with" in said
    assert not processes_of(folder)
    process = started("local", "--out", folder)
    wait_until(lambda: len(rounds(folder)) >= 2, process)
    [link] = [
        pid
        for pid, command in processes_of(folder).items()
        if "bin/flower-superlink" in command and "fedskip.flower.processes" not in command
    ]
    os.kill(link, signal.SIGKILL)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "go on with: fedskip federation local" in said
    done("local", "--out", folder)
    assert_undisturbed(folder)


@pytest.mark.slow
def test_a_node_that_dies_is_used_again_when_it_is_back(tmp_path: Path, folder: Path) -> None:
    """It is left out of a round, or its successor answers the same order: whichever comes first."""
    process = started(
        "local", study(tmp_path, 3, methods=["scaffold"], rounds=500), "--out", folder
    )

    def nodes() -> set[int]:
        there = processes_of(folder).items()
        return {
            pid
            for pid, command in there
            if "bin/flower-supernode" in command and "client-1" in command
        }

    def taken_in() -> int:
        return sum("client-1" in one["clients"] for one in rounds(folder))

    wait_until(lambda: rounds(folder), process)
    assert taken_in()
    killed = nodes()
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: nodes() - killed, process)
    before = taken_in()
    wait_until(lambda: taken_in() > before + 1, process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    assert all(len(one["clients"]) >= 2 for one in rounds(folder)), "the others went on"


@pytest.mark.slow
def test_a_poisoned_client_is_named_and_left_out(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "poison.py").write_text(POISON)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    write_local(folder, 3, build(load_yaml(study(tmp_path, 3, methods=["fedavg"]))))
    file = folder / "clients" / "client-1" / "client.yaml"
    file.write_text(file.read_text() + "loader: poison:load\n")
    said = done("local", "--out", folder)
    assert "client-1 was left out" in said
    assert "client-1" not in rounds(folder)[0]["clients"]
    sites = [row for row in Table.read(folder / "run" / "sites.csv") if row["client"] != "client-1"]
    assert sites
    assert all(row["test_loss"] < 2 for row in sites), "the model of the others is as good as ever"


@pytest.mark.slow
def test_a_wrong_authority_and_an_unknown_key_are_refused(tmp_path: Path, folder: Path) -> None:
    write_local(folder, 2, build(load_yaml(study(tmp_path, 2, rounds=100))))
    parties = folder / "federation.yaml"
    parties.write_text(parties.read_text().replace("wait: 600.0", "wait: 300.0"))
    server = started("server", folder, "--host", "127.0.0.1")
    try:
        wait_until(lambda: "Uvicorn running" in _text(folder / "logs" / "superlink.log"), server)
        site = folder / "clients" / "client-0"
        assert "fails" not in done("check", site)
        own = tmp_path / "other"
        shutil.copytree(site, own)
        (own / "client.key").unlink()
        write_key(own / "client.key", tmp_path / "other.pub")
        assert "is its key registered at the server?" in done("client", own, code=2).lower()
        wrong = tmp_path / "wrong"
        shutil.copytree(site, wrong)
        write_certificates(tmp_path / "certificates", ["127.0.0.1"])
        shutil.copy(tmp_path / "certificates" / "ca.crt", wrong / "ca.crt")
        for command in ("check", "client"):
            assert "does not vouch for 127.0.0.1" in done(command, wrong, code=2)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
