"""Where groups of runs are trained: here, or each in a process of its own.

Bits depend on how runs are grouped, which is planned and stored, never on where a group is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from operator import or_
from typing import Protocol

from fedskip.federation import Saved
from fedskip.records.results import Row
from fedskip.report.progress import Status
from fedskip.study.group import Group
from fedskip.study.judge import restore_all, save_all
from fedskip.study.workers import Respond, Tell, Worker, answers

Seen = Callable[[list[Row]], None]


class Place(Protocol):
    """Trains groups of runs."""

    def advance(self, until: int, seen: Seen) -> Iterator[list[Row]]:
        """Train all groups up to round `until`; gives rows to record.

        `seen` gets rows as soon as they are found. Afterwards the runs are here as they were left there.
        """
        ...

    def status(self) -> Status:
        """How far the runs are, also while they advance."""
        ...

    def close(self) -> None:
        """Leave nothing running."""
        ...


class Here:
    """Trains in this process, one group after another."""

    def __init__(self, groups: list[Group]) -> None:
        self.groups = groups

    def advance(self, until: int, seen: Seen) -> Iterator[list[Row]]:
        for group in self.groups:
            for rows in group.advance(until):
                seen(rows)
                yield rows

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
        self._statuses = [group.status() for group in groups]  # as the processes last told

    def advance(self, until: int, seen: Seen) -> Iterator[list[Row]]:
        if not self._workers:
            self._workers = [Worker(partial(_serve, group)) for group in self.groups]
        for worker in self._workers:
            worker.ask(until)

        def told(index: int, news: tuple[list[Row], Status]) -> None:
            rows, self._statuses[index] = news
            seen(rows)

        rows: list[Row] = []
        for index, (found, saved) in answers(self._workers, told):
            rows += found
            restore_all(self.groups[index].standings, *saved)
        # in an order that does not depend on which process was first
        yield sorted(rows, key=lambda row: (row["round"], self._order[row["run"]]))

    def status(self) -> Status:
        return reduce(or_, self._statuses)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers = []


def _serve(group: Group, tell: Tell) -> Respond:
    """In a process of its own: advances its group, and answers with the rows and the state of the runs."""

    def advance(until: int) -> tuple[list[Row], Saved]:
        found: list[Row] = []
        for rows in group.advance(until):
            found += rows
            tell((rows, group.status()))
        return found, save_all(group.standings)

    return advance
