"""Progress of a study: the events it reports while it trains, and their live display.

A terminal or a notebook shows a bar per run. Any other output gets one line per checkpoint.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from statistics import fmean
from typing import Any, NamedTuple

from rich import progress as rich_progress
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Column
from rich.text import Text

from fedskip.errors import require
from fedskip.federation import BrokenVisit
from fedskip.records.table import Row
from fedskip.report.results import Metric
from fedskip.report.tables import DIVERGED_HELP, clock, count, diverged_where, score

# --- events --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """How far some runs are."""

    rounds: Mapping[str, float]  # by run: rounds done, the mean over its slots
    diverged: frozenset[str]  # runs
    steps: int  # client-steps of all runs
    preparing: float  # seconds spent on compiling, tracing and recording steps
    doing: str = ""  # "compiling", "tracing" or "recording" while a step is prepared
    begun: int = 0  # steps that are prepared or in preparation, in all groups of runs
    most: int = 0  # the most steps there can be; a step that is never needed is never prepared
    broke: Mapping[str, BrokenVisit] = field(default_factory=dict)  # where runs diverged
    set_aside: int = 0  # client updates that were set aside, in all runs
    ended: frozenset[str] = frozenset()  # runs that stopped early

    @property
    def over(self) -> frozenset[str]:
        """Runs that train no more."""
        return self.diverged | self.ended

    def __or__(self, other: Status) -> Status:
        """The status of both sets of runs together."""
        rounds, diverged = {**self.rounds, **other.rounds}, self.diverged | other.diverged
        return Status(
            rounds, diverged, self.steps + other.steps, max(self.preparing, other.preparing),
            self.doing or other.doing, self.begun + other.begun, self.most + other.most,
            {**self.broke, **other.broke}, self.set_aside + other.set_aside,
            self.ended | other.ended,
        )  # fmt: skip

    def activity(self) -> str:
        """What is being prepared, if anything.

        >>> Status({}, frozenset(), 0, 2.5, "compiling", 3, 8).activity()
        'compiling step 3 of at most 8'
        """
        return f"{self.doing} step {self.begun} of at most {self.most}" if self.doing else ""


class RunLabel(NamedTuple):
    """A run, and how it is shown."""

    name: str
    method: str
    seed: int


@dataclass(frozen=True)
class SettingProgress:
    """A setting in training; `status()` and `seconds()` may be called at any time."""

    name: str
    runs: Sequence[RunLabel]
    start: int  # the round it starts or resumes from
    rounds: int
    metric: Metric
    notes: Sequence[str]  # shown once, such as the memory it needs
    status: Callable[[], Status]
    seconds: Callable[[], float]  # since the setting started


class DeviceStatus(NamedTuple):
    """A device of a cluster, and the group of runs that it trains."""

    device: str
    group: str
    speed: float  # client-steps per second; 0 until the first ones are reported

    def __str__(self) -> str:
        speed = f"{self.speed:,.0f} client-steps/s" if self.speed else "starting"
        return f"{self.device}: {self.group}, {speed}"


@dataclass(frozen=True)
class ClusterProgress:
    """Settings that train at the same time on a cluster."""

    settings: Sequence[SettingProgress]
    devices: Callable[[], Sequence[DeviceStatus]]  # those at work
    groups: Callable[[], tuple[int, int]]  # groups of runs: done, and all


class Progress:
    """Gets the events of a study and ignores them. Write a subclass to use them."""

    def started(self, setting: SettingProgress, rows: Iterable[Row]) -> None:
        """A setting starts, or resumes from a checkpoint; `rows` is its history so far."""

    def started_on_cluster(self, cluster: ClusterProgress, rows: Iterable[Row]) -> None:
        """On a cluster, instead of `started`: all settings start or resume."""

    def preparing(self, rows: int) -> None:
        """A step for this many rows is being compiled, traced or recorded; 0: it is ready."""

    def recorded(self, rows: list[Row]) -> None:
        """The history has new rows. They are in its file by the next checkpoint."""

    def checkpoint(self, round: int) -> None:
        """A checkpoint of this round has been written."""

    def finished(self) -> None:
        """A setting, or everything on a cluster, has finished training. Results are written next."""


# --- display -------------------------------------------------------------------------------------------

REFRESH = 1  # per second: drawing 24 runs takes 20 ms, and training may have a single core
WIDTH = 120  # of output that is not a terminal
MANY = 30  # runs; with more, or more than fit on the screen, the seeds of a method share a bar
PERIOD = 3600.0  # seconds over which speeds are averaged: a round may take minutes
PAUSE = 10.0  # seconds between two lines about a cluster, whose groups write many checkpoints

ShowProgress = Progress | bool | None  # None: show it on a terminal and in a notebook


def console() -> Console:
    """A console for the standard output."""
    width = None if sys.stdout.isatty() else WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


@contextlib.contextmanager
def showing(
    progress: ShowProgress, title: Callable[[], str], settings: int = 1
) -> Iterator[Progress]:
    """Give the `Progress` that a study reports to. What it draws disappears at the end."""
    rule = "must be True, False, None or a fedskip.Progress"
    require("progress", isinstance(progress, Progress | bool | None), rule, progress)
    to = console()
    if isinstance(progress, Progress):
        yield progress
    elif progress or (progress is None and (to.is_jupyter or sys.stdout.isatty())):
        with ProgressDisplay(to, title, settings) as display:
            yield display
    else:
        yield Progress()


class ProgressDisplay(Progress):
    """Shows a study on a console, inside a `with` block.

    Args:
        console: where to show it; without a terminal it gets plain lines.
        title: gives the first line, when training starts.
        settings: how many settings the study has.
    """

    def __init__(self, console: Console, title: Callable[[], str], settings: int = 1) -> None:
        kind = NotebookLive if console.is_jupyter else Live if console.is_interactive else None
        console = notebook_console() if console.is_jupyter else console
        self.console, self.title, self.settings = console, title, settings
        self._bars: Bars | None = None
        self._names: list[str] = []  # of the settings so far
        self._diverged: frozenset[str] = frozenset()  # runs whose divergence is known
        self._since, self._last_line = time.monotonic(), 0.0
        self._live: Live | None = None
        if kind is not None:
            self._live = kind(
                get_renderable=self._draw, console=console, refresh_per_second=REFRESH,
                transient=True,
            )  # fmt: skip

    def __enter__(self) -> ProgressDisplay:
        if self._live is not None:
            self._live.start()
            self._forked = ForkedOutput(self.console)
        return self

    def __exit__(self, *_: object) -> None:
        self.finished()
        if self._live is not None:
            self._forked.close()
            self._live.stop()

    def started(self, setting: SettingProgress, rows: Iterable[Row]) -> None:
        self._start([setting], rows)

    def started_on_cluster(self, cluster: ClusterProgress, rows: Iterable[Row]) -> None:
        self._start(cluster.settings, rows, cluster)

    def _start(
        self,
        settings: Sequence[SettingProgress],
        rows: Iterable[Row],
        cluster: ClusterProgress | None = None,
    ) -> None:
        if not self._names:
            self._print(self.title())
        self._names += [setting.name for setting in settings if setting.name not in self._names]
        for setting in settings:
            for note in setting.notes:
                self._print(f"{setting.name}: {note}")
            self._diverged |= setting.status().diverged
        several = self.settings > 1 and self._live is not None
        place = f" ({len(self._names)} of {self.settings})" if several else ""
        self._show(Bars(settings, rows, self.console.height, place, cluster))

    def preparing(self, rows: int) -> None:
        if self._bars is not None and not rows:
            self._bars.measure_from_now()  # compiling says nothing about the speed of training
        elif self._bars is not None and self._live is None:
            setting = self._bars.settings[0]
            activity = setting.status().activity()
            self._print(f"{setting.name}: {activity} ({count(rows, 'row')})")

    def recorded(self, rows: list[Row]) -> None:
        if self._bars is None:
            return
        self._bars.note(rows)
        status = self._bars.bring_up_to_date()
        for name in sorted(status.diverged - self._diverged):
            place = diverged_where(*status.broke.get(name, (None, None, None)))
            helps = "" if self._diverged else f" {DIVERGED_HELP}"
            self._print(f"{name} diverged {place}.{helps}", "red")
            self._diverged |= {name}

    def checkpoint(self, round: int) -> None:
        if self._bars is None:
            return
        due = self._bars.cluster is None or time.monotonic() - self._last_line > PAUSE
        if self._live is None and due:
            self._last_line = time.monotonic()
            self._print(self._bars.summary())

    def finished(self) -> None:
        bars = self._bars
        self._show(None)
        if bars is not None and self._live is not None:
            self._print(bars.summary())  # one line takes the place of the bars

    def _show(self, bars: Bars | None) -> None:
        self._bars, self._since = bars, time.monotonic()
        if self._live is not None:
            self._live.refresh()

    def _print(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, soft_wrap=True)

    def _draw(self) -> RenderableType:
        """Called once a second by rich's thread, whatever training does at that moment."""
        bars = self._bars
        if bars is not None:
            return bars.draw()
        activity = "writing results" if self._names else "preparing"
        return Text(f"{activity} ... {clock(time.monotonic() - self._since)}", "dim")


