"""Studies on clusters of real processes: the same bits as in worker processes, whatever is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fedskip.report.progress import Progress, SideBySide
from nodes import Nodes, nodes
from studies import numbers, study, weights

pytest.importorskip("ray")
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
    for file in ("summary.csv",):
        assert (out / file).read_text() == (plain / file).read_text()


class Kills(Progress):
    """Kills a node at the first checkpoint, when groups are under way on both."""

    def __init__(self, cluster: Nodes, name: str) -> None:
        self.cluster, self.name, self.killed = cluster, name, False

    def side_by_side(self, settings: SideBySide, rows: object) -> None:
        self.settings = settings

    def checkpoint(self, round: int) -> None:
        hosts = {at.device.split()[0] for at in self.settings.devices()}
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
