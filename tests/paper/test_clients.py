"""The clients of runs, dealt again."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedskip
from fedskip.paper.clients import clients, dealt, noted
from fedskip.report.results import Results
from terminal import shown


@pytest.fixture(autouse=True)
def _no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSKIP_DATA", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Three clients with 12, 8 and 3 samples, of which a batch holds 4."""
    folder, draw = tmp_path_factory.mktemp("small"), np.random.default_rng(0)
    x, y, client = (
        draw.normal(size=(23, 2)).astype(np.float32),
        np.arange(23) % 2,
        np.repeat([0, 1, 2], [12, 8, 3]),
    )
    np.savez(folder / "own.npz", x=x, y=y, client=client, test_x=x, test_y=y)
    return fedskip.Study(
        folder / "out", data=str(folder / "own.npz"), partition="natural", cohort=2, rounds=1,
        model={"name": "perceptron", "inputs": 2, "classes": 2}, methods="fedavg", seeds=1, compile=False,
        local={"batch": 4, "epochs": 1, "small_clients": "short"},
    ).run()  # fmt: skip


def test_a_study_notes_its_small_clients(made: Results) -> None:
    [setting] = made.settings
    assert setting.short == {0: 1}


def test_they_are_dealt_again(made: Results, tmp_path: Path) -> None:
    clients([made], tmp_path)
    [row] = csv.DictReader((tmp_path / "partitions.csv").open())
    assert (row["clients"], row["smallest"], row["largest"], row["short"]) == ("3", "3", "12", "1")
    [setting] = made.settings
    old = replace(made, settings=(replace(setting, short={}),))
    assert noted(old, tmp_path / "partitions.csv").settings[0].short == {0: 1}


def test_what_is_left_out_is_said_with_the_command_that_brings_the_data(
    made: Results, tmp_path: Path
) -> None:
    [setting] = made.settings
    absent = replace(setting, keys=setting.keys | {"data": {"name": "shakespeare"}})
    other = replace(setting, divisions={0: {"partition": "another"}})
    text = " ".join(
        shown(clients([replace(made, settings=(one,)) for one in (absent, other)], tmp_path)).split()
    )
    assert "Run `fedskip data get shakespeare`" in text
    assert text.endswith("its clients are dealt in another way now, or its data are others.")
    assert text.count("left out: ") == 2


def test_others_than_those_noted_are_not_believed(made: Results) -> None:
    [setting] = made.settings
    assert dealt(setting, 0) is not None
    assert dealt(replace(setting, divisions={0: {"partition": "another"}}), 0) is None
    assert dealt(replace(setting, keys=setting.keys | {"data": {"name": "missing.npz"}}), 0) is None
