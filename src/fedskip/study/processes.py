"""Forked processes that answer questions: on a CPU, Python's lock keeps threads from sharing small steps."""

import atexit
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import torch

from fedskip.errors import picklable
from fedskip.study.signals import SIGNALS
from fedskip.user_code import contained

AVAILABLE = sys.platform == "linux"  # forking is not safe everywhere
Tell = Callable[[Any], None]
Respond = Callable[[Any], Any]  # a question's answer
Message = tuple[Literal["message", "answer", "error"], Any]


class ProcessEnded(RuntimeError):
    """A training process was killed: by the system, say, when memory ran out."""


class Process:
    """A process that answers questions, forked from this one: it starts with all that is in memory here.

    It ends when this object is closed or this process ends, however that happens.
    """

    def __init__(self, prepare: Callable[[Tell], Respond]) -> None:
        """`prepare` is called in the new process and gives the function that answers questions.

        It gets a function that sends a message before the answer is found.
        """
        self.pipe, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._forked = context.Process(
            target=_serve, args=(prepare, there, self.pipe, os.getpid()), daemon=True
        )
        with warnings.catch_warnings():
            # of other threads, which only draw progress and hold nothing that is used there
            warnings.simplefilter("ignore", DeprecationWarning)
            self._forked.start()
        there.close()
        # before multiprocessing asks it to end, and waits: it would not hear
        atexit.register(self.close)

    def ask(self, question: Any) -> None:
        try:
            self.pipe.send_bytes(pickle.dumps(question))
        except ConnectionError:
            raise self._ended() from None

    def receive(self) -> Message:
        try:
            message: Message = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._ended() from None
        return message

    def _ended(self) -> ProcessEnded:
        self._forked.join()
        return ProcessEnded(f"a training process ended with code {self._forked.exitcode}")

    def close(self) -> None:
        """End the process, also in the middle of a question."""
        atexit.unregister(self.close)
        self._forked.kill()
        self._forked.join()


def answers(processes: Sequence[Process]) -> Iterator[tuple[int, bool, Any]]:
    """What processes say, as it comes, until each has answered its last question.

    Gives the place of the process in the list, whether this is its answer, and what it says. An error over
    there is raised here.
    """
    waiting: dict[Any, int] = {process.pipe: index for index, process in enumerate(processes)}
    while waiting:
        for pipe in wait(list(waiting)):
            index = waiting[pipe]
            kind, content = processes[index].receive()
            if kind == "error":
                raise content
            if kind == "answer":
                del waiting[pipe]
            yield index, kind == "answer", content


def _serve(
    prepare: Callable[[Tell], Respond], there: Connection, here: Connection, parent: int
) -> None:
    here.close()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # stopping is the parent's business
    # PR_SET_PDEATHSIG: a killed study leaves nobody behind
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        return
    torch.set_num_threads(1)  # the threads of the parent's pools were not forked
    compiler = sys.modules.get("torch._inductor.async_compile")
    if compiler is not None:
        compiler.AsyncCompile.pool.cache_clear()
    respond = None

    def send(*message: Any) -> None:
        there.send_bytes(pickle.dumps(message))

    while True:
        try:
            question = pickle.loads(there.recv_bytes())
        except EOFError:
            return
        try:
            with contained():
                respond = respond or prepare(partial(send, "message"))
                answer = respond(question)
            send("answer", answer)
        except Exception as error:
            send("error", picklable(error, "In a training process"))
