"""Files that a study names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedskip import InputError, Study
from fedskip.config import build, load_yaml
from fedskip.config.paths import moved, read_in, written_in
from studies import numbers

STUDY = """\
data: {file}
model: linear
methods: fedavg
partition: natural
cohort: 2
rounds: {rounds}
compile: false
processes: 1
checkpoint_every: 1
local: {{batch: 4, epochs: 1}}
"""


def test_which_values_are_paths() -> None:
    study = {
        "data": {"name": "a.npz", "test": "b.csv", "label": "c.csv"}, "init": "w.pt", "note": "n.csv",
        "settings": [{"data": "d.parquet"}, {"partition": {"file": "p.npz"}}, {"data": "synthetic"}],
    }  # fmt: skip
    assert moved(study, lambda path: f"<{path}>") == {
        "data": {"name": "<a.npz>", "test": "<b.csv>", "label": "c.csv"}, "init": "<w.pt>", "note": "n.csv",
        "settings": [{"data": "<d.parquet>"}, {"partition": {"file": "<p.npz>"}}, {"data": "synthetic"}],
    }  # fmt: skip
    kept = {"data": {"name": "/abs/a.npz", "test": "column"}, "partition": "iid", "init": "~/w.pt"}
    assert moved(kept, lambda path: f"<{path}>") == kept
    grid = {"data": {"name": ["a.csv", "b.csv"]}}
    assert moved(grid, str.upper) == {"data": {"name": ["A.CSV", "B.CSV"]}}


def test_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deep/er").mkdir(parents=True)
    Path("a.npz").touch()
    assert written_in(Path("deep/er"))("a.npz") == "../../a.npz"
    assert read_in(Path("deep/er"))("../../a.npz") == "a.npz"
    assert read_in(Path("deep"))("a.npz") == "a.npz"  # which only this place has
    Path("deep/a.npz").touch()
    assert read_in(Path("deep"))("a.npz") == "deep/a.npz"
    os.symlink("deep/er", "link")
    assert written_in(Path("link"))("a.npz") == "../../a.npz"
    assert Path(read_in(Path("link"))("../../a.npz")).samefile("a.npz")


def laid(folder: Path, rounds: int = 3) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    np.savez(folder / "own.npz", x=x, y=(x.sum(1) > 0).astype(int), client=np.arange(40) % 4)
    (folder / "study.yaml").write_text(STUDY.format(file="own.npz", rounds=rounds))


def test_resume_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid(tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    Study("home/out", spec=build(load_yaml("home/study.yaml"))).run()
    assert "name: ../own.npz" in Path("home/out/study.yaml").read_text()
    assert Study.load("home/out").folder.study()["data"] == {"name": "home/own.npz"}
    shutil.copytree("home/out", "whole")
    Study.load("home/out").resume(rounds=4)
    before = numbers(tmp_path / "home" / "out")
    shutil.rmtree("home/out")
    shutil.move("whole", "home/out")

    Path("elsewhere").mkdir()
    shutil.move("home", "elsewhere/moved")  # data and results together
    monkeypatch.chdir("/")
    out = tmp_path / "elsewhere" / "moved" / "out"
    Study.load(out).resume(rounds=4)
    assert numbers(out) == before
    assert "name: ../own.npz" in (out / "study.yaml").read_text()
    monkeypatch.chdir(out)
    Study.load(".").folder.refuse_other(Study.load(out).folder.study())


def test_partition_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid(tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    keys = {
        "model": "linear",
        "methods": "fedavg",
        "cohort": 2,
        "rounds": 2,
        "compile": False,
        "processes": 1,
    }
    keys |= {"local": {"batch": 4, "epochs": 1}, "data": "own.npz", "checkpoint_every": 1}
    Study("one", partition="natural", **keys).run()
    Study("two", partition={"file": "one/partition-own-0.npz"}, **keys).run()
    assert "file: ../one/partition-own-0.npz" in Path("two/study.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    Study.load("home/two").resume(rounds=3)
    with pytest.raises(InputError, match="out holds another study"):
        Study(
            "home/two",
            partition={"file": "home/one/partition-own-0.npz"},
            **keys | {"data": "home/own.npz"},
        ).run()
    shutil.move("home/own.npz", "home/gone.npz")
    with pytest.raises(InputError, match=r"data.name must be an existing file, got 'home/own.npz'"):
        Study.load("home/two").resume(rounds=4)
