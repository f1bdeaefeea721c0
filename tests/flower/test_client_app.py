"""A client and its own data."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedskip.config.tree import named_code
from fedskip.errors import InputError
from fedskip.flower.client_app import Client, MemoryFiles
from fedskip.flower.config import ClientConfig
from fedskip.flower.plan import PROTOCOL, JobSpec

LOADER = """
import numpy as np, torch, fedskip
def load(path):
    x = torch.arange(float(path)).reshape(-1, 1)
    samples = fedskip.Arrays(x, (x[:, 0] > 3).long())
    return fedskip.Dataset("own", samples, lambda seed: (np.arange(6), np.arange(6, 8)), 2)
"""


def client(tmp_path: Path, **config: object) -> Client:
    values = {"name": "a", "state_dir": str(tmp_path), "data": "8", "device": "cpu", **config}
    return Client(ClientConfig(**values))


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
        ({"data": 3}, "must be text"),
        ({"loader": "hospital"}, "must be MODULE:FUNCTION"),
        ({"loader": "os:system"}, "is a part of Python"),
        ({"data": "nowhere.npz"}, "nowhere.npz"),
    ],
)
def test_bad_node_configs(tmp_path: Path, config: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _ = client(tmp_path, **config).samples


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"model": {"name": "os:system", "command": "ls"}}, "model.name"),
        ({"loss": "evil:f"}, "loss"),
        ({"metric": ["evil:f"]}, "metric.0"),
        ({"method": "evil:M(a=1)"}, "method"),
        ({"method": ["evil:M"]}, "method.0"),
    ],
)
def test_a_message_names_no_code_but_what_the_site_allows(
    changed: dict[str, object], key: str, tmp_path: Path
) -> None:
    [name] = (name for _, name in named_code(changed))
    says = f"^{re.escape(key)} names code.*{name}.*`allow` in client.yaml"
    message = json.dumps({"protocol": PROTOCOL, "model": {"name": "linear"}, **changed})
    for allow in ((), ("evil:Other",)):
        with pytest.raises(InputError, match=says):
            JobSpec.parse(message, client(tmp_path, allow=allow).config.allow)
    with pytest.raises(InputError, match="must be methods or their text"):  # keys name nothing
        JobSpec.parse(json.dumps({"protocol": PROTOCOL, "method": {"evil:M": 1}}))
    with pytest.raises(InputError) as refused:  # of something else: nothing else is there
        JobSpec.parse(message, [name])
    assert "names code" not in str(refused.value)


# --- its memory ----------------------------------------------------------------------------------------

RUN = "0123456789abcdef"


def kept(files: MemoryFiles) -> list[int]:
    return sorted(int(file.name[:6]) for file in files.folder.glob("*.safetensors"))


def row(number: float) -> dict[str, torch.Tensor]:
    return {"c": torch.full((3,), number)}


def test_two_versions_are_kept_and_the_accepted_one_is_among_them(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path, RUN)
    assert files.load(0) == {}
    files.save(1, row(1), accepted=0)
    files.save(4, row(4), accepted=1)
    assert kept(files) == [1, 4]
    files.save(6, row(6), accepted=1)  # the reply of round 4 was lost
    assert kept(files) == [1, 6]
    assert files.load(1)["c"].tolist() == [1, 1, 1]
    files.save(7, row(7), accepted=6)
    assert kept(files) == [6, 7]


def test_the_same_round_again_replaces_what_it_left(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path, RUN)
    files.save(2, row(2), accepted=0)
    files.save(2, row(3), accepted=0)
    assert kept(files) == [2]
    assert files.load(2)["c"].tolist() == [3, 3, 3]


def test_an_old_visit_that_ends_late_takes_nothing_away(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path, RUN)
    files.save(1, row(1), accepted=0)
    files.save(5, row(5), accepted=1)
    files.save(4, row(4), accepted=1)
    assert {1, 5} <= set(kept(files))


def test_what_is_lost_or_damaged_is_an_error(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path, RUN)
    with pytest.raises(ValueError, match="has no memory of round 3, which the server has accepted"):
        files.load(3)
    files.save(3, row(3), accepted=0)
    [file] = files.folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="is damaged"):
        files.load(3)


def test_runs_do_not_mix_and_their_names_are_no_paths(tmp_path: Path) -> None:
    MemoryFiles(tmp_path, RUN).save(1, row(1), accepted=0)
    with pytest.raises(ValueError, match="has no memory"):
        MemoryFiles(tmp_path, RUN[::-1]).load(1)
    for name in ("../../etc", "", "ABCDEF0123456789", "0123/456789abcdef"):
        with pytest.raises(ValueError, match="hexadecimal"):
            MemoryFiles(tmp_path, name)
