"""Work in processes of its own: on a CPU, Python's lock keeps threads from sharing small steps."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

AVAILABLE = sys.platform == "linux"  # forking is not safe everywhere
Tell = Callable[[Any], None]
Respond = Callable[[Any], Any]  # a question's answer


class ProcessEnded(RuntimeError):
    """It was killed: by the system, say, where memory ran out."""


class Forked:
    """Questions that a process answers, forked from this one: it starts with all that is in memory here.

    It ends when this object or this process does, however that happens.
    """

    def __init__(self, prepare: Callable[[Tell], Respond]) -> None:
        """`prepare` is called over there and gives what answers a question.

        It gets a function with which to tell something before the answer is found.
        """
        self._here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(
            target=_serve, args=(prepare, there, self._here, os.getpid()), daemon=True
        )
        with warnings.catch_warnings():
            # of other threads, which only draw progress and hold nothing that is used there
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        there.close()

    def ask(self, question: Any) -> None:
        try:
            self._here.send_bytes(pickle.dumps(question))
        except ConnectionError:
            raise self._ended() from None

    def _receive(self) -> _Told | _Answer:
        try:
            found: _Told | _Answer = pickle.loads(self._here.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._ended() from None
        return found

    def _ended(self) -> ProcessEnded:
        self._process.join()
        return ProcessEnded(f"a training process ended with code {self._process.exitcode}")

    def close(self) -> None:
        """End the process, also in the middle of a question."""
        self._process.kill()
        self._process.join()


@dataclass(frozen=True)
class _Told:
    what: Any


@dataclass(frozen=True)
class _Answer:
    found: Any
    error: Exception | None = None


def answers(forked: Sequence[Forked], heard: Tell | None = None) -> Iterator[tuple[Forked, Any]]:
    """What each of them answers to its last question, as it comes; an error over there is raised here.

    `heard` gets what they tell until then.
    """
    waiting = {each._here: each for each in forked}
    while waiting:
        for pipe in wait(list(waiting)):
            assert isinstance(pipe, Connection)
            message = waiting[pipe]._receive()
            if isinstance(message, _Answer):
                if message.error is not None:
                    raise message.error
                yield waiting.pop(pipe), message.found
            elif heard is not None:
                heard(message.what)


def _serve(prepare: Callable[[Tell], Respond], there: Connection, here: Connection, parent: int) -> None:
    here.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # stopping is the parent's business
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed study leaves nobody behind
    if os.getppid() != parent:
        return
    torch.set_num_threads(1)  # the threads of the parent's pools were not forked
    compiler = sys.modules.get("torch._inductor.async_compile")
    if compiler is not None:
        compiler.AsyncCompile.pool.cache_clear()
    respond = None

    def send(message: _Told | _Answer) -> None:
        there.send_bytes(pickle.dumps(message))

    while True:
        try:
            question = pickle.loads(there.recv_bytes())
        except EOFError:
            return
        try:
            respond = respond or prepare(lambda what: send(_Told(what)))
            send(_Answer(respond(question)))
        except Exception as error:
            send(_Answer(None, _portable(error)))


def _portable(error: Exception) -> Exception:
    """The error, or where it cannot travel one that says the same; with where it happened."""
    found: Exception = error
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        found = RuntimeError(f"{type(error).__name__}: {error}")
    found.add_note("".join(["In a training process:\n", *traceback.format_exception(error)]))
    return found
