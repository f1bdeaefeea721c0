"""One setting as it goes: a line per run, how fast it is, how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedskip.records.table import Row
from fedskip.report import units
from fedskip.report.broken import HELPS, where
from fedskip.report.progress import Course, Shown, Status

MANY = 30  # with more runs than this in a setting, or than fit the screen, the seeds of a method share a line


class Watch:
    """One setting as it goes; see `Abreast` for several at the same time."""

    def __init__(self, course: Course, rows: Iterable[Row]) -> None:
        self.course, self.round = course, course.start
        self.better: Callable[..., Any] = max if course.metric.higher else min
        self.last: dict[str, float] = {}  # by run
        self.best: dict[str, float] = {}
        self.note(rows)
        self.pace = Pace(course)
        self._known = self.pace.before.diverged  # runs whose end has been told

    def at(self, round: int) -> bool:
        """A checkpoint was written; whether that is worth a line."""
        self.round = round
        return True

    def note(self, rows: Iterable[Row]) -> None:
        for row in rows:
            run, score = row["run"], row["test_accuracy"]
            if score is not None:  # a metric may be undefined
                self.last[run] = score
                self.best[run] = self.better(score, self.best.get(run, score))

    def lost(self) -> list[str]:
        """A line for each run that has diverged since this was last asked; the first says what helps."""
        status = self.course.status()
        new, told = sorted(status.diverged - self._known), bool(self._known)
        self._known |= status.diverged
        lines = [f"{name} diverged {where(*status.broke.get(name, (None, None, None)))}." for name in new]
        return [f"{line} {HELPS}" if line is lines[0] and not told else line for line in lines]

    def line(self) -> str:
        """All of the setting in one line."""
        course, status = self.course, self.course.status()
        known = [run for run in course.runs if run.name in self.best] or course.runs[:1]
        best = self.better(known, key=lambda run: self.best.get(run.name, 0.0))
        score = units.score(self.best.get(best.name), course.metric)
        elapsed, left, speed = self._pace(status)
        start = f"{course.name}: round {self.round}/{course.rounds}"
        return "  ".join([start, elapsed, left, f"best {score} ({best.label})", speed, *_aside(status)])

    def screen(self, place: str, height: int) -> RenderableType:
        """A line per run, or per method if that is too much for the screen, and the setting below them."""
        course, status = self.course, self.course.status()
        table = Table(box=None, pad_edge=False, header_style="dim")
        # names may wrap, numbers must not
        table.add_column(f"{course.name}{place}", header_style="bold not dim", overflow="fold")
        for header in ("seed", "round", "", "last", "best", "left"):
            table.add_column(header, justify="right", no_wrap=True)
        room = height - 4  # beside the head, a line for what does not fit, and two for the setting
        shown = lines(course.runs, min(MANY, room))
        for line in shown[:room]:
            table.add_row(*self._cells(line, status))
        if len(shown) > room:
            table.add_row(Text(f"and {len(shown) - room} more", "dim"))
        below = [*self._pace(status), status.step(), *_aside(status)]
        return Group(table, Text("  ".join(filter(None, below)), "dim"))

    def _pace(self, status: Status) -> tuple[str, str, str]:
        elapsed, left = self.course.seconds(), self.pace.left(status, self.course.runs)
        speed = f"{self.pace.speed(status):,.0f} client-steps/s"
        return f"elapsed {units.clock(elapsed)}", f"left {units.clock(left)}", speed

    def _cells(self, runs: list[Shown], status: Status) -> list[RenderableType]:
        going = [run for run in runs if run.name not in status.over]
        done, rounds = fmean(status.rounds[run.name] for run in going or runs), self.course.rounds
        scores = [
            units.score(fmean(known) if known else None, self.course.metric)
            for by_run in (self.last, self.best)
            for known in [[by_run[run.name] for run in runs if run.name in by_run]]
        ]
        seeds = str(runs[0].seed) if len(runs) == 1 else f"{len(runs)} seeds"
        bar = ProgressBar(rounds, done, width=12, complete_style="cyan", finished_style="green")
        lost = any(run.name in status.diverged for run in runs)
        over = Text("diverged", "red") if lost else Text("ended early", "green")
        left = Text(units.clock(self.pace.left(status, going))) if going else over
        return [Text(runs[0].label), seeds, f"{int(done)}/{rounds}", bar, *scores, left]


def _aside(status: Status) -> list[str]:
    return [f"{status.set_aside:,} visits set aside"] if status.set_aside else []


def lines(runs: Sequence[Shown], most: int) -> list[list[Shown]]:
    """What is shown together: one run, or the runs of a method where there are more than `most`."""
    if len(runs) <= most:
        return [[run] for run in runs]
    return [[run for run in runs if run.label == label] for label in dict.fromkeys(run.label for run in runs)]


class Pace:
    """How fast the runs of a setting go from now on: what an earlier process did says nothing about it.

    Nor does compiling, which ends.
    """

    def __init__(self, course: Course) -> None:
        self.course, self.before = course, course.status()
        self.start = time.monotonic() - self.before.preparing

    def seconds(self, status: Status) -> float:
        return max(time.monotonic() - self.start - status.preparing, 1e-9)

    def speed(self, status: Status) -> float:
        """Client-steps per second."""
        return (status.steps - self.before.steps) / self.seconds(status)

    def left(self, status: Status, runs: Iterable[Shown]) -> float | None:
        """Seconds until these runs are done; None while there is nothing to go by."""
        going = [run.name for run in runs if run.name not in status.over]
        done = sum(status.rounds[name] - self.before.rounds[name] for name in going)
        to_do = sum(self.course.rounds - status.rounds[name] for name in going)
        if not to_do:
            return 0.0
        return self.seconds(status) * to_do / done if done > 0 else None
