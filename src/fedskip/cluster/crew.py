"""Errands handed out to devices: large ones first, again after a failure, aside after three."""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fedskip.cluster.errands import (
    Again,
    Began,
    Device,
    Ended,
    Errand,
    Facts,
    Failed,
    Hall,
    Lost,
    News,
    SetAside,
    Talk,
    Unfit,
)  # fmt: skip
from fedskip.input.errors import InputError, said

TRIES = 3  # of an errand that does not come forward
BEAT = 0.5  # seconds between two looks at who has said something
LOOK = 2.0  # and at which devices there are
REST = 20.0  # seconds that a device is left alone after it lost its worker
PATIENCE = 600.0  # seconds without any device after which nobody waits any more
HOUR, DAY = 3600.0, 86400.0  # seconds of silence after which a worker hangs: at least, and at first
PAUSES = 20  # and at least so many times the longest pause that there was

log = logging.getLogger(__name__)
Fits = Callable[[Device, Facts], str]  # why a device is not used, or nothing


class Crew:
    """Hands out errands."""

    def __init__(self, hall: Hall, fits: Fits = lambda device, facts: "") -> None:
        self.hall, self.fits = hall, fits
        self.unfit: dict[Device, str] = {}  # and why
        self.aside: list[Errand] = []
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, Errand]] = []  # a heap
        self._talks: dict[Talk, Errand] = {}
        self._spoke: dict[Talk, float] = {}  # when it last did
        self._pause = 0.0  # the longest between two words
        self._free: list[Device] = []  # a heap
        self._known: set[Device] = set()
        self._resting: dict[Device, float] = {}  # until then
        self._looked = -LOOK
        self._lonely = time.monotonic()  # since when there has been no device
        self._open = True

    @property
    def under_way(self) -> list[tuple[Errand, Device]]:
        return [(errand, talk.device) for talk, errand in self._talks.items()]

    def add(self, errands: Iterable[Errand]) -> None:
        for errand in errands:
            heapq.heappush(self._waiting, (-errand.size, next(self._order), errand))

    def begin_no_more(self) -> None:
        """What is under way goes on; nothing else begins."""
        self._open = False

    def leave(self, errand: Errand) -> None:
        """End an errand where it is."""
        for talk, known in list(self._talks.items()):
            if known is errand:
                del self._talks[talk], self._spoke[talk]
                self.hall.end(talk.device)

    def news(self) -> Iterator[News | None]:
        """All that is said until all errands are done or set aside; None: a moment has passed."""
        while self._talks or (self._waiting and self._open):
            self._look()
            self._hand_out()
            for talk, what in [*self.hall.heard(list(self._talks), BEAT), *self._hanging()]:
                if talk in self._talks:  # who listens may have ended it
                    yield from self._heard(talk, what)
            yield None

    # --- devices --------------------------------------------------------------------------------------

    def _look(self) -> None:
        """See which devices there are: nodes come and go."""
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            there = set(self.hall.devices()) - self.unfit.keys()
            for device in there - self._known:
                heapq.heappush(self._free, device)
            self._known = there
        for device in [device for device, until in self._resting.items() if until <= now]:
            del self._resting[device]
            heapq.heappush(self._free, device)
        if self._known:
            self._lonely = now
        elif now - self._lonely > PATIENCE:
            fix = "start nodes that are like those before, then resume the study"
            raise InputError("cluster", f"has had no device to train on for {PATIENCE:.0f} s", fix=fix)

    def _hand_out(self) -> None:
        while self._open and self._waiting and self._free:
            device = heapq.heappop(self._free)
            if device in self._known:
                *_, errand = heapq.heappop(self._waiting)
                talk = self.hall.begin(device, errand.argument())
                self._talks[talk], self._spoke[talk] = errand, time.monotonic()

    def _release(self, talk: Talk, rest: float = 0.0) -> Errand:
        errand = self._talks.pop(talk)
        del self._spoke[talk]
        if rest:
            self._resting[talk.device] = time.monotonic() + rest
        elif talk.device in self._known:
            heapq.heappush(self._free, talk.device)
        return errand

    def _dismiss(self, device: Device, why: str) -> None:
        """Use a device no more."""
        log.warning("%s is not used: %s", device, why)
        self.unfit[device] = why
        self._known.discard(device)
        self.hall.end(device)

    # --- what is said ---------------------------------------------------------------------------------

    def _hanging(self) -> Iterator[tuple[Talk, Lost]]:
        """Workers that live and do nothing; how long a word may take is known when an errand came forward."""
        now = time.monotonic()
        for talk, errand in self._talks.items():
            most = max(HOUR, PAUSES * self._pause) if errand.forward else DAY
            if now - self._spoke[talk] > most:
                yield talk, Lost(f"its worker has said nothing for {most / HOUR:.1f} h: it hangs")

    def _heard(self, talk: Talk, what: Any) -> Iterator[News]:
        errand, device, now = self._talks[talk], talk.device, time.monotonic()
        self._pause, self._spoke[talk] = max(self._pause, now - self._spoke[talk]), now
        if isinstance(what, Began) and (why := self.fits(device, what.facts)):
            what = Unfit(why)
        if isinstance(what, Unfit):
            self._dismiss(device, what.why)
            self.add([self._release(talk)])
        elif isinstance(what, Again):
            yield News(errand, device, what)
            self.add([self._release(talk)])
        elif isinstance(what, Failed | Lost):
            yield from self._again(talk, what)
        else:
            if isinstance(what, Ended):
                self._release(talk)
            yield News(errand, device, what)

    def _again(self, talk: Talk, what: Failed | Lost) -> Iterator[News]:
        """An errand that failed begins again elsewhere, unless it has done so too often."""
        self.hall.end(talk.device)  # its next worker is a fresh one
        errand = self._release(talk, REST if isinstance(what, Lost) else 0.0)
        errand.failures += 1
        why = what.why if isinstance(what, Lost) else f"{type(what.error).__name__}: {said(what.error)}"
        yield News(errand, talk.device, what)
        if errand.failures < TRIES and not (isinstance(what, Failed) and isinstance(what.error, InputError)):
            log.warning("%s failed on %s (%s); it begins again", errand.name, talk.device, why)
            self.add([errand])
            return
        errand.why = why
        self.aside.append(errand)
        yield News(errand, talk.device, SetAside(why))
