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
from fedskip.engine.stepper import has_compiler
from fedskip.study.processes import AVAILABLE, Process, Respond, Tell, answers

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no safe fork on this system")


def answer(process: Process) -> Any:
    [(_, is_answer, content)] = answers([process])
    assert is_answer
    return content


def test_a_process_answers_and_ends() -> None:
    found = []

    def prepare(tell: object) -> object:
        found.append(os.getpid())
        return lambda question: (question + 1, list(found))

    process = Process(prepare)  # type: ignore[arg-type]
    for question in (1, 5):
        process.ask(question)
        number, [pid] = answer(process)
        assert number == question + 1
        assert pid != os.getpid()
    assert not found, "what happens there does not happen here"
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_stopping_is_the_parents_business() -> None:
    process = Process(lambda tell: lambda question: os.getpid())
    process.ask(0)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(answer(process), number)
        process.ask(0)
    assert answer(process)
    process.close()


def test_one_that_nobody_closes_does_not_keep_the_end_waiting() -> None:
    code = "from fedskip.study.processes import Process; one = Process(lambda tell: id); one.ask(0); one.receive()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_errors_travel() -> None:
    def fail(question: str) -> None:
        class Local(Exception):
            pass

        raise (
            InputError("field", "is wrong", 3, "mend it")
            if question == "input"
            else Local("strange")
        )

    process = Process(lambda tell: fail)
    process.ask("input")
    with pytest.raises(InputError, match=r"field is wrong, got 3. Mend it."):
        answer(process)
    process.ask("other")
    with pytest.raises(RuntimeError, match="Local: strange"):
        answer(process)
    process.close()


def test_a_process_that_dies_is_noticed() -> None:
    process = Process(lambda tell: lambda question: os.kill(os.getpid(), signal.SIGKILL))
    process.ask(1)
    with pytest.raises(RuntimeError, match="a training process ended with code -9"):
        answer(process)
    with pytest.raises(RuntimeError, match="a training process ended with code -9"):
        process.ask(2)


def test_a_process_tells_before_it_answers() -> None:
    def prepare(tell: Tell) -> Respond:
        def respond(question: int) -> int:
            for i in range(question):
                tell(i)
            return question

        return respond

    processes = [Process(prepare), Process(prepare)]
    for question in (3, 2):
        for process in processes:
            process.ask(question)
        said = list(answers(processes))
        assert {index: what for index, last, what in said if last} == {0: question, 1: question}
        for number in range(2):
            mine = [(last, what) for index, last, what in said if index == number]
            assert mine == [*((False, i) for i in range(question)), (True, question)]
    for process in processes:
        process.close()


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
def test_a_process_compiles_after_its_parent_has() -> None:
    """The compiler's threads are not process: waiting for them would take forever."""

    def compiled(number: float) -> float:
        import torch._inductor

        graph = make_fx(lambda x: (x * number,))(torch.ones(3))
        return float(torch._inductor.compile(graph, [torch.ones(3)])(torch.ones(3))[0][0])  # type: ignore[operator]

    numbers = [3.0 + time.time_ns() % 1_000_003, 4.0 + time.time_ns() % 1_000_003]  # in no cache
    assert compiled(numbers[0]) == pytest.approx(numbers[0])
    process = Process(lambda tell: compiled)
    process.ask(numbers[1])
    try:
        assert process.pipe.poll(120), "it waits for a thread that is not there"
        assert answer(process) == pytest.approx(numbers[1])
    finally:
        process.close()


def test_an_error_over_there_says_where_it_happened() -> None:
    def lookup(key: str) -> int:
        return {}[key]

    process = Process(lambda tell: lookup)
    process.ask("missing")
    with pytest.raises(KeyError) as error:
        answer(process)
    process.close()
    assert "in lookup" in error.value.__notes__[0]


def test_an_exit_in_a_process_is_an_error_here() -> None:
    process = Process(lambda tell: lambda question: sys.exit(0))
    process.ask(1)
    with pytest.raises(InputError, match=r"your code must not exit \(SystemExit: 0\)"):
        answer(process)
    process.close()
