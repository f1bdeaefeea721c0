"""Signals stop a study at a checkpoint or at once, and it says how to go on."""

from __future__ import annotations

import signal
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

import fedskip
from fedskip.records.table import Row
from fedskip.study import Interrupted, Study
from fedskip.study.signals import SAME, SIGNALS, Repeated, handling, stop_at_checkpoint
from studies import as_table, study, toy

FEW = {"methods": "fedavg", "seeds": 1, "rounds": 6, "checkpoint_every": 2, "processes": 1}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def _handled() -> None:
    """Signals that get through do not end the tests."""
    with handling(lambda number, _: raising(number)):
        yield


def raising(number: int) -> None:
    raise KeyboardInterrupt(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_waits_for_a_checkpoint(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    with stop_at_checkpoint() as stop:
        stop.at_checkpoint()
        signal.raise_signal(number)
        with pytest.raises(Interrupted) as caught:
            stop.at_checkpoint()
    assert caught.value.number == number
    assert signal.getsignal(number) == before
    assert "Stopping at the next checkpoint" in capsys.readouterr().out


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_one_stops_at_once(number: int, clock: list[float]) -> None:
    with stop_at_checkpoint() as stop:
        signal.raise_signal(number)
        clock[0] += SAME + 0.1
        with pytest.raises(KeyboardInterrupt, match=str(int(number))):
            signal.raise_signal(number)
        assert stop.number == number


def test_a_signal_that_is_sent_twice_counts_once(clock: list[float]) -> None:
    with stop_at_checkpoint() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
            clock[0] += SAME / 2
        assert stop.number == signal.SIGTERM


def test_pressing_ctrl_c_twice_is_two_requests(clock: list[float]) -> None:
    repeated = Repeated()
    assert [repeated(signal.SIGINT) for _ in range(2)] == [False, False]
    assert [repeated(signal.SIGTERM) for _ in range(2)] == [True, True]
    clock[0] += SAME + 0.1
    assert not repeated(signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_what_is_ignored_stays_ignored(number: int) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with stop_at_checkpoint() as stop:
            signal.raise_signal(number)
            stop.at_checkpoint()
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_terminal_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("builtins.print", gone)
    with stop_at_checkpoint() as stop:
        signal.raise_signal(signal.SIGHUP)
    assert stop.number == signal.SIGHUP


# --- what a stopped study says ---------------------------------------------------------------------------


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
    assert str(error).startswith("Stopped at a checkpoint")
    assert str(error).endswith(f"study.resume(), or later fedskip.resume({str(out)!r})")
    assert error.message(flags=True).endswith(f" with: fedskip resume {out}")
    assert [row["rounds"] for row in as_table(fedskip.resume(out).summary)] == [6]  # as it says


def test_at_once(tmp_path: Path) -> None:
    early = stopped(study(tmp_path / "early", **FEW), Presses(1, times=2))
    assert str(early).startswith("Stopped before the first checkpoint")
    assert "with: study.resume(), " in str(early)
    late = study(tmp_path / "late", **FEW)
    text = str(stopped(late, Presses(3, times=2)))
    assert text.startswith("Stopped at once; the last checkpoint is kept")
    assert text.endswith(f"later Study({str(late.out)!r}, ...).resume() with the same arguments"), (
        "objects"
    )
    assert [row["rounds"] for row in as_table(late.resume().summary)] == [6]


def test_before_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Study, "_prepare", pressed)
    with pytest.raises(Interrupted, match="nothing was written"):
        study(tmp_path / "out").run()
    assert not (tmp_path / "out").exists()


def test_what_is_shown_is_short(tmp_path: Path) -> None:
    error = stopped(study(tmp_path / "out", **FEW), Presses(3, times=2))
    assert error._render_traceback_() == [str(error)]  # in a notebook
    inside = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "fedskip" in frame.filename
    ]
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