class NotebookLive(Live):
    """Draws in one output of a notebook, below the lines that its console has printed.

    rich's own needs ipywidgets, and a notebook that is saved has lost what it has shown.
    """

    output: Any = None  # IPython's handle

    def start(self, refresh: bool = True) -> None:
        super().start(refresh)  # drawn at once, so that IPython knows the cell

    def refresh(self) -> None:
        from IPython.display import display

        drawing = notebook_console()
        if self.is_started:
            drawing.print(self.get_renderable())
        texts = [to.file.getvalue() for to in (self.console, drawing)]  # type: ignore[attr-defined]
        lines = [line.rstrip() for line in "".join(texts).rstrip().splitlines()]
        content = {"text/plain": "\n".join(lines)}
        if self.output is None:
            self.output = display(content, raw=True, display_id=True)
        else:
            self.output.update(content, raw=True)


def notebook_console() -> Console:
    """A console in memory. It has no colours, which a light or a dark page could hide."""
    return Console(
        file=io.StringIO(), width=100, height=40, color_system=None, highlight=False,
        markup=False, emoji=False, force_jupyter=False, force_terminal=False,
    )  # fmt: skip


class Bars(rich_progress.Progress):
    """A bar for each run that trains now, and a line about all of them.

    Each bar is a task of rich, which measures how fast it goes. Two more tasks, which are not shown, count the
    rounds and the client-steps of all runs.
    """

    def __init__(
        self,
        settings: Sequence[SettingProgress],
        rows: Iterable[Row],
        height: int,
        place: str = "",
        cluster: ClusterProgress | None = None,
    ) -> None:
        """`height`: lines of the screen. `place`: of the setting in its study, such as " (1 of 2)"."""
        super().__init__(
            text_column("", "{task.description}", wraps=True),
            text_column("", "{task.fields[number]}"),
            rich_progress.MofNCompleteColumn(table_column=Column("round", justify="right")),
            rich_progress.BarColumn(bar_width=12),
            text_column("last", "{task.fields[last]}"),
            text_column("best", "{task.fields[best]}"),
            TimeLeft(table_column=Column("left", justify="right", no_wrap=True)),
            speed_estimate_period=PERIOD,
            get_time=time.monotonic,
        )
        self.settings, self.height, self.place, self.cluster = settings, height, place, cluster
        self.last: dict[str, float] = {}  # scores, by run
        self.best: dict[str, float] = {}
        self._metrics = {run.name: one.metric for one in settings for run in one.runs}
        for _ in ("rounds", "steps"):
            self.add_task("", total=None, visible=False)
        for setting, runs in grouped(settings, min(height - 4, MANY)):
            methods = list(dict.fromkeys(run.method for run in runs))
            name = [setting.name] * (cluster is not None) + methods * (len(methods) == 1)
            number = f"seed {runs[0].seed}" if len(runs) == 1 else count(len(runs), "run")
            title, total = " ".join(name), setting.rounds
            self.add_task(title, total=total, setting=setting, runs=runs, number=number)
        self.note(rows)
        self.bring_up_to_date()
        self.measure_from_now()

    def note(self, rows: Iterable[Row]) -> None:
        """Keep the last and the best score of each run."""
        for row in rows:
            run, last = row["run"], row["test_accuracy"]
            if last is not None:  # a metric may be undefined
                better = max if self._metrics[run].higher else min
                self.last[run], self.best[run] = last, better(last, self.best.get(run, last))

    def bring_up_to_date(self) -> Status:
        """Set all bars to what the settings report, and give the status of all runs."""
        status = reduce(or_, [setting.status() for setting in self.settings])
        rounds, steps, *bars = self.tasks
        self.update(rounds.id, completed=sum(status.rounds.values()))
        self.update(steps.id, completed=status.steps)
        self.to_do = 0.0
        for bar in bars:
            runs: Sequence[RunLabel] = bar.fields["runs"]
            names = [run.name for run in runs]
            going = [name for name in names if name not in status.over]
            done = fmean(status.rounds[name] for name in going or names)
            over = "diverged" if status.diverged.intersection(names) else "ended early"
            last, best = self._score(runs, self.last), self._score(runs, self.best)
            self.update(bar.id, completed=done, last=last, best=best, over="" if going else over)
            self.to_do += len(going) * (bar.fields["setting"].rounds - done)
        return status

    def _score(self, runs: Sequence[RunLabel], by_run: Mapping[str, float]) -> str:
        """The mean over the seeds of a method; the best where there are several methods."""
        metric = self._metrics[runs[0].name]
        scores = [by_run[run.name] for run in runs if run.name in by_run]
        if scores and len({run.method for run in runs}) > 1:
            scores = [max(scores) if metric.higher else min(scores)]
        return score(fmean(scores) if scores else None, metric)

    def measure_from_now(self) -> None:
        """Forget the speeds measured so far."""
        for task in self.tasks:
            self.reset(task.id, completed=int(task.completed))
            self.advance(task.id, 0)

    def summary(self) -> str:
        """A line about all runs."""
        status, rounds, steps = self.bring_up_to_date(), *self.tasks[:2]
        left = self.to_do / rounds.speed if rounds.speed else None if self.to_do else 0.0
        setting, speed, best, where = self.settings[0], steps.speed or 0.0, "", ""
        if self.cluster is not None:
            devices = self.cluster.devices()
            start = "{} of {} groups done".format(*self.cluster.groups())
            speed = sum(device.speed for device in devices) or speed
            where = f" on {count(len(devices), 'device')}"
        else:
            going = [done for run, done in status.rounds.items() if run not in status.over]
            done = int(min(going or status.rounds.values()))
            start = f"{setting.name}{self.place}: round {done}/{setting.rounds}"
        if self.cluster is None and self.best:
            better = max if setting.metric.higher else min
            run = better(self.best, key=lambda name: self.best[name])
            method = next(label.method for label in setting.runs if label.name == run)
            best = f"best {score(self.best[run], setting.metric)} ({method})"
        parts = [
            start, f"elapsed {clock(setting.seconds())}", f"left {clock(left)}", best,
            f"{speed:,.0f} client-steps/s{where}", status.activity(),
            f"{status.set_aside:,} visits set aside" if status.set_aside else "",
        ]  # fmt: skip
        return "  ".join(filter(None, parts))

    def draw(self) -> RenderableType:
        summary = Text(self.summary(), "dim")
        table = self.make_tasks_table(self.tasks)
        table.show_header = True
        devices = self.cluster.devices() if self.cluster is not None else []
        if len(devices) > self.height - len(self.tasks):  # the summary has their number and speed
            devices = []
        return Group(summary, table, *(Text(str(device)) for device in devices))


