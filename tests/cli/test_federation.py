"""`fedskip federation`, as far as nothing is started; tests/flower/test_processes.py starts it all."""

from pathlib import Path

import numpy as np
import pytest

from terminal import call

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedskip[flower]'")

INIT = ["--clients", "site-a,site-b", "--server", "127.0.0.1:18766"]


def test_init_makes_what_check_finds_right(tmp_path: Path) -> None:
    folder = tmp_path / "heart"
    code, out, _ = call("federation", "init", folder, *INIT)
    assert code == 0
    assert "README.md" in out
    assert (folder / "certificates" / "ca.key").stat().st_mode & 0o077 == 0
    code, out, _ = call("federation", "check", folder)
    assert code == 0, out
    for words in (
        "federation.yaml: 2 clients",
        "FedSkip-3, 30 rounds",
        "key of site-b",
        "18766 is free",
    ):
        assert words in out
    site = folder / "clients" / "site-a"
    np.savez(site / "own.npz", x=np.zeros((50, 60), np.float32), y=np.arange(50) % 5)
    file = site / "client.yaml"
    file.write_text(file.read_text().replace("data: ''", "data: own.npz"))
    code, out, err = call("federation", "check", site)
    assert code == 2, "the server is not there"
    assert "ok    data: 45 samples to train on, 5 to test on" in out
    assert "fails server: server cannot be reached" in out
    assert "fails 1 of these checks: server" in err


def test_a_small_seed_is_warned_of(tmp_path: Path) -> None:
    call("federation", "init", tmp_path / "heart", *INIT)
    file = tmp_path / "heart" / "study.yaml"
    file.write_text(file.read_text() + "seeds: [1]\n")
    _, out, _ = call("federation", "check", tmp_path / "heart")
    assert "its seed can be guessed" in out


def test_the_units_name_the_commands(tmp_path: Path) -> None:
    call("federation", "init", tmp_path / "heart", *INIT)
    units = {file.name: file.read_text() for file in (tmp_path / "heart" / "systemd").iterdir()}
    assert "federation server ." in units["fedskip-server.service"]
    assert "Restart=always" in units["fedskip-client.service"]
