"""Tasks given to devices that only pretend to work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from fedskip import InputError

pytest.importorskip("ray")

from fedskip.cluster import scheduler as module
from fedskip.cluster.actors import (
    Device,
    DeviceFacts,
    Ended,
    Failed,
    NotUsable,
    Worker,
    WorkerDied,
)
from fedskip.cluster.scheduler import Scheduler, Task

ONE, BESIDE = Device("n1", "one", "CPU", 0), Device("n1", "one", "CPU", 1)
TWO = Device("n2", "two", "CPU", 0)
FACTS = DeviceFacts({}, "a CPU", 1 << 40)
SILENCE = "silence"


class FakeActors:
    """Devices that say what `says` gives for a task on a device."""

    def __init__(self, says: Callable[[Device, Any], list[Any]], *devices: Device) -> None:
        self.says, self.there = says, list(devices)
        self.begun: list[tuple[Device, Any]] = []
        self.killed: list[Device] = []
        self.first: Callable[[Device], Any] = lambda device: FACTS  # what a new worker says

    def devices(self) -> list[Device]:
        return list(self.there)

    def start(self, device: Device) -> Worker:
        return Worker(device, None, iter([self.first(device)]))

    def run(self, worker: Worker, job: Any) -> None:
        self.begun.append((worker.device, job))
        worker.reply = iter([*self.says(worker.device, job), Ended()])

    def receive(self, workers: Iterable[Worker], seconds: float) -> Iterator[tuple[Worker, Any]]:
        for worker in workers:
            message = SILENCE if worker.reply is None else next(worker.reply, SILENCE)
            if message is not SILENCE:
                worker.facts = message if isinstance(message, DeviceFacts) else worker.facts
                yield worker, message

    def kill(self, worker: Worker) -> None:
        self.killed.append(worker.device)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFRESH", 0.0)
    monkeypatch.setattr(module, "REST", 0.0)


def scheduled(actors: FakeActors, *names: str) -> Scheduler:
    """Tasks of these names; those in capitals are large."""
    scheduler = Scheduler(actors)  # type: ignore[arg-type]
    scheduler.add(Task(name, lambda name=name: name, float(name.isupper())) for name in names)  # type: ignore[misc]
    return scheduler


def messages(scheduler: Scheduler) -> Iterator[tuple[Task, Device, Any]]:
    return filter(None, scheduler.messages())


def run(scheduler: Scheduler) -> list[tuple[str, str, Any]]:
    return [(task.name, device.host, message) for task, device, message in messages(scheduler)]


def test_all_are_done_and_large_ones_go_first() -> None:
    actors = FakeActors(lambda *_: ["hello"], ONE, TWO)
    found = run(scheduled(actors, "a", "b", "C"))
    assert [job for _, job in actors.begun] == ["C", "a", "b"]
    assert sorted(name for name, _, message in found if message == "hello") == ["C", "a", "b"]
    assert sum(isinstance(message, Ended) for *_, message in found) == 3


def test_no_more_workers_than_tasks() -> None:
    actors = FakeActors(lambda *_: ["hello"], ONE, BESIDE, TWO)
    scheduler = scheduled(actors, "a")
    run(scheduler)
    scheduler.close()
    assert actors.killed == [ONE]


def test_a_task_that_dies_begins_again_elsewhere() -> None:
    actors = FakeActors(
        lambda device, _: [Failed(WorkerDied("killed"))] if device == ONE else ["done"], ONE, TWO
    )
    scheduler = scheduled(actors, "a")
    run(scheduler)
    assert actors.begun[-1][0] == TWO
    assert not scheduler.set_aside
    assert ONE in actors.killed


def test_after_three_failures_it_is_set_aside_and_the_others_finish() -> None:
    wrong = Failed(RuntimeError("no such thing"))
    actors = FakeActors(lambda _, job: [wrong] if job == "a" else ["done"], ONE)
    scheduler = scheduled(actors, "a", "b")
    found = run(scheduler)
    assert [job for _, job in actors.begun].count("a") == 3
    assert [(task.name, task.error) for task in scheduler.set_aside] == [
        ("a", "RuntimeError: no such thing")
    ]
    assert ("b", "one", "done") in found


def test_failures_are_counted_since_the_last_checkpoint() -> None:
    actors, times = FakeActors(lambda *_: ["checkpoint", Failed(WorkerDied("killed"))], ONE), 0
    for task, _, message in messages(scheduled(actors, "a")):
        if message == "checkpoint":
            times += 1
            if times < 6:
                task.checkpoint()
    assert times == 7, "two more after the one that followed the last checkpoint"


def test_bad_input_is_tried_on_another_node_at_most() -> None:
    for there, tried in (([ONE], [ONE]), ([ONE, TWO], [ONE, TWO])):
        actors = FakeActors(lambda *_: [Failed(InputError("metric", "fails"))], *there)
        scheduler = scheduled(actors, "a")
        run(scheduler)
        assert [device for device, _ in actors.begun] == tried
        assert "metric fails" in scheduler.set_aside[0].error


BAD = [
    Failed(RuntimeError("ECC")),
    Failed(WorkerDied("killed")),
    Failed(InputError("init", "is not there")),
]


@pytest.mark.parametrize("failure", BAD)
@pytest.mark.parametrize("other", [BESIDE, TWO])
def test_a_bad_device_takes_no_task_down(failure: Any, other: Device) -> None:
    """It is always free while the other works; the last try of a task is elsewhere."""
    if other == BESIDE and isinstance(getattr(failure, "error", None), InputError):
        pytest.skip("bad input is not tried again on the same node")
    actors = FakeActors(lambda d, _: [failure] if d == ONE else ["work"] * 50, ONE, other)
    scheduler = scheduled(actors, *"abcdef")
    found = run(scheduler)
    assert not scheduler.set_aside
    assert {name for name, _, message in found if isinstance(message, Ended)} == {*"abcdef"}
    assert {device for device, _ in actors.begun} == {ONE, other}


def test_on_another_node_before_another_device_of_the_same() -> None:
    actors = FakeActors(
        lambda d, _: ["done"] if d == TWO else [Failed(RuntimeError())], ONE, BESIDE
    )
    scheduler = scheduled(actors, "a")
    for _, _, message in messages(scheduler):
        if isinstance(message, Failed):
            actors.there = [ONE, BESIDE, TWO]
    assert actors.begun[-1][0] == TWO
    assert len(actors.begun) <= 3
    assert not scheduler.set_aside


def test_a_worker_that_dies_as_it_starts_is_no_failure_of_a_task() -> None:
    actors, first = FakeActors(lambda *_: ["done"], ONE), iter([Failed(WorkerDied("killed"))] * 2)
    actors.first = lambda device: next(first, FACTS)
    scheduler = scheduled(actors, "a")
    assert ("a", "one", "done") in run(scheduler)
    assert not scheduler.set_aside
    actors.first = lambda device: Failed(WorkerDied("killed")) if device == ONE else FACTS
    actors.there = [ONE, TWO]
    scheduler = scheduled(actors, "a")
    run(scheduler)
    assert not scheduler.set_aside


def test_a_device_that_is_not_like_the_others_is_not_used() -> None:
    old = DeviceFacts({}, "old", 1 << 40)
    actors = FakeActors(lambda *_: ["done"], ONE, TWO)
    actors.first = lambda device: old if device == ONE else FACTS
    scheduler = scheduled(actors, "a", "b")
    assert scheduler.describe([ONE]) == {ONE: old}
    scheduler.use_only(lambda facts: "it is old" if facts is old else "")
    found = run(scheduler)
    assert scheduler.refused == {ONE: "it is old"}
    assert {host for _, host, message in found if message == "done"} == {"two"}


def test_a_device_that_refuses_a_task_is_not_used() -> None:
    actors = FakeActors(lambda d, _: [NotUsable("no compiler")] if d == TWO else ["done"], ONE, TWO)
    scheduler = scheduled(actors, "a", "b")
    found = run(scheduler)
    assert scheduler.refused == {TWO: "no compiler"}
    assert not scheduler.set_aside
    assert sum(message == "done" for *_, message in found) == 2


def test_without_a_device_that_can_be_used_it_ends_at_once() -> None:
    scheduler = scheduled(FakeActors(lambda *_: ["done"], ONE), "a")
    scheduler.use_only(lambda facts: "it is old")
    with pytest.raises(InputError, match=r"cluster has no device .* one CPU 0: it is old"):
        run(scheduler)


@pytest.mark.parametrize("failure", [BAD[0], BAD[2]])
def test_a_bad_device_while_others_use_the_other(
    failure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one is waited for, but not for ever."""
    actors = FakeActors(lambda d, _: [failure] if d == ONE else ["done"], ONE, TWO)
    polls = iter([SILENCE] * 20)
    actors.start = lambda device: Worker(  # type: ignore[method-assign]
        device, None, iter([FACTS]) if device == ONE else (next(polls, FACTS) for _ in range(21))
    )
    scheduler = scheduled(actors, "a", "b")
    found = run(scheduler)
    assert not scheduler.set_aside
    assert {(name, host) for name, host, message in found if message == "done"} == {
        ("a", "two"),
        ("b", "two"),
    }
    monkeypatch.setattr(module, "START_TIMEOUT", 0.05)
    actors.start = lambda device: Worker(  # type: ignore[method-assign]
        device, None, iter([FACTS]) if device == ONE else None
    )
    scheduler = scheduled(actors, "a")
    run(scheduler)
    assert [task.name for task in scheduler.set_aside] == ["a"]


