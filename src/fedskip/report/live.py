"""Progress while a study works: a line per run where it can be drawn again, else a line per checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich import live
from rich.console import Console, RenderableType
from rich.text import Text

from fedskip.input.errors import require
from fedskip.records.table import Row
from fedskip.report import cell
from fedskip.report.abreast import Abreast
from fedskip.report.progress import Course, Progress, SideBySide
from fedskip.report.underway import Watch

REFRESH = 1  # per second: drawing 24 runs takes 20 ms from training, which may have one core
WIDTH = 120  # where there is no terminal to fit

Shows = Progress | bool | None  # who draws; or whether it is drawn, None: where somebody looks


def console() -> Console:
    """Where a study shows itself: the standard output, whatever that is."""
    to = Console(highlight=False, markup=False, emoji=False)
    return to if to.file.isatty() else Console(highlight=False, markup=False, emoji=False, width=WIDTH)


@contextlib.contextmanager
def showing(progress: Shows, title: Callable[[], str], settings: int = 1) -> Iterator[Progress]:
    """Who hears a study: `progress`, or what draws it on a terminal, in a notebook, or as plain lines."""
    rule = "must be True, False, None or a fedskip.Progress"
    require("progress", isinstance(progress, Progress | bool | None), rule, progress)
    to = console()
    if isinstance(progress, Progress):
        yield progress
    elif progress or (progress is None and (to.is_jupyter or to.file.isatty())):
        drawn = (cell.console(), title, settings, cell.Cell) if to.is_jupyter else (to, title, settings)
        with Live(*drawn) as live_:
            yield live_
    else:
        yield Progress()


class Live(Progress):
    """Draws a study on a console; a context, so that whatever ends the study also ends the drawing.

    Args:
        console: where to draw; one that is no terminal gets plain lines.
        title: gives what to say once work begins.
        settings: how many the study has.
        screen: makes what draws, with the arguments of rich's.
    """

    def __init__(
        self,
        console: Console,
        title: Callable[[], str],
        settings: int = 1,
        screen: Callable[..., Any] = live.Live,
    ) -> None:
        self.console, self.title, self.settings = console, title, settings
        self._begun, self._last = 0, ""  # settings, and the name of the last
        self._now: Watch | Abreast | None = None
        self._screen = screen(
            get_renderable=self._draw, console=console, refresh_per_second=REFRESH, transient=True
        )

    def __enter__(self) -> Live:
        if self.console.is_interactive:
            self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finished()
        self._screen.stop()

    def setting(self, course: Course, rows: Iterable[Row]) -> None:
        if not self._begun:
            self.console.print(self.title(), soft_wrap=True)
        self._begun += course.name != self._last  # parts of a setting come one after another
        self._last = course.name
        for note in course.notes:
            self.console.print(f"{course.name}: {note}", soft_wrap=True)
        self._now = Watch(course, rows)

    def side_by_side(self, settings: SideBySide, rows: Iterable[Row]) -> None:
        self.console.print(self.title(), soft_wrap=True)
        self._begun = self.settings
        for course in settings.courses:
            for note in course.notes:
                self.console.print(f"{course.name}: {note}", soft_wrap=True)
        self._now = Abreast(settings, rows)

    def preparing(self, rows: int) -> None:
        if rows and isinstance(self._now, Watch) and not self._screen.is_started:
            course = self._now.course
            words = f"{course.name}: {course.status().step()} ({rows} row{'s' * (rows > 1)})"
            self.console.print(words, soft_wrap=True)

    def recorded(self, rows: list[Row]) -> None:
        if self._now is not None:
            self._now.note(rows)
            for line in self._now.lost():
                self.console.print(line, style="red", soft_wrap=True)

    def checkpoint(self, round: int) -> None:
        if self._now is not None and self._now.at(round) and not self._screen.is_started:
            self.console.print(self._now.line(), soft_wrap=True)

    def finished(self) -> None:
        """A setting's lines make way for a single one, which stays."""
        watch, self._now = self._now, None
        if watch is not None and self._screen.is_started:
            self.console.print(watch.line())

    def _draw(self) -> RenderableType:
        watch = self._now  # drawn in a thread of its own, while settings come and go
        if watch is None:
            return Text("writing results ..." if self._begun else "preparing ...", "dim")
        place = f" ({self._begun} of {self.settings})" if self.settings > 1 else ""
        return watch.screen(place, self.console.height)
