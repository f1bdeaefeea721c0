"""Errands handed out to devices: large ones first, again after a failure, aside after three."""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections import Counter
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
    NotStarted,
    SetAside,
    Talk,
    Unfit,
)  # fmt: skip
from fedskip.input.errors import InputError, said

TRIES = 3  # of an errand that does not come forward
BEAT = 0.5  # seconds between two looks at who has said something
LOOK = 2.0  # and at which devices there are
MISSES = 3  # workers of a device that did not start, after which nobody waits for it
REST = 20.0  # seconds that a device is left alone after it lost its worker
PATIENCE = 600.0  # seconds without any worker after which nobody waits any more
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
        self._spoke: dict[Talk, float] = {}  # when it last did, for those that have; see _awake
        self._pause = 0.0  # the longest between two words
        self._free: list[Device] = []  # a heap
        self._known: set[Device] = set()
        self._misses: Counter[Device] = Counter()  # workers that did not start, one after another
        self._resting: dict[Device, float] = {}  # until then
        self._looked = -LOOK
        self._lonely = 0.0  # since when there has been no worker
        self._awake = self._beat = 0.0  # seconds that this process has listened, and its last beat
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
                self._forget(talk)
                self.hall.end(talk.device)

    def news(self) -> Iterator[News | None]:
        """All that is said until all errands are done or set aside; None: a moment has passed."""
        self._lonely = self._beat = time.monotonic()
        while self._talks or (self._waiting and self._open):
            self._look()
            self._hand_out()
            for talk, what in itertools.chain(self.hall.heard(list(self._talks), BEAT), self._hanging()):
                if talk in self._talks:  # who listens may have ended it
                    yield from self._heard(talk, what)
            yield None

    # --- devices --------------------------------------------------------------------------------------

    def _look(self) -> None:
        """See which devices there are: nodes come and go."""
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            found = set(self.hall.devices())
            there = found - self.unfit.keys()
            if found and not there and not self._talks:
                first = min(found)
                rule = f"has no device that can be used; {first}: {self.unfit[first]}"
                raise InputError("cluster", rule, fix="see to that")
            for device in there - self._known:
                heapq.heappush(self._free, device)
            self._known = there
        for device in [device for device, until in self._resting.items() if until <= now]:
            del self._resting[device]
            heapq.heappush(self._free, device)
        if self._spoke:
            self._lonely = now
        elif now - self._lonely > PATIENCE:
            fix = "start nodes that are like those before, or free their devices; then resume the study"
            raise InputError("cluster", f"has had no device to train on for {PATIENCE:.0f} s", fix=fix)

    def _hand_out(self) -> None:
        """Give every free device the largest errand that may begin there."""
        free, self._free = self._free, []
        while free and self._waiting and self._open:
            device = heapq.heappop(free)
            if device not in self._known:
                continue
            left = []
            while self._waiting and not self._may(self._waiting[0][-1], device):
                left.append(heapq.heappop(self._waiting))
            if self._waiting:
                *_, errand = heapq.heappop(self._waiting)
                self._talks[self.hall.begin(device, errand.argument())] = errand
            else:
                heapq.heappush(self._free, device)
            for one in left:
                heapq.heappush(self._waiting, one)
        for device in free:
            heapq.heappush(self._free, device)

    def _may(self, errand: Errand, device: Device) -> bool:
        """The last try of an errand is elsewhere, if there is an elsewhere: on another node, or device."""
        if errand.failures < TRIES - 1:
            return True
        others = [other for other in self._known if self._misses[other] < MISSES]
        nodes = {failed.node for failed in errand.failed_on}
        if any(other.node not in nodes for other in others):
            return device.node not in nodes
        return device not in errand.failed_on or all(other in errand.failed_on for other in others)

    def _forget(self, talk: Talk) -> Errand:
        self._spoke.pop(talk, None)
        return self._talks.pop(talk)

    def _release(self, talk: Talk, rest: float = 0.0) -> Errand:
        if rest:
            self._resting[talk.device] = time.monotonic() + rest
        elif talk.device in self._known:
            heapq.heappush(self._free, talk.device)
        return self._forget(talk)

    def _dismiss(self, device: Device, why: str) -> None:
        """Use a device no more."""
        log.warning("%s is not used: %s", device, why)
        self.unfit[device] = why
        self._known.discard(device)
        self.hall.end(device)

    # --- what is said ---------------------------------------------------------------------------------

    def _hanging(self) -> Iterator[tuple[Talk, Lost]]:
        """Workers that live and do nothing; how long a word may take is known when an errand came forward.

        Time in which this process stood still, or was busy with what it heard, does not count.
        """
        now = time.monotonic()
        self._awake += min(now - self._beat, 2 * BEAT)
        self._beat = now
        for talk, spoke in list(self._spoke.items()):
            most = max(HOUR, PAUSES * self._pause) if self._talks[talk].forward else DAY
            if self._awake - spoke > most:
                yield talk, Lost(f"its worker has said nothing for {most / HOUR:.1f} h: it hangs")

    def _heard(self, talk: Talk, what: Any) -> Iterator[News]:
        errand, device = self._talks[talk], talk.device
        if isinstance(what, Began) and (why := self.fits(device, what.facts)):
            what = Unfit(why)
        if isinstance(what, Unfit):
            self._dismiss(device, what.why)
            self.add([self._release(talk)])
        elif isinstance(what, NotStarted):
            log.warning("%s has no worker (%s); others are tried", device, what.why)
            self.hall.end(device)
            self._misses[device] += 1
            self.add([self._release(talk, REST)])
        elif isinstance(what, Again):
            yield News(errand, device, what)
            self.add([self._release(talk)])
        elif isinstance(what, Failed | Lost):
            yield from self._again(talk, what)
        elif isinstance(what, Ended):
            self._release(talk)
            yield News(errand, device, what)
        else:
            self._pause = max(self._pause, self._awake - self._spoke.get(talk, self._awake))
            self._spoke[talk] = self._awake
            self._misses.pop(device, None)
            yield News(errand, device, what)

    def _again(self, talk: Talk, what: Failed | Lost) -> Iterator[News]:
        """An errand that failed begins again, unless it has done so too often."""
        self.hall.end(talk.device)  # its next worker is a fresh one
        errand = self._release(talk, REST if isinstance(what, Lost) else 0.0)
        errand.failed_on.add(talk.device)
        errand.failures += 1
        if isinstance(what, Failed) and isinstance(what.error, InputError):
            # a file may be missing on that node alone; who refuses it elsewhere, too, is right
            elsewhere = {device.node for device in self._known} - {device.node for device in errand.failed_on}
            errand.failures = max(errand.failures, TRIES - 1 if elsewhere else TRIES)
        why = what.why if isinstance(what, Lost) else f"{type(what.error).__name__}: {said(what.error)}"
        yield News(errand, talk.device, what)
        if errand.failures < TRIES:
            log.warning("%s failed on %s (%s); it begins again", errand.name, talk.device, why)
            self.add([errand])
            return
        errand.why = why
        self.aside.append(errand)
        yield News(errand, talk.device, SetAside(why))