def test_a_device_that_others_use_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_TIMEOUT", 0.01)
    actors = FakeActors(lambda *_: ["done"], ONE, TWO)
    start = actors.start
    actors.start = lambda d: Worker(d, None, None) if d == ONE else start(d)  # type: ignore[method-assign]
    assert ("a", "two", "done") in run(scheduled(actors, "a"))


def test_a_device_that_joins_is_used() -> None:
    actors = FakeActors(lambda *_: ["working"], ONE)
    for _, _, message in messages(scheduled(actors, *"abcd")):
        if message == "working":
            actors.there = [ONE, TWO]
    assert {device for device, _ in actors.begun} == {ONE, TWO}


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_TIMEOUT", 0.05)
    taken = FakeActors(lambda *_: [], ONE)
    taken.start = lambda device: Worker(device, None, None)  # type: ignore[method-assign]
    for actors in (FakeActors(lambda *_: []), taken):
        with pytest.raises(InputError, match="cluster has had no device"):
            run(scheduled(actors, "a"))


@pytest.mark.parametrize(("after_checkpoint", "limit"), [(True, "HOUR"), (False, "DAY")])
def test_a_worker_that_hangs_is_ended(
    monkeypatch: pytest.MonkeyPatch, after_checkpoint: bool, limit: str
) -> None:
    """Before the first checkpoint it may be silent for long."""
    monkeypatch.setattr(module, "PAUSES", 1)
    for name in ("HOUR", "DAY"):
        monkeypatch.setattr(module, name, 0.05 if name == limit else 1000.0)
    actors = FakeActors(
        lambda device, _: ["checkpoint", *[SILENCE] * (10**6 if device == ONE else 1)], ONE
    )
    died = []
    for task, _, message in messages(scheduled(actors, "a")):
        if message == "checkpoint" and after_checkpoint:
            task.checkpoint()
        if isinstance(message, Failed):
            died.append(str(message.error))
            actors.there = [TWO]
    assert len(died) == 1
    assert "said nothing for" in died[0]
    assert [device for device, _ in actors.begun] == [ONE, TWO]
    assert actors.killed == [ONE]


def test_a_slow_reader_calls_no_worker_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one that stands still for a while, as with Ctrl-Z."""
    for name in ("HOUR", "DAY"):
        monkeypatch.setattr(module, name, 0.05)
    monkeypatch.setattr(module, "PAUSES", 0)
    monkeypatch.setattr(module, "POLL", 0.01)
    actors = FakeActors(lambda *_: ["word"] * 3, ONE, TWO)
    for _, _, message in messages(scheduled(actors, "a", "b")):
        assert not isinstance(message, Failed)
        if message == "word":
            time.sleep(0.1)
    assert len(actors.begun) == 2


def test_who_stops_begins_nothing_new() -> None:
    actors = FakeActors(lambda *_: ["checkpoint", "more"], ONE)
    scheduler = scheduled(actors, "a", "b")
    for task, _, message in messages(scheduler):
        if message == "checkpoint":
            scheduler.start_no_more()
            scheduler.stop(task)
    assert [job for _, job in actors.begun] == ["a"]
    assert actors.killed == [ONE]
