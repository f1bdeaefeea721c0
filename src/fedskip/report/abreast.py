"""Settings that train at the same time on a cluster: a line for each, and what its devices do."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedskip.records.table import Row
from fedskip.report import units
from fedskip.report.progress import At, SideBySide, Status
from fedskip.report.underway import Watch

OFTEN = 10.0  # seconds between two lines, where nothing can be drawn again


class Abreast:
    """Several settings as they go."""

    def __init__(self, settings: SideBySide, rows: Iterable[Row]) -> None:
        self.settings = settings
        self.watches = [Watch(course, ()) for course in settings.courses]
        self._of = {run.name: watch for watch in self.watches for run in watch.course.runs}
        self._began = self._said = time.monotonic()
        self._before = sum(watch.pace.before.steps for watch in self.watches)
        self.note(rows)

    def note(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._of[row["run"]].note([row])

    def lost(self) -> list[str]:
        """A line for each run that has diverged since this was last asked."""
        return [line for watch in self.watches for line in watch.lost()]

    def at(self, round: int) -> bool:
        """A checkpoint was written; whether it is time for a line."""
        due = time.monotonic() - self._said > OFTEN
        self._said = time.monotonic() if due else self._said
        return due

    def line(self) -> str:
        """All settings in one line."""
        return "  ".join(self._below([watch.course.status() for watch in self.watches]))

    def screen(self, _: str, height: int) -> RenderableType:
        """A line per setting, a line per device as far as there is room, and all of it below them."""
        statuses = [watch.course.status() for watch in self.watches]
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("setting", overflow="fold")
        for header in ("runs", "round", "", "best"):
            table.add_column(header, justify="right", no_wrap=True)
        room = max(height - 4, 2)
        shown = list(zip(self.watches, statuses, strict=True))[: room // 2 or 1]
        for watch, status in shown:
            table.add_row(*_cells(watch, status))
        if len(shown) < len(self.watches):
            table.add_row(Text(f"and {len(self.watches) - len(shown)} more", "dim"))
        devices = _devices(self.settings.devices(), room - len(shown) - 2)
        return Group(table, *devices, Text("  ".join(self._below(statuses)), "dim"))

    def _below(self, statuses: Sequence[Status]) -> list[str]:
        done, groups = self.settings.groups()
        devices = self.settings.devices()
        speed, busy = sum(at.speed for at in devices) or self._average(statuses), len(devices)
        return [
            f"{done} of {groups} groups done",
            f"elapsed {units.clock(time.monotonic() - self._began)}",
            f"left {units.clock(self._left(statuses, speed))}",
            f"{speed:,.0f} client-steps/s on {busy} device{'s' * (busy != 1)}",
        ]

    def _average(self, statuses: Sequence[Status]) -> float:
        """Client-steps per second so far, start-up and all."""
        steps = sum(status.steps for status in statuses) - self._before
        return max(steps, 0) / max(time.monotonic() - self._began, 1e-9)

    def _left(self, statuses: Sequence[Status], speed: float) -> float | None:
        """Seconds, by the client-steps that a round of each setting takes; None while nobody can tell."""
        todo, rates = [], []
        for watch, status in zip(self.watches, statuses, strict=True):
            going = [done for run, done in status.rounds.items() if run not in status.over]
            todo.append(sum(watch.course.rounds - done for done in going))
            rates.append(status.steps / sum(status.rounds.values()) if status.steps else 0.0)
        known = [rate for rate in rates if rate]
        if not any(todo):
            return 0.0
        if not known or not speed:
            return None
        usual = sum(known) / len(known)
        return sum(rounds * (rate or usual) for rounds, rate in zip(todo, rates, strict=True)) / speed


def _cells(watch: Watch, status: Status) -> list[RenderableType]:
    course, rounds = watch.course, status.rounds.values()
    done = sum(rounds) / max(len(rounds), 1)
    best = watch.better(watch.best.values(), default=None)
    bar = ProgressBar(course.rounds, done, width=12, complete_style="cyan", finished_style="green")
    named = course.name + (f" ({len(status.diverged)} diverged)" if status.diverged else "")
    return [
        Text(named),
        str(len(rounds)),
        f"{int(done)}/{course.rounds}",
        bar,
        units.score(best, course.metric),
    ]


def _devices(devices: Sequence[At], room: int) -> list[RenderableType]:
    """A line for each device; where they are too many, one for all."""
    if not devices:
        return [Text("waiting for a device", "dim")]
    if len(devices) > max(room, 1):
        speeds = sorted(at.speed for at in devices)
        each = f"{speeds[0]:,.0f} to {speeds[-1]:,.0f} client-steps/s each"
        return [Text(f"{len(devices)} devices at work, {each}")]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("device", overflow="fold")
    table.add_column("group", overflow="fold")
    table.add_column("client-steps/s", justify="right", no_wrap=True)
    for at in devices:
        table.add_row(Text(at.device), Text(at.group), f"{at.speed:,.0f}" if at.speed else "starting")
    return [table]
