"""Studies on clusters of real processes: the same bits as in worker processes, whatever is killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from fedskip import InputError
from fedskip.flower.processes import descendants, is_running
from fedskip.records.table import Row
from fedskip.report.progress import ClusterProgress, Progress
from nodes import QUIET, Nodes, nodes
from studies import Net, numbers, study, weights

pytest.importorskip("ray")

from fedskip.study.ray_workers import RayWorkers
from fedskip.study.train import GroupsFailed

KEYS = {
    "engine": "stacked", "methods": "fedavg, fedskip(period=3), scaffold", "rounds": 6, "checkpoint_every": 2,
    "settings": [{"name": "a"}, {"name": "b", "cohort": 3, "seeds": 1}],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # as the nodes of these tests have it


@pytest.fixture(scope="module")
def two() -> Iterator[Nodes]:
    with nodes("one", "two") as found:
        yield found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same study in worker processes."""
    return study(tmp_path_factory.mktemp("plain") / "out", processes=2, **KEYS).run().out


def assert_same(out: Path, plain: Path) -> None:
    assert numbers(out) == numbers(plain)
    assert weights(out) == weights(plain)
    assert (out / "summary.csv").read_text() == (plain / "summary.csv").read_text()


class Kills(Progress):
    """Kills a node at the first checkpoint, when groups are under way on both."""

    def __init__(self, cluster: Nodes, name: str) -> None:
        self.cluster, self.name, self.killed = cluster, name, False

    def started_on_cluster(self, progress: ClusterProgress, rows: object) -> None:
        self.progress = progress

    def checkpoint(self, round: int) -> None:
        hosts = {at.device.split()[0] for at in self.progress.devices()}
        if not self.killed and self.name in hosts:
            self.killed = True
            self.cluster.kill(self.name)


def test_over_both_nodes_one_of_which_is_killed(tmp_path: Path, two: Nodes, plain: Path) -> None:
    kills = Kills(two, "two")
    made = study(tmp_path / "out", groups=2, cluster=two.address, **KEYS)
    made.run(kills)
    assert kills.killed
    assert_same(made.out, plain)
    assert made.is_finished()
    record = yaml.safe_load((made.out / "study.yaml").read_text())
    assert "cluster" not in record, "where it is trained is no part of what it is"
    assert record["record"]["settings"]["a"]["machine"]["processes"] == 2


@pytest.mark.slow
def test_resume_without_a_cluster(tmp_path: Path, two: Nodes, plain: Path) -> None:
    """And what one began here goes on there."""

    class Stops(Progress):
        def checkpoint(self, round: int) -> None:
            if round == 4:
                raise KeyboardInterrupt

    there = study(tmp_path / "there", groups=2, cluster=two.address, **KEYS)
    with pytest.raises(KeyboardInterrupt):
        there.run(Stops())
    study(there.out, groups=2, **KEYS).resume()
    assert_same(there.out, plain)
    here = study(tmp_path / "here", processes=2, **KEYS)
    with pytest.raises(KeyboardInterrupt):
        here.run(Stops())
    study(here.out, processes=2, cluster=two.address, **KEYS).resume()
    assert_same(here.out, plain)


