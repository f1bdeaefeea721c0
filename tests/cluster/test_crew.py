"""Errands handed out, with devices that only pretend."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from fedskip import InputError
from fedskip.cluster import crew as module
from fedskip.cluster.crew import Crew
from fedskip.cluster.errands import (
    Again,
    Began,
    Device,
    Ended,
    Errand,
    Failed,
    Lost,
    NotStarted,
    SetAside,
    Unfit,
)  # fmt: skip

ONE, TWO = Device("n1", "one", "CPU", 0), Device("n2", "two", "CPU", 0)


@dataclass(eq=False)
class Said:
    device: Device
    words: Iterator[Any]


class Pretends:
    """Devices that say what they are told to: `says` gives the words of an errand on a device."""

    def __init__(self, says: Callable[[Device, Any], list[Any]], there: list[Device]) -> None:
        self.says, self.there, self.begun, self.ended = (
            says,
            there,
            list[tuple[Device, Any]](),
            list[Device](),
        )

    def devices(self) -> list[Device]:
        return list(self.there)

    def begin(self, device: Device, argument: Any) -> Said:
        self.begun.append((device, argument))
        return Said(device, iter([Began({}), *self.says(device, argument), Ended()]))

    def heard(self, talks: list[Said], seconds: float) -> list[tuple[Said, Any]]:
        return [(talk, next(talk.words)) for talk in talks]

    def end(self, device: Device) -> None:
        self.ended.append(device)

    def put(self, thing: Any) -> Any:
        return thing


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK", 0.0)
    monkeypatch.setattr(module, "REST", 0.01)


def played(hall: Pretends, *names: str, fits: Any = lambda device, facts: "") -> tuple[Crew, list[Any]]:
    crew = Crew(hall, fits)
    crew.add(Errand(name, lambda name=name: name, size=float(name.isupper())) for name in names)  # type: ignore[misc]
    return crew, [(news.errand.name, news.device.host, news.what) for news in crew.news() if news is not None]


def test_all_are_done_and_large_ones_go_first() -> None:
    hall = Pretends(lambda device, argument: ["hello"], [ONE, TWO])
    _, news = played(hall, "a", "b", "C")
    assert [argument for _, argument in hall.begun] == ["C", "a", "b"]
    assert sorted((name, what) for name, _, what in news if what == "hello") == [
        ("C", "hello"), ("a", "hello"), ("b", "hello"),
    ]  # fmt: skip
    assert sum(isinstance(what, Ended) for *_, what in news) == 3


def test_one_that_is_lost_begins_again_elsewhere() -> None:
    hall = Pretends(lambda device, _: [Lost("its node died")] if device == ONE else ["done"], [ONE, TWO])
    crew, _ = played(hall, "a")
    assert [device for device, _ in hall.begun] == [ONE, TWO]
    assert not crew.aside
    assert ONE in hall.ended


def test_after_three_failures_it_is_set_aside_and_the_others_finish() -> None:
    wrong = RuntimeError("no such thing")
    hall = Pretends(lambda _, argument: [Failed(wrong)] if argument == "a" else ["done"], [ONE])
    crew, news = played(hall, "a", "b")
    assert [argument for _, argument in hall.begun].count("a") == 3
    assert [errand.name for errand in crew.aside] == ["a"]
    assert [what.why for *_, what in news if isinstance(what, SetAside)] == ["RuntimeError: no such thing"]
    assert ("b", "one", "done") in news


def test_failures_are_counted_since_it_last_came_forward() -> None:
    hall, times = Pretends(lambda *_: ["checkpoint", Lost("killed")], [ONE]), 0
    crew = Crew(hall)
    crew.add([Errand("a", lambda: "a")])
    for news in crew.news():
        if news is not None and news.what == "checkpoint":
            times += 1
            if times < 6:
                news.errand.came_forward()
    assert times == 7, "two more after the one that followed the last that came forward"


def test_bad_input_is_tried_on_another_node_at_most() -> None:
    for there, tried in (([ONE], [ONE]), ([ONE, TWO], [ONE, TWO])):
        hall = Pretends(lambda *_: [Failed(InputError("metric", "fails"))], there)
        crew, _ = played(hall, "a")
        assert [device for device, _ in hall.begun] == tried
        assert "metric fails" in crew.aside[0].why


@pytest.mark.parametrize(
    "what", [Failed(RuntimeError("ECC")), Lost("killed"), Failed(InputError("init", "is not there"))]
)
def test_a_bad_device_takes_no_errand_down(what: Any) -> None:
    """It is always free while the other works; the last try of an errand is elsewhere."""
    hall = Pretends(lambda device, _: [what] if device == ONE else ["work"] * 50, [ONE, TWO])
    crew, news = played(hall, *"abcdef")
    assert not crew.aside
    assert {name for name, host, said in news if isinstance(said, Ended)} == {*"abcdef"}
    assert {host for _, host, said in news if isinstance(said, Ended)} == {"two"}


def test_on_another_node_before_another_device_of_the_same() -> None:
    beside = Device("n1", "one", "CPU", 1)
    hall = Pretends(lambda device, _: ["done"] if device == TWO else [Failed(RuntimeError())], [ONE, beside])
    crew = Crew(hall)
    crew.add([Errand("a", lambda: "a")])
    for news in crew.news():
        if news is not None and isinstance(news.what, Failed):
            hall.there = [ONE, beside, TWO]
    assert [device for device, _ in hall.begun][-1] == TWO
    assert len(hall.begun) <= 3
    assert not crew.aside


def test_a_worker_that_does_not_start_is_no_failure_of_its_errand() -> None:
    hall = Pretends(lambda *_: ["done"], [ONE])
    begin, times = hall.begin, iter(range(5))
    hall.begin = lambda device, argument: (  # type: ignore[method-assign]
        Said(device, iter([NotStarted("taken")]))
        if next(times, None) is not None
        else begin(device, argument)
    )
    crew, news = played(hall, "a")
    assert not crew.aside
    assert ("a", "one", "done") in news


def test_a_device_that_does_not_fit_is_left_out() -> None:
    hall = Pretends(lambda *_: ["done"], [ONE, TWO])
    crew, news = played(hall, "a", "b", fits=lambda device, _: "it is old" if device == ONE else "")
    assert crew.unfit == {ONE: "it is old"}
    assert {host for _, host, what in news if what == "done"} == {"two"}
    hall = Pretends(lambda device, _: [Unfit("no compiler")] if device == TWO else ["done"], [ONE, TWO])
    crew, news = played(hall, "a", "b")
    assert crew.unfit == {TWO: "no compiler"}
    assert not crew.aside


def test_without_a_device_that_can_be_used_it_ends_at_once() -> None:
    with pytest.raises(InputError, match="has no device that can be used; one CPU 0: it is old"):
        played(Pretends(lambda *_: ["done"], [ONE]), "a", fits=lambda *_: "it is old")


@pytest.mark.parametrize("what", [Failed(RuntimeError("ECC")), Failed(InputError("init", "is not there"))])
def test_a_bad_device_while_the_other_is_taken(what: Any) -> None:
    """That one is waited for."""
    hall = Pretends(lambda device, _: [what] if device == ONE else ["done"], [ONE, TWO])
    begin, misses = hall.begin, iter(range(2))

    def taken(device: Device, argument: Any) -> Said:
        if device == TWO and next(misses, None) is not None:
            return Said(device, iter([NotStarted("taken")]))
        return begin(device, argument)

    hall.begin = taken  # type: ignore[method-assign]
    crew, news = played(hall, "a", "b")
    assert not crew.aside
    assert {name for name, host, said in news if said == "done"} == {"a", "b"}


def test_nobody_waits_for_a_device_that_is_always_taken() -> None:
    failures = iter(range(2))
    hall = Pretends(
        lambda *_: [Failed(RuntimeError())] if next(failures, None) is not None else ["done"], [ONE, TWO]
    )
    begin = hall.begin
    hall.begin = lambda device, argument: (  # type: ignore[method-assign]
        Said(device, iter([NotStarted("taken")])) if device == TWO else begin(device, argument)
    )
    _, news = played(hall, "a")
    assert ("a", "one", "done") in news


def test_what_is_lacking_is_brought() -> None:
    brought: list[str] = []
    hall = Pretends(lambda *_: ["done"] if brought else [Again("data")], [ONE])
    crew = Crew(hall)
    crew.add([Errand("a", lambda: "a")])
    for news in crew.news():
        if news is not None and isinstance(news.what, Again):
            brought.append(news.what.lacks)
    assert brought == ["data"]
    assert len(hall.begun) == 2


def test_a_device_that_joins_is_used() -> None:
    hall = Pretends(lambda *_: ["working"], [ONE])
    crew = Crew(hall)
    crew.add(Errand(name, lambda name=name: name) for name in "abcd")  # type: ignore[misc]
    for news in crew.news():
        if news is not None and news.what == "working":
            hall.there = [ONE, TWO]
    assert {device for device, _ in hall.begun} == {ONE, TWO}


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    taken = Pretends(lambda *_: [], [ONE])
    taken.begin = lambda device, _: Said(device, iter([NotStarted("taken")]))  # type: ignore[method-assign]
    for hall in (Pretends(lambda *_: [], []), taken):
        with pytest.raises(InputError, match="has had no device to train on"):
            played(hall, "a")


def test_a_worker_that_hangs_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first it may think for long; when it is known how long words take, not any more."""
    monkeypatch.setattr(module, "PAUSES", 1)

    class Hangs(Pretends):
        def heard(self, talks: list[Said], seconds: float) -> list[tuple[Said, Any]]:
            return [(talk, what) for talk in talks if (what := next(talk.words)) != "silence"]

    for came_forward, known in ((True, "HOUR"), (False, "DAY")):
        for name in ("HOUR", "DAY"):
            monkeypatch.setattr(module, name, 0.05 if name == known else 1000.0)
        hall = Hangs(lambda device, _: ["checkpoint", *["silence"] * (10**6 if device == ONE else 1)], [ONE])
        crew, lost = Crew(hall), list[Any]()
        crew.add([Errand("a", lambda: "a")])
        for news in crew.news():
            if news is not None and news.what == "checkpoint" and came_forward:
                news.errand.came_forward()
            if news is not None and isinstance(news.what, Lost):
                lost.append(news.what.why)
                hall.there = [TWO]
        assert len(lost) == 1
        assert lost[0].startswith("its worker has said nothing for ")
        assert lost[0].endswith("h: it hangs")
        assert [device for device, _ in hall.begun] == [ONE, TWO]
        assert hall.ended == [ONE]


def test_who_listens_slowly_calls_nobody_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or stands still for a while, as with Ctrl-Z."""
    for name in ("HOUR", "DAY"):
        monkeypatch.setattr(module, name, 0.05)
    monkeypatch.setattr(module, "PAUSES", 0)
    monkeypatch.setattr(module, "BEAT", 0.01)
    hall = Pretends(lambda *_: ["word"] * 3, [ONE, TWO])
    crew = Crew(hall)
    crew.add(Errand(name, lambda: "a") for name in "ab")
    for news in crew.news():
        assert news is None or not isinstance(news.what, Lost)
        if news is not None and news.what == "word":
            time.sleep(0.1)
    assert len(hall.begun) == 2


def test_who_stops_begins_nothing_new() -> None:
    hall = Pretends(lambda *_: ["checkpoint", "more"], [ONE])
    crew = Crew(hall)
    crew.add(Errand(name, lambda name=name: name) for name in "ab")  # type: ignore[misc]
    for news in crew.news():
        if news is not None and news.what == "checkpoint":
            crew.begin_no_more()
            crew.leave(news.errand)
    assert [argument for _, argument in hall.begun] == ["a"]
    assert hall.ended == [ONE]
