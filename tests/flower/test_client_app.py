"""A client and its own data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedskip.errors import InputError
from fedskip.flower.client_app import Client
from fedskip.flower.config import NodeConfig

LOADER = """
import numpy as np, torch, fedskip
def load(path):
    x = torch.arange(float(path)).reshape(-1, 1)
    samples = fedskip.Arrays(x, (x[:, 0] > 3).long())
    return fedskip.Dataset("own", samples, lambda seed: (np.arange(6), np.arange(6, 8)), 2)
"""


def client(tmp_path: Path, **config: object) -> Client:
    values = {"name": "a", "state_dir": str(tmp_path), "data": "8", "device": "cpu", **config}
    return Client(NodeConfig.parse(values))


def test_a_loader_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hospital_loader.py").write_text(LOADER)
    monkeypatch.syspath_prepend(str(tmp_path))
    train, test = client(tmp_path, loader="hospital_loader:load").samples
    assert (len(train), len(test)) == (6, 2)
    sys.modules.pop("hospital_loader")


def test_a_file_without_test_samples_is_split_the_same_way_every_time(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((30, 2)), y=np.arange(30) % 2)
    halves = [client(tmp_path, data=str(tmp_path / "own.npz")).samples for _ in range(2)]
    assert np.array_equal(halves[0][0], halves[1][0])
    assert len(halves[0][1]) == 3


def test_standardising_by_a_sites_own_numbers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scaling_loader.py").write_text(LOADER.replace(", 2)", ", 2, standardize=True)"))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match="standardize is not for federations"):
        _ = client(tmp_path, loader="scaling_loader:load").samples
    sys.modules.pop("scaling_loader")


VISIT = """
import sys
from pathlib import Path
from grid import FakeGrid, places, plan_of, play
plan = plan_of(Path(sys.argv[1]), rounds=1)
play(plan, FakeGrid(places(plan, Path(sys.argv[1]))))
assert "torch" in sys.modules
sys.exit("torch._dynamo" in sys.modules)
"""


def test_a_visit_does_not_wait_for_torch_s_compiler(tmp_path: Path) -> None:
    """Its import takes a second or two, and every message has a process of its own."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run(
        [sys.executable, "-c", VISIT, str(tmp_path)], check=True, env=env, capture_output=True
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"name": "a/b"}, "must be letters"),
        ({"nmae": "a"}, "Did you mean 'name'"),
        ({"data": 3}, "must be text"),
        ({"loader": "hospital"}, "must be MODULE:FUNCTION"),
        ({"data": "nowhere.npz"}, "nowhere.npz"),
    ],
)
def test_bad_node_configs(tmp_path: Path, config: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _ = client(tmp_path, **config).samples
