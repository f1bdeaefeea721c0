"""Processes that answer questions, and no way to lose one's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from torch.fx.experimental.proxy_tensor import make_fx

from fedskip import InputError
from fedskip.engine.stacked.stepper import has_compiler
from fedskip.study.workers import AVAILABLE, Respond, Tell, Worker, answers

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no safe fork on this system")


def answer(worker: Worker) -> Any:
    [(_, found)] = answers([worker])
    return found


def test_a_process_answers_and_ends() -> None:
    found = []

    def prepare(tell: object) -> object:
        found.append(os.getpid())
        return lambda question: (question + 1, list(found))

    worker = Worker(prepare)  # type: ignore[arg-type]
    for question in (1, 5):
        worker.ask(question)
        number, [pid] = answer(worker)
        assert number == question + 1
        assert pid != os.getpid()
    assert not found, "what happens there does not happen here"
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_stopping_is_the_parents_business() -> None:
    worker = Worker(lambda tell: lambda question: os.getpid())
    worker.ask(0)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(answer(worker), number)
        worker.ask(0)
    assert answer(worker)
    worker.close()


def test_one_that_nobody_closes_does_not_keep_the_end_waiting() -> None:
    code = (
        "from fedskip.study.workers import Worker; one = Worker(lambda tell: id); one.ask(0); one.receive()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_errors_travel() -> None:
    def fail(question: str) -> None:
        class Local(Exception):
            pass

        raise InputError("field", "is wrong", 3, "mend it") if question == "input" else Local("strange")

    worker = Worker(lambda tell: fail)
    worker.ask("input")
    with pytest.raises(InputError, match=r"field is wrong, got 3. Mend it."):
        answer(worker)
    worker.ask("other")
    with pytest.raises(RuntimeError, match="Local: strange"):
        answer(worker)
    worker.close()


def test_a_process_that_dies_is_noticed() -> None:
    worker = Worker(lambda tell: lambda question: os.kill(os.getpid(), signal.SIGKILL))
    worker.ask(1)
    with pytest.raises(RuntimeError, match="a training process ended with code -9"):
        answer(worker)
    with pytest.raises(RuntimeError, match="a training process ended with code -9"):
        worker.ask(2)


def test_a_process_tells_before_it_answers() -> None:
    def prepare(tell: Tell) -> Respond:
        def respond(question: int) -> int:
            for i in range(question):
                tell(i)
            return question

        return respond

    workers, heard = [Worker(prepare), Worker(prepare)], list[tuple[int, int]]()
    for question in (3, 2):
        for worker in workers:
            worker.ask(question)
        heard.clear()
        found = dict(answers(workers, lambda index, what: heard.append((index, what))))
        assert found == dict.fromkeys(range(2), question)
        assert sorted(heard) == [(index, what) for index in range(2) for what in range(question)]
    for worker in workers:
        worker.close()


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
def test_a_process_compiles_after_its_parent_has() -> None:
    """The compiler's threads are not worker: waiting for them would take forever."""

    def compiled(number: float) -> float:
        import torch._inductor

        graph = make_fx(lambda x: (x * number,))(torch.ones(3))
        return float(torch._inductor.compile(graph, [torch.ones(3)])(torch.ones(3))[0][0])  # type: ignore[operator]

    numbers = [3.0 + time.time_ns() % 1_000_003, 4.0 + time.time_ns() % 1_000_003]  # in no cache
    assert compiled(numbers[0]) == pytest.approx(numbers[0])
    worker = Worker(lambda tell: compiled)
    worker.ask(numbers[1])
    try:
        assert worker.pipe.poll(120), "it waits for a thread that is not there"
        assert answer(worker) == pytest.approx(numbers[1])
    finally:
        worker.close()


def test_an_error_over_there_says_where_it_happened() -> None:
    def lookup(key: str) -> int:
        return {}[key]

    worker = Worker(lambda tell: lookup)
    worker.ask("missing")
    with pytest.raises(KeyError) as error:
        answer(worker)
    worker.close()
    assert "in lookup" in error.value.__notes__[0]
