"""A study that is stopped says how to go on."""

from __future__ import annotations

import signal
import traceback
from pathlib import Path

import numpy as np
import pytest

import fedskip
from fedskip.records.table import Row
from fedskip.study import Interrupted, Study
from studies import study, toy

FEW = {"methods": "fedavg", "seeds": 1, "rounds": 6, "checkpoint_every": 2, "processes": 1}


class Presses(fedskip.Progress):
    """Presses Ctrl-C, once or twice, when a round has been evaluated."""

    def __init__(self, round: int, times: int = 1) -> None:
        self.round, self.times = round, times

    def recorded(self, rows: list[Row]) -> None:
        if any(row["round"] == self.round for row in rows):
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


def stopped(made: Study, press: Presses) -> Interrupted:
    with pytest.raises(Interrupted) as caught:
        made.run(press)
    return caught.value


def test_at_a_checkpoint(tmp_path: Path) -> None:
    out, whole = tmp_path / "out", toy()
    np.savez(tmp_path / "toy.npz", x=whole.samples.x, y=whole.samples.y, client=whole.owner)
    named = {"data": str(tmp_path / "toy.npz"), "model": "perceptron"}  # what a file can hold
    error = stopped(study(out, **FEW, **named), Presses(1))
    assert str(error) == (
        f"Stopped at a checkpoint. Go on with: study.resume(), or later fedskip.resume({str(out)!r})"
    )
    assert error.message(flags=True) == f"Stopped at a checkpoint. Go on with: fedskip resume {out}"
    assert [row["rounds"] for row in fedskip.resume(out).summary] == [6]  # as it says


def test_at_once(tmp_path: Path) -> None:
    early = stopped(study(tmp_path / "early", **FEW), Presses(1, times=2))
    assert str(early).startswith("Stopped before the first checkpoint. Begin again with: study.resume(), ")
    late = study(tmp_path / "late", **FEW)
    said = str(stopped(late, Presses(3, times=2)))
    assert said.startswith("Stopped at once; the last checkpoint is kept. Go on with: study.resume(), or ")
    assert said.endswith(f"later Study({str(late.out)!r}, ...).resume() with the same arguments"), "objects"
    assert [row["rounds"] for row in late.resume().summary] == [6]


def test_before_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Study, "_prepare", pressed)
    with pytest.raises(Interrupted, match="Stopped before the study began; nothing was written"):
        study(tmp_path / "out").run()
    assert not (tmp_path / "out").exists()


def test_what_is_shown_is_short(tmp_path: Path) -> None:
    error = stopped(study(tmp_path / "out", **FEW), Presses(3, times=2))
    assert error._render_traceback_() == [str(error)]  # in a notebook
    inside = [frame for frame in traceback.extract_tb(error.__traceback__) if "fedskip" in frame.filename]
    assert len(inside) <= 4
    assert error.__suppress_context__


def test_loops_over_studies_end(tmp_path: Path) -> None:
    """Somebody who tries many goes on after an error, but not after Ctrl-C."""
    made = study(tmp_path / "out", **FEW)

    def many() -> None:
        try:
            made.run(Presses(1))
        except Exception:
            pytest.fail("the next one would begin")

    with pytest.raises(KeyboardInterrupt):
        many()
