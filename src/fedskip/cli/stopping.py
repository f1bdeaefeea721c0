"""How a study ends early on the command line: by a signal, or because the machine fails.

The last line says what is kept and how to go on. The exit code is 128 + the signal's number, or 1.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import typer

from fedskip.cli import output
from fedskip.cli.system_errors import explain, sentences
from fedskip.errors import InputError, resume_command
from fedskip.study import Interrupted, Study
from fedskip.study.processes import ProcessEnded
from fedskip.study.signals import (
    SIGNALS,
    Repeated,
    explained,
    handling,
    how_to_go_on,
    names_code,
)
from fedskip.study.train import GroupsFailed

LESS_MEMORY = (
    "a new study needs less with --set rows=N (models side by side), processes=1 or a smaller "
    "local.batch"
)
PATIENCE = 1.0  # seconds for the last line and for children, where a disk or a pipe hangs


@contextlib.contextmanager
def resumable(study: Study, grace: float | None = None) -> Iterator[None]:
    """Inside, whatever stops the study ends the command with a line on how to go on.

    `grace`: seconds after a signal in which the process has ended, at a checkpoint or not.
    """
    late = f"Stopped {grace:g} s after the signal, between checkpoints" if grace is not None else ""
    request = StopRequest(grace, lambda: sentences(late, *kept(study)))
    with request.heard():
        try:
            with explained(lambda: (study.out, study.spec)):
                yield
        except (Interrupted, OSError, MemoryError, RuntimeError) as error:
            request.wait_if_ending()
            if (reason := why_failed(error)) is not None:
                (what, fix), (safe, command) = reason, kept(study)
                less = [LESS_MEMORY] if "memory" in what else []
                text = sentences(what, safe, *less, f"{fix}, then {command}")
                typer.secho(f"error: {text}", fg="red", err=True)
                raise typer.Exit(1) from None
            if not isinstance(error, Interrupted):
                if request.number is None:
                    raise
                # the signal went to a compiler, say, as well
                error = Interrupted(how_to_go_on(study.out, study.spec), request.number)
            typer.secho(error.message(flags=True), fg="yellow", err=True)
            raise typer.Exit(128 + error.number) from None


def why_failed(error: BaseException) -> tuple[str, str] | None:
    """What is wrong and what helps, or None if neither the machine nor a worker failed."""
    if isinstance(error, Interrupted | BrokenPipeError):
        return None
    if isinstance(error, GroupsFailed):
        return str(error), "see to that"
    if isinstance(error, ProcessEnded):
        return f"{error}; perhaps the memory ran out", "free some"
    return explain(error)


def kept(study: Study) -> tuple[str, str]:
    """What is kept of a study that failed, and how to go on."""
    if not os.path.exists(study.out / "study.yaml"):
        return f"nothing of the study is in {study.out}", "run it again"
    rounds: list[str] = []
    with contextlib.suppress(OSError, InputError):
        last = study.folder.last_rounds().items()
        rounds = [f"{part} up to round {round}" for part, round in last if round]
    safe = f"kept: {', '.join(rounds)}" if rounds else "there is no checkpoint yet"
    return safe, f"go on with: {resume_command(study.out, names_code(study.spec))}"


class StopRequest:
    """The first signal that asked this process to stop, and its end after the grace."""

    def __init__(self, grace: float | None, last_line: Callable[[], str]) -> None:
        self.number: int | None = None  # of the signal
        self._grace, self._last_line = grace, last_line
        self._ending = self._over = False  # its time is up; the command has ended by itself
        self._terminals = [number for number in (1, 2) if os.isatty(number)]

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Inside, a signal raises KeyboardInterrupt with its number, unless a study handles it.

        A thread hears it at once. Python calls handlers only between two steps of the main thread,
        which may be minutes apart, while a library loads, compiles or waits for a network.
        """
        repeated = Repeated()

        def interrupt(number: int, _: Any) -> None:
            if not repeated(number):
                raise KeyboardInterrupt(number)

        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(reading,), daemon=True).start()
        try:
            with handling(interrupt):
                yield
        finally:
            self._over = True
            signal.set_wakeup_fd(before)
            os.close(writing)

    def _listen(self, reading: int) -> None:
        with open(reading, "rb", buffering=0) as numbers:
            while (byte := numbers.read(1)) and byte[0] not in SIGNALS:
                pass
        if not byte:
            return
        self.number = byte[0]
        if self.number == getattr(signal, "SIGHUP", None):
            for terminal in self._terminals:  # is closed: to write there is an error
                output.discard(terminal)
        if self._grace is not None:
            time.sleep(self._grace)
            self._end(128 + self.number)

    def _end(self, code: int) -> None:
        self._ending = True
        if not self._over:
            last = threading.Thread(target=self._print_last_line, daemon=True)
            last.start()
            last.join(PATIENCE)
        children = multiprocessing.active_children()
        for child in children:  # they hold the lock of the study's folder
            child.kill()
        for child in children:
            child.join(PATIENCE)
        os._exit(code)

    def _print_last_line(self) -> None:
        cursor = "\x1b[?25h" if self._terminals else ""  # the display of progress hides it
        os.write(2, f"\n{cursor}{self._last_line()}\n".encode())

    def wait_if_ending(self) -> None:
        """Once the grace is over, errors only follow from the end: nothing more is printed."""
        if self._ending:
            threading.Event().wait()
