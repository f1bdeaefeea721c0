"""Runs of a stacked study in several processes: the same results, and no way to lose one's way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.fx.experimental.proxy_tensor import make_fx

from fedskip import InputError, Study
from fedskip.batch import Batch
from fedskip.engine.step import has_compiler
from fedskip.history import Row
from fedskip.processes import AVAILABLE, Forked, Respond, Tell, answers
from fedskip.progress import Silent
from test_study import numbers, study

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no safe fork on this system")


def models(out: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {file.name: load_file(file) for file in sorted((out / "models").iterdir())}


def bits(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((out / "models").iterdir())}


def answer(forked: Forked) -> Any:
    [(_, found)] = answers([forked])
    return found


def test_a_process_answers_and_ends() -> None:
    found = []

    def prepare(tell: object) -> object:
        found.append(os.getpid())
        return lambda question: (question + 1, list(found))

    forked = Forked(prepare)  # type: ignore[arg-type]
    for question in (1, 5):
        forked.ask(question)
        number, [pid] = answer(forked)
        assert number == question + 1
        assert pid != os.getpid()
    assert not found, "what happens there does not happen here"
    forked.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_errors_travel() -> None:
    def fail(question: str) -> None:
        class Local(Exception):
            pass

        raise InputError("field", "is wrong", 3, "mend it") if question == "input" else Local("strange")

    forked = Forked(lambda tell: fail)
    forked.ask("input")
    with pytest.raises(InputError, match=r"field is wrong, got 3. Mend it."):
        answer(forked)
    forked.ask("other")
    with pytest.raises(RuntimeError, match="Local: strange"):
        answer(forked)
    forked.close()


def test_a_process_that_dies_is_noticed() -> None:
    forked = Forked(lambda tell: lambda question: os.kill(os.getpid(), signal.SIGKILL))
    forked.ask(1)
    with pytest.raises(RuntimeError, match="a training process ended with code -9"):
        answer(forked)
    with pytest.raises(RuntimeError, match="a training process ended with code -9"):
        forked.ask(2)


def test_a_process_tells_before_it_answers() -> None:
    def prepare(tell: Tell) -> Respond:
        def respond(question: int) -> int:
            for i in range(question):
                tell(i)
            return question

        return respond

    forked = [Forked(prepare), Forked(prepare)]
    for question in (3, 2):
        for each in forked:
            each.ask(question)
        heard: list[int] = []
        assert dict(answers(forked, heard.append)) == dict.fromkeys(forked, question)
        assert sorted(heard) == sorted(2 * list(range(question)))
    for each in forked:
        each.close()


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
def test_a_process_compiles_after_its_parent_has() -> None:
    """The compiler's threads are not forked: waiting for them would take forever."""

    def compiled(number: float) -> float:
        import torch._inductor

        graph = make_fx(lambda x: (x * number,))(torch.ones(3))
        return float(torch._inductor.compile(graph, [torch.ones(3)])(torch.ones(3))[0][0])  # type: ignore[operator]

    numbers = [3.0 + time.time_ns() % 1_000_003, 4.0 + time.time_ns() % 1_000_003]  # in no cache
    assert compiled(numbers[0]) == pytest.approx(numbers[0])
    forked = Forked(lambda tell: compiled)
    forked.ask(numbers[1])
    try:
        assert forked._here.poll(120), "it waits for a thread that is not there"
        assert answer(forked) == pytest.approx(numbers[1])
    finally:
        forked.close()


def test_progress_moves_between_checkpoints(tmp_path: Path) -> None:
    class Watching(Silent):
        def setting(self, batch: Batch, rows: Iterable[Row]) -> None:
            self.batch, self.steps, self.rounds = batch, [0], [0.0]

        def recorded(self, rows: list[Row]) -> None:
            self.steps.append(self.batch.steps)
            self.rounds.append(max(entry.rounds_done for entry in self.batch.entries))

        def checkpoint(self, batch: Batch) -> None:
            self.at_checkpoint = len(self.steps), batch.steps

    watching = Watching()
    made = study(tmp_path / "apart", engine="stacked", processes=2, rounds=6, checkpoint_every=6)
    made.run(watching)
    told, steps = watching.at_checkpoint
    assert told > 6
    assert watching.steps == sorted(watching.steps)
    assert 0 < watching.steps[2] < steps
    assert watching.rounds == sorted(watching.rounds)
    assert any(0 < done < 6 for done in watching.rounds)
    alone = Watching()
    study(tmp_path / "alone", engine="stacked", processes=1, rounds=6, checkpoint_every=6).run(alone)
    assert alone.at_checkpoint[1] == steps
    for batch in (watching.batch, alone.batch):
        assert 0 < batch.preparing < batch.elapsed(), "tracing is not held against the pace"


def test_results_agree_and_bits_repeat(tmp_path: Path) -> None:
    for name, processes in (("one", 1), ("three", 3), ("again", 3), ("many", 99)):
        study(tmp_path / name, engine="stacked", processes=processes).run()
    assert bits(tmp_path / "three") == bits(tmp_path / "again")
    assert numbers(tmp_path / "three") == numbers(tmp_path / "again")
    one = models(tmp_path / "one")
    for name in ("three", "many"):
        for file, tensors in models(tmp_path / name).items():
            for key, tensor in tensors.items():
                torch.testing.assert_close(tensor, one[file][key], rtol=1e-3, atol=1e-5)


def test_resume_keeps_the_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shapes the bits, so a machine with more cores goes on with the old one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    study(tmp_path / "whole", engine="stacked", checkpoint_every=2, rounds=6).run()
    study(tmp_path / "parts", engine="stacked", checkpoint_every=2, rounds=4).run()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    begun = study(tmp_path / "parts", engine="stacked", checkpoint_every=2, rounds=4)
    begun.resume(rounds=6)
    record = yaml.safe_load((tmp_path / "parts" / "study.yaml").read_text())["record"]
    [setting] = record["settings"].values()
    assert setting["machine"]["processes"] == 2
    assert len(setting["machine"]["sizes"]) == 2
    assert bits(tmp_path / "whole") == bits(tmp_path / "parts")


def test_nobody_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a study fails here, its processes end, and the folder is free."""
    held: list[int] = []
    made = Forked.__init__

    def noted(self: Forked, prepare: Any) -> None:
        made(self, prepare)
        held.append(self._process.pid or 0)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Forked, "__init__", noted)
    monkeypatch.setattr("fedskip.study.save_checkpoint", fail)
    broken = study(tmp_path / "out", engine="stacked", processes=2)
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    assert len(held) == 2
    for pid in held:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    monkeypatch.undo()
    assert Study(tmp_path / "out", spec=broken.spec).resume().summary


def test_an_error_over_there_says_where_it_happened() -> None:
    def lookup(key: str) -> int:
        return {}[key]

    forked = Forked(lambda tell: lookup)
    forked.ask("missing")
    with pytest.raises(KeyError) as error:
        answer(forked)
    forked.close()
    assert "in lookup" in error.value.__notes__[0]
