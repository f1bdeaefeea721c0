"""`benchmarks/speed.py` runs, and counts what a step costs."""

from __future__ import annotations

import json

import pytest

import speed
from fedskip.errors import InputError
from fedskip.study.machine import prepared_setting


def test_the_last_line_is_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, "TURNS", 1)
    monkeypatch.setitem(speed.SECONDS, "cpu", 0.05)
    speed.measure("synthetic", rows=10, compile=False, processes=1, device="auto")
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["rows"] == 10
    for who in ("plain", "loop", "stacked"):
        assert found[f"{who}_steps_per_s"] > 0
    ratio = found["stacked_steps_per_s"] / found["plain_steps_per_s"]
    assert found["speedup"] == pytest.approx(ratio, abs=0.01)


def test_rows_are_whole_cohorts() -> None:
    with pytest.raises(InputError, match=r"rows must be a multiple of 10.*got 15"):
        speed.measure("synthetic", rows=15)


def test_what_an_lstm_costs() -> None:
    """Torch counts nothing of a fused one."""
    task = prepared_setting(speed.CASES["lstm"].study(10, device="cpu"))[0].task
    flop, batch_bytes = speed.cost_of(task)
    lstm = task.module.get_submodule("lstm")
    weights = sum(w.numel() for name, w in lstm.named_parameters() if name.startswith("weight"))
    assert batch_bytes == 64 * 80 * 8
    forward = (
        2 * 64 * 80 * weights
    )  # a multiplication and an addition for each weight, sample and time step
    assert 2.9 * forward < flop < 3.3 * forward
