"""Signals that ask a study to stop."""

import signal
import time

import pytest

from fedskip.study import Interrupted
from fedskip.study.stops import SAME, SIGNALS, Wishes, heard, stop_at_checkpoint


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def _taken() -> None:
    """Signals that are let through do not end the tests."""
    with heard(lambda number, _: raising(number)):
        yield


def raising(number: int) -> None:
    raise KeyboardInterrupt(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_waits_for_a_checkpoint(number: int, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_who_presses_twice_means_it(clock: list[float]) -> None:
    wishes = Wishes()
    assert [wishes.new(signal.SIGINT) for _ in range(2)] == [True, True]
    assert [wishes.new(signal.SIGTERM) for _ in range(2)] == [False, False]
    clock[0] += SAME + 0.1
    assert wishes.new(signal.SIGTERM)


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