def test_what_is_refused_before_anything_is_written(tmp_path: Path, two: Nodes) -> None:
    for keys, message in (
        ({"device": "cuda"}, "device is not there: no node of the cluster has a GPU, got 'cuda'"),
        ({"device": "cuda:1"}, "device must be auto, cpu or cuda on a cluster"),
        ({"threads": 2, "processes": 1}, "cluster has no device of 2 cores"),
        (
            {"init": str(tmp_path / "none.pt")},
            r"init must be an existing file.*\(setting [ab] on (one|two)\)",
        ),
    ):
        with pytest.raises(InputError, match=message):
            study(tmp_path / "out", **(KEYS | {"cluster": two.address} | keys)).run()
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_data_that_a_node_lacks_are_sent(
    tmp_path: Path, two: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a file of that name is another."""
    plan = RayWorkers.plan
    generator = np.random.default_rng(0)
    keys = KEYS | {"rounds": 2, "partition": "iid", "clients": 4}
    del keys["settings"]
    for there in ("none", "another", "the same"):
        file = tmp_path / "mine.npz"
        np.savez(file, x=generator.normal(size=(80, 2)).astype("float32"), y=np.arange(80) % 2)
        here = (
            study(tmp_path / f"here {there}", data={"name": str(file)}, processes=2, **keys)
            .run()
            .out
        )

        def plans(self: RayWorkers, *args: Any, there: str = there, file: Path = file) -> None:
            """This process has read the file; from now on nodes find what there is."""
            if there != "the same":
                file.unlink()
            if there == "another":
                np.savez(file, x=np.zeros((80, 2), "float32"), y=np.arange(80) % 2)
            plan(self, *args)

        monkeypatch.setattr(RayWorkers, "plan", plans)
        made = study(
            tmp_path / there, data={"name": str(file)}, groups=2, cluster=two.address, **keys
        )
        made.run()
        assert_same(made.out, here)


@pytest.mark.slow
def test_weights_are_found_from_where_one_is(tmp_path: Path, two: Nodes) -> None:
    """Not from where the nodes were started."""
    torch.save(Net().state_dict(), tmp_path / "w.pt")
    keys = KEYS | {"rounds": 2, "init": "w.pt", "settings": [{"name": "a"}]}
    with contextlib.chdir(tmp_path):
        here = study(tmp_path / "here", processes=2, **keys).run().out
        there = study(tmp_path / "there", groups=2, cluster=two.address, **keys).run().out
    assert_same(there, here)


# --- what takes more time --------------------------------------------------------------------------------

SCRIPT = """
import sys; sys.path[:0] = {paths!r}
from pathlib import Path
from studies import study
study(Path({out!r}), groups=2, cluster={cluster!r}, **{keys!r}).{do}()
"""


class Meets(Progress):
    """Does something when a checkpoint comes."""

    def __init__(self, do: Callable[[int], None]) -> None:
        self.do, self.count = do, 0

    def checkpoint(self, round: int) -> None:
        self.count += 1
        self.do(self.count)


def workers(cluster: Nodes) -> list[int]:
    """The training processes of a cluster."""
    mine = {pid for process in cluster.running.values() for pid in descendants(process.pid)}
    found = []
    for pid in mine:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::DeviceWorker"):
                found.append(pid)
    return found


def begun(out: Path, cluster: str, do: str = "run") -> subprocess.Popen[bytes]:
    """A study in a process of its own."""
    paths = [str(Path(__file__).parents[1])]
    code = SCRIPT.format(paths=paths, out=str(out), cluster=cluster, do=do, keys=KEYS)
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, env={**os.environ, **QUIET}, start_new_session=True)


def endless(out: Path, *more: str) -> subprocess.Popen[bytes]:
    """A study on the command line whose only checkpoint is far away."""
    far = [
        "--rounds",
        "100000",
        "--set",
        "checkpoint_every=100000",
        "--groups",
        "2",
        "--out",
        str(out),
    ]
    command = [str(Path(sys.executable).with_name("fedskip")), "run", "quickstart", *far, *more]
    return subprocess.Popen(command, env={**os.environ, **QUIET}, stderr=subprocess.PIPE)


def wait_for(ready: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until, "too late"
        time.sleep(0.05)


@pytest.mark.slow
def test_workers_killed_at_ten_moments(
    tmp_path: Path, plain: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draw, disturbed = random.Random(0), 0
    with nodes("one", "two") as cluster:
        for attempt in range(10):
            at, out, killed = draw.randrange(1, 7), tmp_path / str(attempt), list[int]()

            def kill(count: int, at: int = at, killed: list[int] = killed) -> None:
                if count == at:
                    time.sleep(draw.uniform(0, 0.3))
                    for pid in workers(cluster)[:1]:
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)

            caplog.clear()
            study(out, groups=2, cluster=cluster.address, **KEYS).run(Meets(kill))
            assert killed
            disturbed += "it begins again" in caplog.text  # or it had just ended, or waited
            assert_same(out, plain)
    assert disturbed >= 5


@pytest.mark.slow
@pytest.mark.parametrize("where", ["local", "nodes"])
def test_the_driver_is_killed(tmp_path: Path, plain: Path, where: str) -> None:
    with nodes(*(["one", "two"] if where == "nodes" else [])) as cluster:
        out, address = tmp_path / "out", cluster.address if where == "nodes" else "local"
        process = begun(out, address)
        wait_for(
            lambda: (out / "checkpoints").is_dir() and len([*(out / "checkpoints").iterdir()]) > 1
        )
        left = descendants(process.pid)
        process.kill()
        process.wait()
        wait_for(lambda: not any(map(is_running, left)), 60.0)
        wait_for(lambda: not workers(cluster), 60.0)
        assert begun(out, address, "resume").wait(180) == 0
        assert_same(out, plain)


@pytest.mark.slow
def test_the_head_is_killed(tmp_path: Path) -> None:
    """There is no cluster without it: the study ends, and says so."""
    out = tmp_path / "out"
    with nodes("one", "two") as cluster:
        process = endless(out, "--cluster", cluster.address)
        wait_for(lambda: (out / "study.yaml").is_file())
        cluster.kill("one")
        _, words = process.communicate(timeout=60)
    assert process.returncode == 2, words.decode()
    assert b"cluster has lost its head node" in words


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_nothing_running(tmp_path: Path, plain: Path, times: int) -> None:
    out = tmp_path / "out"
    process = begun(out, "local")
    wait_for(lambda: (out / "checkpoints").is_dir())
    left = descendants(process.pid)
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        time.sleep(0.5)
    assert process.wait(90) != 0
    wait_for(lambda: not any(map(is_running, left)), 30.0)
    study(out, groups=2, **KEYS).resume()
    assert_same(out, plain)


@pytest.mark.slow
def test_after_its_grace_nothing_is_left_running(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = endless(out, "--cluster", "local", "--grace", "2")
    wait_for(lambda: (out / "study.yaml").is_file())
    left = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 128 + signal.SIGTERM
    assert left
    wait_for(lambda: not any(map(is_running, left)), 30.0)


@pytest.mark.slow
def test_a_node_that_joins_is_used(tmp_path: Path) -> None:
    class UsedError(Exception):
        pass

    class Joins(Progress):
        def started_on_cluster(self, progress: ClusterProgress, rows: object) -> None:
            self.progress = progress
            cluster.start("two")

        def recorded(self, rows: object) -> None:
            if any(device.device.startswith("two") for device in self.progress.devices()):
                raise UsedError

    keys = KEYS | {"rounds": 10_000, "checkpoint_every": 1_000}
    with nodes("one") as cluster, pytest.raises(UsedError):
        study(tmp_path / "out", groups=3, cluster=cluster.address, **keys).run(Joins())


@pytest.mark.slow
def test_a_group_that_fails_is_set_aside_and_resumed(tmp_path: Path) -> None:
    """Its worker dies whenever it has begun; the other setting finishes."""
    out, keys = tmp_path / "out", KEYS | {"groups": 1, "rounds": 60, "checkpoint_every": 60}

    class Hurts(Progress):
        def recorded(self, rows: list[Row]) -> None:
            if rows[0]["setting"] == "b":
                for pid in workers(cluster):
                    os.kill(pid, signal.SIGKILL)

    with nodes("one") as cluster:
        with pytest.raises(
            GroupsFailed, match=r"1 group of runs was set aside: b\.FedAvg\.s0, .*died"
        ):
            study(out, cluster=cluster.address, **keys).run(Hurts())
        first = (out / "summary.csv").read_text()
        assert "b.FedAvg" not in first
        assert "a.FedAvg" in first
        assert not study(out, **keys).is_finished()
        study(out, cluster=cluster.address, **keys).resume()
    assert_same(out, study(tmp_path / "alone", **keys).run().out)


@pytest.mark.slow
def test_the_object_store_is_smaller_than_what_passes_through_it(tmp_path: Path) -> None:
    """Ray puts aside on disk what does not fit."""

    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 600_000), nn.ReLU(), nn.Linear(600_000, 2))

    keys: dict[str, object] = {
        "model": wide,
        "methods": "fedavg, scaffold",
        "rounds": 2,
        "seeds": 1,
    }
    keys |= {"engine": "stacked", "checkpoint_every": 1}
    here = study(tmp_path / "here", processes=2, **keys).run().out
    cluster = Nodes()
    try:
        cluster.start("one", cores=2, store=76 << 20)
        there = study(tmp_path / "there", groups=2, cluster=cluster.address, **keys).run().out
    finally:
        cluster.close()
    assert max(file.stat().st_size for file in (there / "checkpoints").iterdir()) > 76 << 20
    assert_same(there, here)
