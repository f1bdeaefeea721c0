"""Work in processes of its own: on a CPU, Python's lock keeps threads from sharing small steps."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

AVAILABLE = sys.platform == "linux"  # forking is not safe everywhere


class Forked:
    """Questions that a process answers, forked from this one: it starts with all that is in memory here.

    It ends when this object or this process does, however that happens.
    """

    def __init__(self, prepare: Callable[[], Callable[[Any], Any]]) -> None:
        """`prepare` is called over there and gives what answers a question."""
        self._here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(
            target=_serve, args=(prepare, there, self._here, os.getpid()), daemon=True
        )
        with (
            warnings.catch_warnings()
        ):  # other threads only draw progress, and hold nothing that is used there
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        there.close()

    def ask(self, question: Any) -> None:
        self._here.send_bytes(pickle.dumps(question))

    def answer(self) -> Any:
        """The answer to the last question; an error over there is raised here."""
        try:
            found, error = pickle.loads(self._here.recv_bytes())
        except EOFError:
            self._process.join()
            raise RuntimeError(f"a training process ended with code {self._process.exitcode}") from None
        if error is not None:
            raise error
        return found

    def close(self) -> None:
        """End the process, also in the middle of a question."""
        self._process.kill()
        self._process.join()


def _serve(
    prepare: Callable[[], Callable[[Any], Any]], there: Connection, here: Connection, parent: int
) -> None:
    here.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # stopping is the parent's business
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed study leaves nobody behind
    if os.getppid() != parent:
        return
    torch.set_num_threads(1)  # the threads of the parent's pool were not forked
    respond = None
    while True:
        try:
            question = pickle.loads(there.recv_bytes())
        except EOFError:
            return
        try:
            respond = respond or prepare()
            found, error = respond(question), None
        except Exception as raised:
            found, error = None, _portable(raised)
        there.send_bytes(pickle.dumps((found, error)))


def _portable(error: Exception) -> Exception:
    """The error, or where it cannot travel one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
