"""Settings side by side, as they are drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedskip.report import abreast
from fedskip.report.abreast import Abreast
from fedskip.report.progress import At, Course, Shown, SideBySide, Status
from fedskip.report.units import Metric
from terminal import shown


class Work:
    """Two settings of two runs and ten rounds each, on some devices."""

    def __init__(self, devices: int = 2) -> None:
        self.done = {"cifar": 0.0, "femnist": 0.0}
        self.devices = [At(f"node{i} GPU 0", f"cifar~g{i}of{devices}", 100.0 * i) for i in range(devices)]
        courses = [self.course(name) for name in self.done]
        self.settings = SideBySide(courses, lambda: self.devices, lambda: (1, 4))

    def course(self, name: str) -> Course:
        runs = [Shown(f"{name}.{label}.s0", label, 0) for label in ("FedAvg", "MOON")]

        def status() -> Status:
            rounds = {run.name: self.done[name] for run in runs}
            return Status(rounds, frozenset(), int(20 * self.done[name]), 0.0)

        return Course(name, runs, 0, 10, Metric("accuracy", True, True), (), status, lambda: 0.0)


def drawn(watch: Abreast, height: int = 24) -> str:
    return shown([watch.screen("", height)])


def test_settings_devices_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(abreast.time, "monotonic", lambda: clock[0])
    work = Work()
    watch = Abreast(work.settings, [{"run": "cifar.MOON.s0", "test_accuracy": 0.25}])
    clock[0], work.done["cifar"] = 10.0, 5.0
    watch.note([{"run": "cifar.FedAvg.s0", "test_accuracy": 0.5}])
    text = drawn(watch)
    assert "cifar" in text
    assert "5/10" in text
    assert "50.0" in text
    assert "0/10" in text
    assert "node1 GPU 0" in text
    assert "starting" in text, "node0 has not said anything"
    assert "1 of 4 groups done" in text
    # 10 rounds of one and 20 of the other are left, 10 steps each, at what the devices do now
    assert " 100 client-steps/s on 2 devices" in text
    assert "left 0:03" in text
    # where none is at work: 100 client-steps in 10 s
    idle = Abreast(replace(work.settings, devices=list), [])
    idle._began, idle._before = 0.0, 0
    assert " 10 client-steps/s on 0 devices" in idle.line()
    assert "left 0:30" in idle.line()


def test_many_devices_share_a_line() -> None:
    text = drawn(Abreast(Work(devices=256).settings, []))
    assert "256 devices at work, 0 to 25,500 client-steps/s each" in text
    assert len(text.splitlines()) < 10


def test_where_nothing_can_be_drawn_lines_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(abreast.time, "monotonic", lambda: clock[0])
    watch, said = Abreast(Work().settings, []), 0
    for second in range(60):
        clock[0] = float(second)
        said += watch.at(2)
    assert said == 5
