"""Trackers send the numbers of a study elsewhere while it trains.

A `Progress` watches a setting in training and asks how far it is. A tracker only gets plain data, which it may
keep. One that fails is dropped, and the study goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import queue
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedskip.config import RECORD, Setting, StudySpec, plain
from fedskip.config.tree import flatten
from fedskip.errors import InputError, first_line, require, unknown
from fedskip.files import refuse_link, write_text
from fedskip.parsing import is_own, load
from fedskip.records.folder import settings_of
from fedskip.records.table import Row
from fedskip.report import TRACKERS
from fedskip.report.results import Results
from fedskip.user_code import contained

Value = bool | int | float | str
LIMIT, PER_RUN = 60.0, 2.0  # seconds that a call may take, and more for each run of the study
WAIT = 10.0  # seconds that training waits for `on_start`
DRAIN = 120.0  # seconds that trackers have to catch up at the end, or a call, if that is longer
WAITING = 1000  # calls that may wait; then training waits
LOOK = 0.5  # seconds between two looks for late trackers
PLURAL = ("name", "methods", "seeds", RECORD)  # keys of a setting that are not a run's

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackedRun:
    """A run and its hyper-parameters."""

    name: str
    setting: str
    method: str  # its label in tables
    seed: int
    # those of its setting, dotted; `setting`, `method`, `method.mu`, `seed`
    keys: Mapping[str, Value]


@dataclass(frozen=True)
class Start:
    """A study that starts or resumes."""

    name: str
    out: Path  # its folder
    runs: Sequence[TrackedRun]
    rows: Sequence[Row]  # its history up to the last checkpoints; later rounds follow

    @classmethod
    def of(
        cls, out: Path, spec: StudySpec, settings: Sequence[Setting], rows: Sequence[Row]
    ) -> Start:
        runs = {}
        for setting, keys in zip(settings, settings_of(plain(spec, settings)), strict=True):
            shared = flatten({k: v for k, v in keys.items() if k not in PLURAL})
            for part in setting.parts():
                for name, method, label, seed in part.runs:
                    fields = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
                    about = {"setting": setting.name, "method": label}
                    about |= {f"method.{field}": value for field, value in fields.items()} | shared
                    values = {  # numbers and texts as they are
                        key: value if isinstance(value, Value) else str(value)
                        for key, value in about.items()
                        if value is not None
                    }
                    own = values | {"seed": seed}
                    runs[name] = TrackedRun(name, setting.name, label, seed, own)
        return cls(spec.name, out, [*runs.values()], [row for row in rows if row["run"] in runs])

    @cached_property
    def id(self) -> str:
        """A lasting id of the folder, for servers that hold many studies."""
        file = self.out / ".tracked"
        refuse_link(file)  # what it holds is sent
        if not file.exists():
            write_text(file, uuid.uuid4().hex[:16])
        return file.read_text(encoding="utf-8").strip()


class Tracker:
    """Gets the numbers of a study while it trains. Write a subclass to send them elsewhere."""

    def on_start(self, start: Start) -> None:
        """The study starts, or resumes from its checkpoints with the rows in `start.rows`."""

    def on_rows(self, rows: list[Row]) -> None:
        """The history has new rows. Those of a run come in order, and never twice."""

    def on_end(self, results: Results) -> None:
        """The study is finished."""

    def close(self) -> None:
        """The study has ended, failed or was stopped: close what is open. Only a kill skips this."""


Trackers = str | Tracker | Iterable[str | Tracker]  # trackers, or their names


def finite_numbers(row: Row) -> dict[str, float]:
    """The measurements in a row that are finite.

    >>> finite_numbers({"run": "a.FedAvg.s0", "seed": 0, "round": 5, "merges": 1, "test_loss": float("nan")})
    {'merges': 1}
    """
    return {
        name: value
        for name, value in row.items()
        if name not in ("seed", "round") and isinstance(value, int | float) and math.isfinite(value)
    }


@contextlib.contextmanager
def importing(name: str) -> Iterator[None]:
    """Inside, a tracker imports its library. If that fails, the error says how to install it."""
    try:
        yield
    except Exception as error:  # a library that does not fit another may raise anything
        missing = isinstance(error, ModuleNotFoundError)
        rule = "is not installed" if missing else f"cannot be imported ({first_line(error)})"
        fix = f'install it with `pip install "fedskip[{name}]"`'
        raise InputError(name, rule, fix=fix) from error


def make_tracker(name: str, field: str = "trackers") -> Tracker:
    """Make the tracker of this name, or of `MODULE:CLASS`. Refuses one that cannot work here."""
    if name not in TRACKERS and not is_own(name):
        raise unknown(field, name, TRACKERS)
    kind = load(f"{__name__}.{name}:{TRACKERS[name]}" if name in TRACKERS else name, field)
    rule = "must be a subclass of fedskip.Tracker"
    require(f"{field} {name}", isinstance(kind, type) and issubclass(kind, Tracker), rule, kind)
    try:
        with contained(f"{field} {name}"):
            tracker: Tracker = kind()
    except InputError as error:
        raise InputError(f"{field} {name}:", error.rule, fix=error.fix) from error.__cause__
    except Exception as error:  # a custom class may raise anything
        rule = f"cannot be made: {type(error).__name__}: {first_line(error)}"
        raise InputError(f"{field} {name}", rule, fix="its arguments need defaults") from error
    return tracker


class TrackerList(Tracker):
    """Calls all trackers of a study, and never fails: a failing tracker gets a warning and is dropped."""

    def __init__(self, trackers: Trackers = ()) -> None:
        listed = [trackers] if isinstance(trackers, str | Tracker) else trackers
        self.trackers = [make_tracker(item) if isinstance(item, str) else item for item in listed]
        self._last_round: dict[str, int] = {}  # that trackers got, by run
        self._threads: list[TrackerThread] = []
        self._closed = threading.Event()
        kinds = [type(tracker) for tracker in self.trackers]
        for tracker, kind in zip(self.trackers, kinds, strict=True):
            rule, fix = "must be trackers or their names", "write trackers=['tensorboard'], say"
            require("trackers", isinstance(tracker, Tracker), rule, tracker, fix)
            once = kinds.count(kind) == 1 or not kind.__module__.startswith(f"{__name__}.")
            require("trackers", once, "must not hold the same one twice", kind.__name__)

    def on_start(self, start: Start) -> None:
        self._last_round = {row["run"]: row["round"] for row in start.rows}
        limit = LIMIT + PER_RUN * len(start.runs)
        self._threads = [TrackerThread(tracker, limit) for tracker in self.trackers]
        threading.Thread(target=self._watch, daemon=True).start()
        self._call("on_start", start)
        # most are ready by then: what they import is not half imported when processes are forked
        end = time.monotonic() + WAIT
        for thread in self._threads:
            thread.begun.wait(max(0.0, end - time.monotonic()))

    def on_rows(self, rows: list[Row]) -> None:
        # with `anyway`, a run that the checkpoint lacks starts again, and repeats rounds
        new = [row for row in rows if row["round"] > self._last_round.get(row["run"], 0)]
        self._last_round |= {row["run"]: row["round"] for row in new}
        for thread in self._threads if new else ():
            thread.call("on_rows", [dict(row) for row in new])  # copies, which a tracker may change

    def on_end(self, results: Results) -> None:
        self._call("on_end", results)

    def close(self) -> None:
        """Let the trackers catch up, and drop those that do not."""
        try:
            self._call("close")
            if not self._threads:  # the study has failed before its start
                for tracker in self.trackers:
                    with contextlib.suppress(Exception):
                        tracker.close()
            drain = max([DRAIN, *(thread.limit for thread in self._threads)])
            end = time.monotonic() + drain
            for thread in self._threads:
                if not thread.over.wait(WAIT):
                    log.warning("waiting for %s to catch up; Ctrl-C ends this", thread.name)
                if not thread.over.wait(max(0.0, end - time.monotonic())):
                    thread.abandon(f"has not caught up {drain:g} s after the end")
        finally:
            self._closed.set()

    def _call(self, hook: str, *arguments: Any) -> None:
        for thread in self._threads:
            thread.call(hook, *arguments)

    def _watch(self) -> None:
        """Drop trackers that do not come back."""
        while not self._closed.wait(LOOK):
            for thread in self._threads:
                thread.drop_if_late()


class TrackerThread:
    """Calls one tracker in a thread of its own, so that training need not wait for it.

    It ends with `close`, or when the tracker is dropped.
    """

    def __init__(self, tracker: Tracker, limit: float) -> None:
        """`limit`: seconds that a call may take."""
        self.tracker, self.limit, self.name = tracker, limit, type(tracker).__name__
        self.begun, self.over = threading.Event(), threading.Event()
        self._dropped = threading.Event()
        self.calls: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(WAITING)
        self._current: tuple[str, float] | None = None  # the call, and since when
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def call(self, hook: str, *arguments: Any) -> None:
        """Call it in turn. Waits while too many calls wait, so that a slow tracker loses nothing."""
        while not self._dropped.is_set():
            with contextlib.suppress(queue.Full):
                self.calls.put((hook, arguments), timeout=LOOK)
                return

    def drop_if_late(self) -> None:
        current = self._current
        if current is not None and time.monotonic() - current[1] > self.limit:
            self.abandon(f"has not come back from {current[0]} for {self.limit:g} s")

    def abandon(self, why: str) -> None:
        """Drop it while a call goes on."""
        self._drop(why)
        self.begun.set()
        self.over.set()

    def _drop(self, why: str) -> None:
        """Say once why the study goes on without it."""
        with self._lock:
            if not self._dropped.is_set():
                log.warning("%s %s; the study goes on without it", self.name, why)
            self._dropped.set()

    def _serve(self) -> None:
        hook = ""
        while hook != "close" and not self._dropped.is_set():
            hook, arguments = self.calls.get()
            try:
                self._call(hook, *arguments)
            except BaseException as error:  # whatever it may raise; it may exit, too
                why = error.rule if isinstance(error, InputError) else ""
                why = why or f"{type(error).__name__}: {first_line(error)}"
                self._drop(f"failed in {hook} ({why})")
            self.calls.task_done()
            self.begun.set()
        if hook != "close":
            with contextlib.suppress(BaseException):
                self._call("close")
        self.over.set()

    def _call(self, hook: str, *arguments: Any) -> None:
        self._current = hook, time.monotonic()
        try:
            with contained(self.name):
                getattr(self.tracker, hook)(*arguments)
        finally:
            self._current = None
