"""Those who hear a study: trackers found by name, and told. One that fails leaves, and the study goes on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import Any

from fedskip.input.errors import InputError, require, said, unknown
from fedskip.input.named import is_own, load
from fedskip.records.table import Row
from fedskip.report.progress import Progress
from fedskip.report.results import Results
from fedskip.report.trackers.base import Start, Tracker
from fedskip.report.trackers.mlflow import MLflow
from fedskip.report.trackers.tensorboard import TensorBoard
from fedskip.report.trackers.wandb import WandB

TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
Trackers = str | Tracker | Iterable[str | Tracker]  # themselves, or their names

log = logging.getLogger(__name__)


def tracker(name: str, field: str = "trackers") -> Tracker:
    """The tracker of that name, or one's own as `MODULE:CLASS`; refuses one that cannot work here."""
    kind = load(name, field) if is_own(name) else TRACKERS.get(name)
    if kind is None:
        raise unknown(field, name, TRACKERS)
    rule = "must be a subclass of fedskip.Tracker"
    require(f"{field} {name}", isinstance(kind, type) and issubclass(kind, Tracker), rule, kind)
    try:
        return kind()
    except InputError as error:
        raise InputError(f"{field} {name}:", error.rule, fix=error.fix) from error.__cause__
    except Exception as error:  # whatever a user's class does when it is made
        rule = f"cannot be made: {type(error).__name__}: {said(error)}"
        raise InputError(f"{field} {name}", rule, fix="its arguments need defaults") from error


class Audience(Tracker):
    """Trackers as one that never fails: who does is named, once, and hears no more."""

    def __init__(self, trackers: Trackers = ()) -> None:
        listed = [trackers] if isinstance(trackers, str | Tracker) else trackers
        self.trackers = [tracker(one) if isinstance(one, str) else one for one in listed]
        self._told: dict[str, int] = {}  # by run, the last round
        kinds = [type(one) for one in self.trackers]
        for one, kind in zip(self.trackers, kinds, strict=True):
            fix = "write trackers=['tensorboard'], say"
            require("trackers", isinstance(one, Tracker), "must be trackers or their names", one, fix)
            once = kinds.count(kind) == 1 or kind not in TRACKERS.values()
            require("trackers", once, "must not hold the same one twice", kind.__name__)

    def on_start(self, start: Start) -> None:
        self._told = {row["run"]: row["round"] for row in start.rows}
        self._tell("on_start", start)

    def on_rows(self, rows: list[Row]) -> None:
        # with `anyway`, a run that the checkpoint lacks starts anew and comes to known rounds again
        new = [row for row in rows if row["round"] > self._told.get(row["run"], 0)]
        self._told |= {row["run"]: row["round"] for row in new}
        for one in list(self.trackers) if new else ():
            self._call(one, "on_rows", [dict(row) for row in new])  # theirs to change

    def on_end(self, results: Results) -> None:
        self._tell("on_end", results)

    def close(self) -> None:
        self._tell("close")

    def _tell(self, hook: str, *what: Any) -> None:
        for one in list(self.trackers):
            self._call(one, hook, *what)

    def _call(self, one: Tracker, hook: str, *what: Any) -> None:
        try:
            getattr(one, hook)(*what)
        except Exception as error:
            self.trackers = [other for other in self.trackers if other is not one]
            what_failed = f"{type(one).__name__} failed in {hook} ({type(error).__name__}: {said(error)})"
            log.warning("%s; the study goes on without it", what_failed)
            if hook != "close":
                with contextlib.suppress(Exception):
                    one.close()


class Heard(Progress):
    """What a session tells while it trains: to the screen, and its rows to trackers, too."""

    def __init__(self, progress: Progress, audience: Audience) -> None:
        self._progress, self._audience = progress, audience

    def preparing(self, rows: int) -> None:
        self._progress.preparing(rows)

    def recorded(self, rows: list[Row]) -> None:
        self._progress.recorded(rows)
        self._audience.on_rows(rows)
