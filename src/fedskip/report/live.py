"""Progress while a study works: a line per run on a terminal, a line per checkpoint anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

from rich import live
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedskip.batch import Batch
from fedskip.entry import Entry
from fedskip.history import Row
from fedskip.report import units

MANY = 30  # with more runs than this in a setting, the seeds of a method share a line
REFRESH = 1  # per second: drawing 24 runs takes 20 ms from training, which may have one core


class Live:
    """Draws a study on a console; a context, so that whatever ends the study also ends the drawing.

    Args:
        console: where to draw; one that is no terminal gets plain lines.
        title: gives what to say once work begins.
        settings: how many the study has.
    """

    def __init__(self, console: Console, title: Callable[[], str], settings: int = 1) -> None:
        self.console, self.title, self.settings = console, title, settings
        self._begun = 0
        self._now: Watch | None = None
        self._screen = live.Live(
            get_renderable=self._draw, console=console, refresh_per_second=REFRESH, transient=True
        )

    def __enter__(self) -> Live:
        if self.console.is_interactive:
            self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        self._screen.stop()

    def setting(self, batch: Batch, rows: Iterable[Row]) -> None:
        self._leave()
        if not self._begun:
            self.console.print(self.title(), soft_wrap=True)
        self._begun += 1
        for needs in getattr(batch.engines[0], "needs", ()):
            self.console.print(f"{batch.name}: {needs}", soft_wrap=True)
        self._now = Watch(batch, rows)

    def recorded(self, rows: list[Row]) -> None:
        if self._now is not None:
            self._now.note(rows)

    def checkpoint(self, batch: Batch) -> None:
        if self._now is not None and not self._screen.is_started:
            self.console.print(self._now.line(), soft_wrap=True)

    def finished(self) -> None:
        self._leave()

    def _leave(self) -> None:
        """A setting's lines make way for a single one, which stays."""
        watch, self._now = self._now, None
        if watch is not None and self._screen.is_started:
            self.console.print(watch.line(), soft_wrap=True)

    def _draw(self) -> RenderableType:
        watch = self._now  # drawn in a thread of its own, while settings come and go
        if watch is None:
            return Text("preparing ...", "dim")
        return watch.screen(f" ({self._begun} of {self.settings})" if self.settings > 1 else "")


class Watch:
    """One setting as it goes."""

    def __init__(self, batch: Batch, rows: Iterable[Row]) -> None:
        self.batch, self.metric = batch, batch.prepared.setting.metric
        self.lines = lines(batch.entries)
        self.last: dict[str, float] = {}  # by run
        self.best: dict[str, float] = {}
        self.note(rows)
        self.pace = Pace(batch)

    def note(self, rows: Iterable[Row]) -> None:
        for row in rows:
            run, score = row["run"], row["test_accuracy"]
            self.last[run] = score
            self.best[run] = max(score, self.best.get(run, score))

    def line(self) -> str:
        """All of the setting in one line."""
        batch = self.batch
        best = max(batch.entries, key=lambda entry: self.best.get(entry.name, float("-inf")))
        parts = [
            f"{batch.name}: round {batch.round}/{batch.rounds}",
            f"elapsed {units.clock(batch.elapsed())}",
            f"left {units.clock(self.pace.left(batch.entries))}",
            f"best {units.score(self.best.get(best.name), self.metric)} ({best.method.label})",
            f"{self.pace.speed():,.0f} client-steps/s",
        ]
        return "  ".join(parts)

    def screen(self, place: str) -> RenderableType:
        """A line per run, and the setting below them."""
        batch = self.batch
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column(f"{batch.name}{place}", header_style="bold not dim", no_wrap=True)
        for header in ("seed", "round", "", "last", "best", "left"):
            table.add_column(header, justify="right", no_wrap=True)
        for line in self.lines:
            table.add_row(*self._cells(line))
        footer = (
            f"elapsed {units.clock(batch.elapsed())}  left {units.clock(self.pace.left(batch.entries))}  "
            f"{self.pace.speed():,.0f} client-steps/s"
        )
        return Group(table, Text(footer, "dim"))

    def _cells(self, line: Line) -> list[RenderableType]:
        going = [entry for entry in line.entries if not entry.diverged]
        done, rounds = fmean(entry.rounds_done for entry in going or line.entries), self.batch.rounds
        scores = [
            units.score(fmean(known) if known else None, self.metric)
            for by_run in (self.last, self.best)
            for known in [[by_run[entry.name] for entry in line.entries if entry.name in by_run]]
        ]
        left = Text(units.clock(self.pace.left(going))) if going else Text("diverged", "red")
        return [
            Text(line.label),
            line.seeds,
            f"{int(done)}/{rounds}",
            ProgressBar(rounds, done, width=12, complete_style="cyan", finished_style="green"),
            *scores,
            left,
        ]


@dataclass(frozen=True)
class Line:
    """What is shown together: one run, or the runs of a method."""

    label: str
    seeds: str
    entries: list[Entry]


def lines(entries: list[Entry]) -> list[Line]:
    if len(entries) <= MANY:
        return [Line(entry.method.label, str(entry.seed), [entry]) for entry in entries]
    by_label: dict[str, list[Entry]] = {}
    for entry in entries:
        by_label.setdefault(entry.method.label, []).append(entry)
    return [Line(label, f"{len(same)} seeds", same) for label, same in by_label.items()]


class Pace:
    """How fast the runs of a setting go from now on: what an earlier process did says nothing about it.

    Nor does compiling, which ends.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.start, self.steps = time.monotonic() - batch.preparing, batch.steps
        self.rounds = {entry.name: entry.rounds_done for entry in batch.entries}

    def seconds(self) -> float:
        return max(time.monotonic() - self.start - self.batch.preparing, 1e-9)

    def speed(self) -> float:
        """Client-steps per second."""
        return (self.batch.steps - self.steps) / self.seconds()

    def left(self, entries: Iterable[Entry]) -> float | None:
        """Seconds until these runs are done; None while there is nothing to go by."""
        going = [entry for entry in entries if not entry.diverged]
        done = sum(entry.rounds_done - self.rounds[entry.name] for entry in going)
        to_do = sum(self.batch.rounds - entry.rounds_done for entry in going)
        if not to_do:
            return 0.0
        return self.seconds() * to_do / done if done > 0 else None
