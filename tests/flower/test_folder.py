"""The folder of a federation, as it is written and read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedskip[flower]'")

from flwr.common.config import parse_config_args

from fedskip.errors import InputError
from fedskip.flower.config import ClientConfig, FederationConfig
from fedskip.flower.folder import template, write_folder


def written(folder: Path) -> Path:
    write_folder(folder, FederationConfig(clients=("a", "b")), template("study.yaml", cohort=2), [])
    return folder


def test_units_start_this_program_in_this_folder(tmp_path: Path) -> None:
    units = written(tmp_path / "a folder of 100%") / "systemd"
    server = (units / "fedskip-server.service").read_text()
    assert f'ExecStart="{Path(sys.executable).with_name("fedskip")}" federation server .' in server
    assert "WorkingDirectory=" in server
    assert "a folder of 100%%\n" in server


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_has_nothing_to_say_about_the_units(tmp_path: Path) -> None:
    units = written(tmp_path / "a folder") / "systemd"
    client = units / "fedskip-client.service"  # made to fit this machine, as its operator does
    there = str(Path(sys.executable).with_name("fedskip"))
    client.write_text(client.read_text().replace("/opt/fedskip/bin/fedskip", there))
    for unit in (client, units / "fedskip-server.service"):
        command = ["systemd-analyze", "verify", str(unit)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        said = [line for line in (found.stdout + found.stderr).splitlines() if "fedskip" in line]
        assert not said


def test_what_a_client_knows_reaches_its_node(tmp_path: Path) -> None:
    """As Flower reads its option, whatever stands in a path."""
    site = written(tmp_path / "federation") / "clients" / "a"
    file = site / "client.yaml"
    file.write_text(file.read_text() + "epsilon: 8\n")
    config = ClientConfig.read(site, data='it\'s "the" data.npz')
    found = ClientConfig.of_node(parse_config_args([config.for_node()]))
    assert found == config
    assert found.epsilon == 8
    with pytest.raises(InputError, match="epsilon must be > 0, got -1"):
        ClientConfig.read(site, epsilon=-1.0)


def test_clients_whose_names_look_like_numbers_keep_them(tmp_path: Path) -> None:
    """As YAML reads them, 09327503e7296450 is infinity and 012 is ten."""
    names = ("1e5", "09327503e7296450", "012", "null")
    write_folder(tmp_path, FederationConfig(clients=names), template("study.yaml", cohort=2), [])
    assert FederationConfig.read(tmp_path).clients == names
    assert tuple(ClientConfig.read(tmp_path / "clients" / name).name for name in names) == names