class TimeLeft(rich_progress.ProgressColumn):
    """The time left for a bar, or why its runs have ended."""

    def render(self, task: rich_progress.Task) -> Text:
        over = task.fields["over"]
        if over:
            return Text(over, "red" if over == "diverged" else "green")
        return Text(clock(task.time_remaining))


def text_column(header: str, text: str, *, wraps: bool = False) -> rich_progress.TextColumn:
    """A column of the table of bars. Names may wrap; numbers must not."""
    side: JustifyMethod = "left" if wraps else "right"
    column = Column(header, justify=side, no_wrap=not wraps, overflow="fold")
    return rich_progress.TextColumn(text, justify=side, markup=False, table_column=column)


def grouped(
    settings: Sequence[SettingProgress], most: int
) -> list[tuple[SettingProgress, Sequence[RunLabel]]]:
    """The runs that share a bar, for `most` bars: none, else those of a method, else of a setting."""
    groups = [(setting, [run]) for setting in settings for run in setting.runs]
    if len(groups) > most:
        groups = [
            (setting, [run for run in setting.runs if run.method == method])
            for setting in settings
            for method in dict.fromkeys(run.method for run in setting.runs)
        ]
    if len(groups) > most and len(settings) > 1:
        groups = [(setting, list(setting.runs)) for setting in settings]
    return list(groups)


# --- output of other processes -------------------------------------------------------------------------


class ForkedOutput:
    """Prints what forked processes write above the bars, which it would tear apart.

    Such a process shares the terminal, but not the thread that draws.
    """

    active: ForkedOutput | None = None

    def __init__(self, console: Console) -> None:
        reading, self._writing = os.pipe()
        self._thread = threading.Thread(target=self._print, args=(console, reading), daemon=True)
        self._thread.start()
        ForkedOutput.active = self

    def _print(self, console: Console, reading: int) -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                console.print(Text.from_ansi(line.rstrip("\n")), soft_wrap=True)

    def close(self) -> None:
        ForkedOutput.active = None
        os.close(self._writing)
        self._thread.join(1.0)  # not longer: a process that is still alive keeps the pipe open

    @staticmethod
    def redirect() -> None:
        """Called in every process that is forked."""
        active, ForkedOutput.active = ForkedOutput.active, None
        if active is not None:
            os.dup2(active._writing, 1)
            os.dup2(active._writing, 2)
            sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ForkedOutput.redirect)
