"""What training a study needs: where it writes, what was noted of it, and who hears of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedskip.config import Setting, StudySpec
from fedskip.files import write_text
from fedskip.records.folder import Facts, Folder, compare
from fedskip.records.history import HistoryFile
from fedskip.records.table import Row, Table
from fedskip.report.progress import Progress
from fedskip.report.trackers import TrackerList
from fedskip.study.extend import made_with
from fedskip.study.prepare import Prepared
from fedskip.study.signals import Stop
from fedskip.version import versions


@dataclass
class StudyContext:
    """A study while it is prepared and trained."""

    progress: Progress
    trackers: TrackerList
    anyway: bool  # go on although the machine or a library has changed
    until_end: contextlib.ExitStack  # closed when the study ends or is stopped
    cluster: Any = None  # trains the settings, where this process does not

    # known when it has been prepared
    spec: StudySpec = field(init=False)
    settings: list[Setting] = field(init=False)  # all of them, with what `extend` added
    study: Facts = field(init=False)  # both as plain values, as study.yaml has them
    # known when it is trained
    folder: Folder = field(init=False)
    history: HistoryFile = field(init=False)
    record: Facts = field(init=False)  # what study.yaml notes
    finished: FinishedSettings = field(init=False)  # what is written of those that are done
    stop: Stop = field(init=False)

    def noted(self, setting: Setting) -> Facts:
        """What was noted of a setting when it began."""
        facts: Facts = self.record.setdefault("settings", {}).get(setting.key, {})
        return facts

    def note(self, prepared: Prepared, facts: Facts) -> None:
        """Note what a setting resolved to; `write` writes it.

        Refuses to go on if it would not repeat what was noted of it before.
        """
        key, before = prepared.setting.key, self.noted(prepared.setting)
        facts = {name: before[name] for name in ("why",) if name in before} | facts  # as it began
        made = made_with(self.record, prepared.setting)
        if before and not self.anyway:
            then = {"versions": made["versions"], **before}
            compare(then, {"versions": versions(), **facts}, self.folder.path)
        self.record["settings"][key], made["versions"] = facts, versions()

    def write(self, prepared: Sequence[Prepared] = ()) -> None:
        """Write study.yaml with what was noted, and who has what in these settings."""
        self.folder.write(self.study, self.record)
        for one in prepared:
            one.save_partitions(self.folder.path)

    def rows_found(self, rows: list[Row]) -> None:
        """Rows of the history have been found, and are written now or at the next checkpoint."""
        self.progress.recorded(rows)
        self.trackers.on_rows(rows)

    def rows_of(self, settings: Sequence[Setting]) -> list[Row]:
        """What the history holds of these settings."""
        runs = {run for setting in settings for run in setting.run_names}
        return [row for row in self.history.table if row["run"] in runs]

    def sort_history(self, settings: Sequence[Setting]) -> None:
        """Order what these settings recorded as if they had been trained one after another.

        Where a setting has several groups, its rows are in the order of rounds, then of runs.
        """
        places = {
            run: (place, self.noted(setting)["machine"]["processes"] > 1, index)
            for place, setting in enumerate(settings)
            for index, run in enumerate(setting.run_names)
        }

        def order(row: Row) -> tuple[int, int, int]:
            place, several, index = places.get(row["run"], (-1, False, 0))
            return (place, row["round"], index) if several else (place, 0, 0)

        self.history.sort(order)


class FinishedSettings:
    """What summary.csv and clients.csv hold of settings that are done."""

    def __init__(self, folder: Folder, settings: Sequence[Setting]) -> None:
        self._folder, self._keys = folder, {setting.key for setting in settings}
        runs = {name for setting in settings for name in setting.run_names}
        file = folder.path / "clients.csv"
        by_client = Table.read(file) if runs and file.exists() else Table(())
        self._rows = [row for row in folder.summary() if row["run"] in runs]
        self._clients = [row for row in by_client if row["run"] in runs]

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def summary(self, setting: Setting) -> list[Row]:
        return [row for row in self._rows if row["run"] in setting.run_names]

    def clients(self, setting: Setting) -> list[Row]:
        return [row for row in self._clients if row["run"] in setting.run_names]

    def drop_others(self) -> None:
        """Remove all others from the summary; with the last of them, the study is finished."""
        (self._folder.path / "report.html").unlink(missing_ok=True)
        file = self._folder.path / "summary.csv"
        if not self._rows:
            file.unlink(missing_ok=True)
        elif len(self._rows) < len(self._folder.summary()):
            write_text(file, Table(self._folder.summary().columns, self._rows).csv())
