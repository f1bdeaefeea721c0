"""A study in a line, and for notebooks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedskip
from fedskip.spec import build, bundled
from studies import study


def test_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    both = {"settings": [{"name": "a"}, {"name": "b"}], "data": "synthetic", "name": "demo"}
    made = fedskip.Study(**both, methods="fedavg, moon", rounds=1000, seeds=3)
    assert repr(made) == "Study('demo': 2 settings × 2 methods × 3 seeds = 12 runs of 1,000 rounds, cpu)"
    quickstart = fedskip.Study(spec=build(bundled.load("quickstart")))
    assert repr(quickstart) == "Study('quickstart': 2 settings, 27 runs of 50 to 200 rounds, cpu)"
    assert repr(fedskip.Study(data="synthetic", methods="fedavg", device="cuda:1")) == (
        "Study('study': 1 method × 1 seed = 1 run, cuda:1)"
    )
    assert repr(fedskip.Study(data="synthetic")) == "Study('study': 0 methods × 1 seed, cpu)"


def test_with_its_folder(tmp_path: Path) -> None:
    made = study(tmp_path / "out", name="x", rounds=2)
    assert repr(made) == f"Study('x': 6 methods × 2 seeds = 12 runs of 2 rounds, cpu, in {tmp_path / 'out'})"


def test_as_html(tmp_path: Path) -> None:
    made = study(tmp_path / "out", methods="fedavg, fedskip(period=3)", partition="natural")
    shown = made._repr_html_()
    cells = re.findall(r"<td>(.*?)</td>", shown)
    assert cells == ["toy", "toy", "natural", "Net", "4", "fedavg, fedskip(period=3)", "0, 1", "7"]
    assert not re.search("<script|style|color", shown)


def test_settings_and_drafts_are_short(tmp_path: Path) -> None:
    made = study(tmp_path / "out", methods="fedavg", seeds=1, rounds=1)
    [draft] = made.spec.settings
    assert repr(draft) == "Draft('toy': 1 method × 1 seed = 1 run of 1 round)"
    resolved = draft.resolved({})
    assert repr(resolved) == "Setting('toy': 1 method × 1 seed = 1 run of 1 round)"
