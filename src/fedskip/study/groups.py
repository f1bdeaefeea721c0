"""Groups of runs that train together, and where: here, or each group in a process of its own.

A row's bits depend on how many rows are computed with it. So bits depend on how runs are grouped, which is
planned and stored, and never on where a group is trained.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import Any, Protocol

from fedskip.engine import Engine
from fedskip.engine.task import Told
from fedskip.federation import Saved, train
from fedskip.records.table import Row
from fedskip.report.progress import Progress, Status
from fedskip.study.judge import Judge, Standing, Waiting, restore_all, save_all
from fedskip.study.workers import Respond, Tell, Worker, answers


class Group:
    """Runs that train in one engine, and are evaluated as they go."""

    def __init__(self, standings: list[Standing], engine: Engine, judge: Judge, number: int = 0) -> None:
        """`number`: which of the setting's groups it is."""
        self.standings, self.engine, self.judge, self.number = standings, engine, judge, number
        self.round = 0  # that all its runs have done

    def advance(self, until: int, told: Told) -> Iterator[list[Row]]:
        """Train all runs up to round `until`; gives the rows of the history as they are found.

        `told` hears of steps that are compiled, as an engine tells it.
        """
        self.engine.watch(told)
        standings = {standing.name: standing for standing in self.standings}
        # every run once, on average: models are then evaluated together but not kept long
        waiting, room = Waiting(), self.judge.room(self.standings)
        for run, outcome in train(self.engine, [standing.run for standing in self.standings], until):
            standing = standings[run.name]
            standing.visits += outcome.visits
            if run.over or not self.judge.wants(standing, outcome):
                continue
            standing.evaluated_at = outcome.round
            waiting.append((standing, outcome))
            if len(waiting) >= room:
                yield self.judge(waiting)
                waiting = []
        yield self.judge(waiting)

    def status(self) -> Status:
        runs, preparing = [standing.run for standing in self.standings], self.engine.preparing
        return Status(
            {run.name: run.rounds_done for run in runs},
            frozenset(run.name for run in runs if run.diverged),
            sum(run.steps for run in runs),
            preparing.seconds, preparing.doing, preparing.begun, preparing.most,
            {one.name: one.broke for one in self.standings if one.run.diverged and one.broke},
            sum(run.server.set_aside for run in runs),
            frozenset(run.name for run in runs if run.ended),
        )  # fmt: skip


class Place(Protocol):
    """Where groups of runs are trained."""

    def advance(self, until: int, progress: Progress) -> Iterator[list[Row]]:
        """Train all groups that are behind up to round `until`; gives rows to record.

        `progress` hears of them as soon as they are found, and of steps that are compiled. Afterwards the
        runs here are as they were there.
        """

    def status(self) -> Status: ...  # how far the runs are, also while they advance

    def close(self) -> None: ...  # leave nothing running


def behind(groups: Sequence[Group], until: int) -> list[Group]:
    """The groups that have yet to come to round `until`: on a cluster, each goes at its own pace."""
    return [group for group in groups if group.round < until]


class Here:
    """Trains in this process, one group after another."""

    def __init__(self, groups: list[Group]) -> None:
        self.groups = groups

    def advance(self, until: int, progress: Progress) -> Iterator[list[Row]]:
        for group in behind(self.groups, until):
            for rows in group.advance(until, progress.preparing):
                progress.recorded(rows)
                yield rows
            group.round = until

    def status(self) -> Status:
        return reduce(or_, [group.status() for group in self.groups])

    def close(self) -> None:
        pass


class Apart:
    """Trains each group in a process of its own, forked when it first advances."""

    def __init__(self, groups: list[Group], runs: Sequence[str]) -> None:
        """`runs`: the names of all runs, in the order in which rows of the same round are recorded."""
        self.groups, self._order = groups, {name: i for i, name in enumerate(runs)}
        self._workers: list[Worker] = []
        self._told: dict[int, tuple[Status, float]] = {}  # and when

    def advance(self, until: int, progress: Progress) -> Iterator[list[Row]]:
        if not self._workers:
            self._workers = [Worker(partial(_serve, group)) for group in self.groups]
        late = [index for index, group in enumerate(self.groups) if group.round < until]
        for index in late:
            self._workers[index].ask(until)

        def told(place: int, news: tuple[str, Any, Status]) -> None:
            kind, what, status = news
            self._told[late[place]] = status, time.monotonic()
            (progress.recorded if kind == "rows" else progress.preparing)(what)

        rows: list[Row] = []
        for place, (found, saved) in answers([self._workers[index] for index in late], told):
            rows += found
            group = self.groups[late[place]]
            restore_all(group.standings, *saved)
            group.round = until
        # in an order that does not depend on which process was first
        yield sorted(rows, key=lambda row: (row["round"], self._order[row["run"]]))

    def status(self) -> Status:
        return reduce(or_, map(self._status, range(len(self.groups))))

    def _status(self, index: int) -> Status:
        if index not in self._told:
            return self.groups[index].status()
        status, when = self._told[index]
        since = time.monotonic() - when if status.doing else 0.0
        return replace(status, preparing=status.preparing + since)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers = []


def _serve(group: Group, tell: Tell) -> Respond:
    """In a process of its own: advances its group, and answers with the rows and the state of the runs."""

    def advance(until: int) -> tuple[list[Row], Saved]:
        found: list[Row] = []
        for rows in group.advance(until, lambda rows: tell(("step", rows, group.status()))):
            found += rows
            tell(("rows", rows, group.status()))
        return found, save_all(group.standings)

    return advance
