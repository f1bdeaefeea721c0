"""Signals that ask a study to stop: Ctrl-C, and what queues of clusters and closed terminals send."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from fedskip.report.live import console
from fedskip.study.interrupted import Interrupted

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
SAME = 1.0  # seconds: `timeout`, for one, sends its signal to a process and then to its group


class Wishes:
    """Tells a new wish to stop from one that was sent twice; who presses Ctrl-C twice means it."""

    def __init__(self) -> None:
        self._last = -math.inf

    def new(self, number: int) -> bool:
        now, last = time.monotonic(), self._last
        self._last = now
        return number == signal.SIGINT or now - last > SAME


@contextlib.contextmanager
def heard(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Inside, signals to stop go to a handler, but for those that are ignored: nohup and `&` want that."""
    found = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: was for number, was in found.items() if was is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was or signal.SIG_DFL)  # None: not Python's


class Stop:
    """Whether a study has been asked to stop."""

    number: int | None = None  # of the signal

    def at_checkpoint(self) -> None:
        """The study is at a checkpoint: it stops here, if it was asked to."""
        if self.number is not None:
            raise Interrupted(number=self.number)


@contextlib.contextmanager
def stop_at_checkpoint() -> Iterator[Stop]:
    """Inside, the first signal only asks to stop; the next one stops at once."""
    stop, wishes, inside = Stop(), Wishes(), contextlib.ExitStack()

    def note(number: int, _: Any) -> None:
        if not wishes.new(number):
            return
        if stop.number is not None:
            inside.close()
            signal.raise_signal(number)
            return
        stop.number = number
        press = "interrupt" if console().is_jupyter else "press Ctrl-C"
        again = press if number == signal.SIGINT else "send it"
        with contextlib.suppress(OSError, RuntimeError):  # the terminal is gone, or in the middle of a line
            print(f"\nStopping at the next checkpoint; {again} again to stop at once.", flush=True)

    with inside:
        if threading.current_thread() is threading.main_thread():  # others hear no signals
            inside.enter_context(heard(note))
        yield stop
