"""Signals stop a study: Ctrl-C, SIGTERM from a queue, SIGHUP from a closed terminal.

The first signal lets the study train to its next checkpoint, the second stops it at once. Either way it
raises `Interrupted`, which says what was kept and how to resume.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedskip.config import StudySpec, dump, plain
from fedskip.config.tree import named_code
from fedskip.errors import either, render, resume_command
from fedskip.parsing import PYTHON
from fedskip.report.progress import console

SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
SAME = 1.0  # seconds; `timeout`, for one, signals a process and then its group


class Interrupted(KeyboardInterrupt):
    """A signal stopped the study. The message says how to resume it.

    It is a KeyboardInterrupt so that a loop over studies with `except Exception` ends, too.
    """

    def __init__(self, text: str = "", number: int = signal.SIGINT) -> None:
        super().__init__(text)
        self.number = int(number)  # of the signal

    def message(self, *, flags: bool = False) -> str:
        """The message for Python, or with `flags` for the command line."""
        return render(super().__str__(), flags=flags)

    def __str__(self) -> str:
        return self.message()

    def _render_traceback_(self) -> list[str]:
        """IPython shows this in place of a traceback."""
        return [str(self)]


class Stop:
    """Whether a study has been asked to stop."""

    number: int | None = None  # of the signal

    def at_checkpoint(self) -> None:
        """Called at every checkpoint: stops here if asked to."""
        if self.number is not None:
            raise Interrupted(number=self.number)


class Repeated:
    """Tells a second request to stop from one signal that was sent twice."""

    def __init__(self) -> None:
        self._last = -math.inf

    def __call__(self, number: int) -> bool:
        """Whether this signal only repeats the one before. Pressing Ctrl-C twice is two requests."""
        now, last = time.monotonic(), self._last
        self._last = now
        return number != signal.SIGINT and now - last <= SAME


@contextlib.contextmanager
def handling(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Inside, `handler` gets the signals in SIGNALS. Ignored ones stay ignored, as nohup and `&` want."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old or signal.SIG_DFL)  # None: was not set by Python


@contextlib.contextmanager
def stop_at_checkpoint() -> Iterator[Stop]:
    """Inside, the first signal is noted in the `Stop`, and the second raises at once."""
    stop, repeated, inside = Stop(), Repeated(), contextlib.ExitStack()

    def note(number: int, _: Any) -> None:
        if repeated(number):
            return
        if stop.number is not None:
            inside.close()
            signal.raise_signal(number)
            return
        stop.number = number
        press = "interrupt" if console().is_jupyter else "press Ctrl-C"
        again = press if number == signal.SIGINT else "send it"
        with contextlib.suppress(OSError, RuntimeError):  # the terminal is gone, or in mid-line
            print(f"\nStopping at the next checkpoint; {again} again to stop at once.", flush=True)

    with inside:
        if threading.current_thread() is threading.main_thread():  # others get no signals
            inside.enter_context(handling(note))
        yield stop


@contextlib.contextmanager
def explained(study: Callable[[], tuple[Path, StudySpec]]) -> Iterator[None]:
    """Inside, a KeyboardInterrupt becomes an `Interrupted` that says how to resume the study."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if isinstance(stop, Interrupted):
            if stop.args[0]:
                raise  # it says so already
            number, at_checkpoint = stop.number, True
        else:
            number = next((arg for arg in stop.args if isinstance(arg, int)), signal.SIGINT)
            at_checkpoint = False
        text = how_to_go_on(*study(), at_checkpoint=at_checkpoint)
        raise Interrupted(text, number) from None


def how_to_go_on(out: Path, spec: StudySpec, at_checkpoint: bool = False) -> str:
    """What a stopped study has kept, and how to resume it, in one line."""
    if not (out / "study.yaml").exists():
        return "Stopped before the study began; nothing was written."
    text = "Stopped before the first checkpoint. Start again"
    if at_checkpoint:
        text = "Stopped at a checkpoint. Go on"
    elif any((out / "checkpoints").glob("*")):
        text = "Stopped at once; the last checkpoint is kept. Go on"
    later = f"fedskip.resume({str(out)!r}{', trust=True' * names_code(spec)})"
    if any(mark in dump(spec) for mark in (PYTHON, "__main__:")):  # objects that no file holds
        later = f"Study({str(out)!r}, ...).resume() with the same arguments"
    return f"{text} with: {either(resume_command(out, names_code(spec)), f'study.resume(), or later {later}')}"


def names_code(spec: StudySpec) -> bool:
    """Whether a study names code, so that it needs trust to go on."""
    return any(True for _ in named_code(plain(spec)))
