"""Signals that ask a command to stop: how long that may take, and the exit code.

A study goes on to its next checkpoint (`study/stops.py`). With `--grace` the process ends after so many
seconds in any case. Its folder is whole at every moment, so nothing is lost but what came after the last
checkpoint. The exit code is 128 + the signal's number, as shells have it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from fedskip.cli import streams
from fedskip.study.stops import SIGNALS, Wishes, heard

AT_MOST = 1.0  # seconds that last words may take, where a disk or a pipe hangs, and a process to end


class Asked:
    """The signal that first asked this process to stop."""

    number: int | None = None
    ending = False  # its time is up
    over = False  # the command has ended, and its process is about to

    def __init__(self, grace: float | None, last_words: Callable[[], str]) -> None:
        """`grace`: the process ends so many seconds later, after `last_words`; None: when it is ready to."""
        self.grace, self.last_words = grace, last_words
        self.terminals = [number for number in (1, 2) if os.isatty(number)]

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, signals are heard whatever Python is busy with.

        Python calls handlers between two steps of its main thread. These may be far apart: a library loads,
        compiles or waits for a network. A wakeup descriptor is written to at once, and a thread reads it.
        """
        here, there = socket.socketpair()
        there.setblocking(False)
        before = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(here,), daemon=True).start()
        try:
            yield
        finally:
            self.over = True
            signal.set_wakeup_fd(before)
            there.close()

    def _listen(self, here: socket.socket) -> None:
        with here:
            while self.number is None:
                numbers = here.recv(1)
                if not numbers:
                    return
                self.number = numbers[0] if numbers[0] in SIGNALS else None
        if self.number == getattr(signal, "SIGHUP", None):
            streams.hang_up(self.terminals)
        if self.grace is not None:
            threading.Event().wait(self.grace)
            self._end(128 + self.number)

    def give_way(self) -> None:
        """Where the time is up, this is the end of the caller: whatever it meant to say follows from that."""
        if self.ending:
            threading.Event().wait()

    def _end(self, code: int) -> None:
        self.ending = True
        if not self.over:
            say = threading.Thread(target=self._say, daemon=True)
            say.start()
            say.join(AT_MOST)
        children = multiprocessing.active_children()
        for child in children:  # which hold on to the folder's lock
            child.kill()
        for child in children:
            child.join(AT_MOST)
        os._exit(code)

    def _say(self) -> None:
        shown = "\x1b[?25h" if self.terminals else ""  # progress hides the cursor
        os.write(2, f"\n{shown}{self.last_words()}\n".encode())


@contextlib.contextmanager
def stoppable(grace: float | None, last_words: Callable[[], str]) -> Iterator[Asked]:
    """Inside, signals raise KeyboardInterrupt, which holds their number, unless a study takes them."""
    asked, wishes = Asked(grace, last_words), Wishes()

    def stop(number: int, _: FrameType | None) -> None:
        if wishes.new(number):
            raise KeyboardInterrupt(number)

    with contextlib.ExitStack() as inside:
        if threading.current_thread() is threading.main_thread():
            inside.enter_context(asked.listening())
            inside.enter_context(heard(stop))
        yield asked
