"""Groups of runs in several processes: the same results, the same rows, nobody left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from fedskip import Study
from fedskip.records.table import Row
from fedskip.report.progress import Progress, SettingProgress, Status
from fedskip.study.processes import AVAILABLE, Process
from fedskip.study.train import InProcess, since
from studies import as_table, numbers, study

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no safe fork on this system")


def models(out: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {file.name: load_file(file) for file in sorted((out / "models").iterdir())}


def bits(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((out / "models").iterdir())}


def test_progress_moves_between_checkpoints(tmp_path: Path) -> None:
    class Watching(Progress):
        def started(self, course: SettingProgress, rows: Iterable[Row]) -> None:
            self.course, self.steps, self.rounds = course, [0], [0.0]

        def recorded(self, rows: list[Row]) -> None:
            status = self.course.status()
            self.steps.append(status.steps)
            self.rounds.append(max(status.rounds.values()))

        def checkpoint(self, round: int) -> None:
            self.at_checkpoint = len(self.steps), self.course.status().steps

    watching = Watching()
    made = study(tmp_path / "apart", engine="stacked", processes=2, rounds=6, checkpoint_every=6)
    made.run(watching)
    told, steps = watching.at_checkpoint
    assert told > 6
    assert watching.steps == sorted(watching.steps)
    assert 0 < watching.steps[2] < steps
    assert watching.rounds == sorted(watching.rounds)
    assert any(0 < done < 6 for done in watching.rounds)
    alone = Watching()
    study(tmp_path / "alone", engine="stacked", processes=1, rounds=6, checkpoint_every=6).run(
        alone
    )
    assert alone.at_checkpoint[1] == steps
    for course in (watching.course, alone.course):
        assert 0 < course.status().preparing < course.seconds(), (
            "tracing is not held against the pace"
        )


@pytest.mark.parametrize("processes", [1, 2])
def test_steps_that_are_compiled_are_told_and_counted(tmp_path: Path, processes: int) -> None:
    class Watching(Progress):
        def started(self, course: SettingProgress, rows: Iterable[Row]) -> None:
            self.course, self.told = course, list[tuple[int, Status]]()

        def preparing(self, rows: int) -> None:
            self.told.append((rows, self.course.status()))

    watching = Watching()
    study(tmp_path / "out", engine="stacked", processes=processes, rounds=4).run(watching)
    begun = [(rows, status) for rows, status in watching.told if rows]
    assert 2 <= len(begun) == len(watching.told) / 2
    assert [status.begun for _, status in begun] == list(range(1, len(begun) + 1)), "of all groups"
    record = yaml.safe_load((tmp_path / "out" / "study.yaml").read_text())["record"]["settings"][
        "toy"
    ]
    planned = [
        len(sizes) for kind in ("sizes", "contrast_sizes") for sizes in record["machine"][kind]
    ]
    assert {status.most for _, status in begun} == {sum(planned)}
    assert all(status.doing == "tracing" for _, status in begun)
    assert {rows for rows, _ in begun} <= {
        rows
        for kind in ("sizes", "contrast_sizes")
        for sizes in record["machine"][kind]
        for rows in sizes
    }
    assert not watching.told[-1][1].doing


def test_time_goes_on_while_another_process_compiles() -> None:
    """Else it would be held against the pace."""
    status = Status({}, frozenset(), 0, 2.0, "compiling", 1, 4)
    assert since(status, time.monotonic() - 5).preparing == pytest.approx(7.0, abs=1.0)
    assert since(replace(status, doing=""), time.monotonic() - 50).preparing == 2.0


def test_results_agree_and_bits_repeat(tmp_path: Path) -> None:
    for name, processes in (("one", 1), ("three", 3), ("again", 3), ("many", 99)):
        study(tmp_path / name, engine="stacked", processes=processes, rounds=3).run()
    assert bits(tmp_path / "three") == bits(tmp_path / "again")
    assert numbers(tmp_path / "three") == numbers(tmp_path / "again")
    one = models(tmp_path / "one")
    for name in ("three", "many"):
        for file, tensors in models(tmp_path / name).items():
            for key, tensor in tensors.items():
                torch.testing.assert_close(tensor, one[file][key], rtol=1e-3, atol=1e-5)


def test_where_a_group_trains_does_not_change_its_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"engine": "stacked", "processes": 2, "checkpoint_every": 2, "rounds": 3}
    study(tmp_path / "apart", **keys).run()
    monkeypatch.setattr("fedskip.study.train.Forked", InProcess)
    study(tmp_path / "here", **keys).run()
    assert bits(tmp_path / "apart") == bits(tmp_path / "here")


def test_resume_keeps_the_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shapes the bits, so a machine with more cores goes on with the old one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    keys = {"engine": "stacked", "checkpoint_every": 1, "methods": "fedavg, fedskip(period=2)"}
    study(tmp_path / "whole", rounds=3, **keys).run()
    study(tmp_path / "parts", rounds=2, **keys).run()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    study(tmp_path / "parts", rounds=2, **keys).resume(rounds=3)
    record = yaml.safe_load((tmp_path / "parts" / "study.yaml").read_text())["record"]
    [setting] = record["settings"].values()
    assert setting["machine"]["processes"] == 2
    assert len(setting["machine"]["sizes"]) == 2
    assert bits(tmp_path / "whole") == bits(tmp_path / "parts")


def test_nobody_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a study fails here, its processes end, and the folder is free."""
    held: list[int] = []
    made = Process.__init__

    def noted(self: Process, prepare: Any) -> None:
        made(self, prepare)
        held.append(self._forked.pid or 0)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Process, "__init__", noted)
    monkeypatch.setattr("fedskip.study.train.save_checkpoint", fail)
    few = {"methods": "fedavg, scaffold", "rounds": 1}
    broken = study(tmp_path / "out", engine="stacked", processes=2, **few)
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    assert len(held) == 2
    for pid in held:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    monkeypatch.undo()
    assert as_table(Study(tmp_path / "out", spec=broken.spec).resume().summary)


def test_a_column_with_empty_cells_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def partly(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.where(target == 0, float("nan"), 1.0)

    study(tmp_path / "s", metric=["accuracy", partly], rounds=2, processes=1).run()
    assert caplog.messages == [
        "x_partly of toy.FedAvg.s0 is undefined (nan) at round 1: such cells of history.csv are empty"
    ]
