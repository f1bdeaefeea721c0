"""What a study tells while it works. It is drawn on a terminal and in a notebook; else nothing is said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fedskip.federation import Broke
from fedskip.records.table import Row
from fedskip.report.units import Metric


@dataclass(frozen=True)
class Status:
    """How far runs are."""

    rounds: Mapping[str, float]  # by run: done by its slots, on average
    diverged: frozenset[str]  # runs
    steps: int  # client-steps of all runs
    preparing: float  # seconds that went into compiling and the like
    doing: str = ""  # "compiling" while a step is compiled; else nothing, or what is like it
    begun: int = 0  # steps that are ready or under way, of all groups of runs
    most: int = 0  # that there may be, of all groups: what is never needed is never compiled
    broke: Mapping[str, Broke] = field(default_factory=dict)  # of runs that diverged, the visit that did it
    set_aside: int = 0  # visits of all runs
    ended: frozenset[str] = frozenset()  # runs that ended early

    @property
    def over(self) -> frozenset[str]:
        """Runs that do no more rounds."""
        return self.diverged | self.ended

    def __or__(self, other: Status) -> Status:
        """The status of the runs of both."""
        rounds, diverged = {**self.rounds, **other.rounds}, self.diverged | other.diverged
        return Status(
            rounds, diverged, self.steps + other.steps, max(self.preparing, other.preparing),
            self.doing or other.doing, self.begun + other.begun, self.most + other.most,
            {**self.broke, **other.broke}, self.set_aside + other.set_aside,
            self.ended | other.ended,
        )  # fmt: skip

    def step(self) -> str:
        """The step that was begun last, while one is compiled; or nothing.

        >>> Status({}, frozenset(), 0, 2.5, "compiling", 3, 8).step()
        'compiling step 3 of at most 8'
        """
        return f"{self.doing} step {self.begun} of at most {self.most}" if self.doing else ""


class Shown(NamedTuple):
    """A run as people see it."""

    name: str
    label: str
    seed: int


@dataclass(frozen=True)
class Course:
    """A setting that is being trained, for those who watch."""

    name: str
    runs: Sequence[Shown]
    start: int  # the round from which it goes on
    rounds: int
    metric: Metric
    notes: Sequence[str]  # to be said when it begins, such as what memory it needs
    status: Callable[[], Status]
    seconds: Callable[[], float]  # since the setting began


class At(NamedTuple):
    """A device at work."""

    device: str
    group: str  # of runs, that it trains
    speed: float  # client-steps per second


@dataclass(frozen=True)
class SideBySide:
    """Settings that are trained at the same time, on a cluster, for those who watch."""

    courses: Sequence[Course]
    devices: Callable[[], Sequence[At]]
    groups: Callable[[], tuple[int, int]]  # of runs: how many are done, and how many there are


class Progress:
    """Hears what a study tells, and says nothing. Write a subclass to say something."""

    def setting(self, course: Course, rows: Iterable[Row]) -> None:
        """A setting begins, or goes on from a checkpoint; `rows` are what its history holds."""

    def side_by_side(self, settings: SideBySide, rows: Iterable[Row]) -> None:
        """On a cluster, in the place of `setting`: all settings begin or go on."""

    def preparing(self, rows: int) -> None:
        """A step for so many rows begins to be compiled, traced or recorded; 0: it is ready."""

    def recorded(self, rows: list[Row]) -> None:
        """Rows of the history have been found, and are written now or at the next checkpoint."""

    def checkpoint(self, round: int) -> None:
        """A checkpoint has been written, after a round."""

    def finished(self) -> None:
        """The setting has done its rounds; what it came to is written next."""
