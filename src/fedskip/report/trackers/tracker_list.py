"""The trackers of a study: made by name, called together. One that fails is dropped, and the study goes on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import Any

from fedskip.errors import InputError, first_line, require, unknown
from fedskip.parsing import is_own, load
from fedskip.records.table import Row
from fedskip.report.results import Results
from fedskip.report.trackers.base import Start, Tracker
from fedskip.report.trackers.mlflow import MLflow
from fedskip.report.trackers.tensorboard import TensorBoard
from fedskip.report.trackers.wandb import WandB

TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
Trackers = str | Tracker | Iterable[str | Tracker]  # trackers, or their names

log = logging.getLogger(__name__)


def make_tracker(name: str, field: str = "trackers") -> Tracker:
    """Make the tracker of this name, or of `MODULE:CLASS`. Refuses one that cannot work here."""
    kind = load(name, field) if is_own(name) else TRACKERS.get(name)
    if kind is None:
        raise unknown(field, name, TRACKERS)
    rule = "must be a subclass of fedskip.Tracker"
    require(f"{field} {name}", isinstance(kind, type) and issubclass(kind, Tracker), rule, kind)
    try:
        return kind()
    except InputError as error:
        raise InputError(f"{field} {name}:", error.rule, fix=error.fix) from error.__cause__
    except Exception as error:  # a custom class may raise anything
        rule = f"cannot be made: {type(error).__name__}: {first_line(error)}"
        raise InputError(f"{field} {name}", rule, fix="its arguments need defaults") from error


class TrackerList(Tracker):
    """Calls all trackers of a study, and never fails: a failing tracker gets a warning and is dropped."""

    def __init__(self, trackers: Trackers = ()) -> None:
        listed = [trackers] if isinstance(trackers, str | Tracker) else trackers
        self.trackers = [make_tracker(item) if isinstance(item, str) else item for item in listed]
        self._last_round: dict[str, int] = {}  # that trackers got, by run
        kinds = [type(tracker) for tracker in self.trackers]
        for tracker, kind in zip(self.trackers, kinds, strict=True):
            rule, fix = "must be trackers or their names", "write trackers=['tensorboard'], say"
            require("trackers", isinstance(tracker, Tracker), rule, tracker, fix)
            once = kinds.count(kind) == 1 or kind not in TRACKERS.values()
            require("trackers", once, "must not hold the same one twice", kind.__name__)

    def on_start(self, start: Start) -> None:
        self._last_round = {row["run"]: row["round"] for row in start.rows}
        self._call_all("on_start", start)

    def on_rows(self, rows: list[Row]) -> None:
        # with `anyway`, a run that the checkpoint lacks starts again, and repeats rounds
        new = [row for row in rows if row["round"] > self._last_round.get(row["run"], 0)]
        self._last_round |= {row["run"]: row["round"] for row in new}
        for tracker in list(self.trackers) if new else ():
            self._call(tracker, "on_rows", [dict(row) for row in new])  # copies: it may change them

    def on_end(self, results: Results) -> None:
        self._call_all("on_end", results)

    def close(self) -> None:
        self._call_all("close")

    def _call_all(self, hook: str, *arguments: Any) -> None:
        for tracker in list(self.trackers):
            self._call(tracker, hook, *arguments)

    def _call(self, tracker: Tracker, hook: str, *arguments: Any) -> None:
        try:
            getattr(tracker, hook)(*arguments)
        except Exception as error:
            self.trackers = [other for other in self.trackers if other is not tracker]
            name, why = type(tracker).__name__, f"{type(error).__name__}: {first_line(error)}"
            log.warning("%s failed in %s (%s); the study goes on without it", name, hook, why)
            if hook != "close":
                with contextlib.suppress(Exception):
                    tracker.close()
