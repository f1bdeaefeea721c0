"""Processes that answer questions: on a CPU, Python's lock keeps threads from sharing small steps."""

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

from fedskip.input.errors import portable
from fedskip.study.stops import SIGNALS

AVAILABLE = sys.platform == "linux"  # forking is not safe everywhere
Tell = Callable[[Any], None]
Respond = Callable[[Any], Any]  # a question's answer
Message = tuple[Literal["told", "answer", "error"], Any]


class ProcessEnded(RuntimeError):
    """A training process was killed: by the system, say, when memory ran out."""


class Worker:
    """A process that answers questions, forked from this one: it starts with all that is in memory here.

    It ends when this object is closed or this process ends, however that happens.
    """

    def __init__(self, prepare: Callable[[Tell], Respond]) -> None:
        """`prepare` is called in the new process and gives the function that answers questions.

        It gets a function that tells something before the answer is found.
        """
        self.pipe, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(
            target=_serve, args=(prepare, there, self.pipe, os.getpid()), daemon=True
        )
        with warnings.catch_warnings():
            # of other threads, which only draw progress and hold nothing that is used there
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        there.close()
        atexit.register(self.close)  # before multiprocessing asks it to end, and waits: it would not hear

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
        self._process.join()
        return ProcessEnded(f"a training process ended with code {self._process.exitcode}")

    def close(self) -> None:
        """End the process, also in the middle of a question."""
        atexit.unregister(self.close)
        self._process.kill()
        self._process.join()


def answers(
    workers: Sequence[Worker], heard: Callable[[int, Any], None] | None = None
) -> Iterator[tuple[int, Any]]:
    """What each worker answers to its last question, as it comes; an error over there is raised here.

    Workers are given by their place in the list. `heard` gets what they tell until then.
    """
    waiting: dict[Any, int] = {worker.pipe: index for index, worker in enumerate(workers)}
    while waiting:
        for pipe in wait(list(waiting)):
            kind, what = workers[waiting[pipe]].receive()
            if kind == "error":
                raise what
            if kind == "answer":
                yield waiting.pop(pipe), what
            elif heard is not None:
                heard(waiting[pipe], what)


def _serve(prepare: Callable[[Tell], Respond], there: Connection, here: Connection, parent: int) -> None:
    here.close()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # stopping is the parent's business
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed study leaves nobody behind
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
            respond = respond or prepare(partial(send, "told"))
            send("answer", respond(question))
        except Exception as error:
            send("error", portable(error, "In a training process"))
