"""Runs that train together, in one engine, and are evaluated as they go."""

from __future__ import annotations

from collections.abc import Iterator

from fedskip.engine import Engine
from fedskip.federation import train
from fedskip.records.results import Row
from fedskip.report.progress import Status
from fedskip.study.judge import Judge, Standing, Waiting


class Group:
    """A row's bits depend on how many rows are computed with it, so a group stays as it was planned."""

    def __init__(self, standings: list[Standing], engine: Engine, judge: Judge) -> None:
        self.standings, self.engine, self.judge = standings, engine, judge

    def advance(self, until: int) -> Iterator[list[Row]]:
        """Train all runs up to round `until`; gives the rows of the history as they are found."""
        standings = {standing.name: standing for standing in self.standings}
        # every run once, on average: models are then evaluated together but not kept long
        waiting, room = Waiting(), self.judge.room(self.standings)
        for run, outcome in train(self.engine, [standing.run for standing in self.standings], until):
            standing = standings[run.name]
            if run.diverged or not self.judge.wants(standing, outcome):
                continue
            standing.evaluated_at = outcome.round
            waiting.append((standing, outcome))
            if len(waiting) >= room:
                yield self.judge(waiting)
                waiting = []
        yield self.judge(waiting)

    def status(self) -> Status:
        runs = [standing.run for standing in self.standings]
        return Status(
            {run.name: run.rounds_done for run in runs},
            frozenset(run.name for run in runs if run.diverged),
            sum(run.steps for run in runs),
            self.engine.preparing,
        )
