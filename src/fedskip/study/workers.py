"""Where groups of runs are trained: in this process, or each group in a process of its own."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from fedskip.federation import Saved
from fedskip.records.table import Row
from fedskip.report.progress import Status
from fedskip.study.processes import Process, Respond, Tell, answers
from fedskip.study.setting_plan import Group

Preparing = Callable[[int], None]  # hears of steps that are compiled, as `Engine.watch` says it


class Workers(Protocol):
    """Train groups of runs; the same groups give the same bits wherever they are trained."""

    def advance(
        self, groups: Sequence[Group], until: int, preparing: Preparing
    ) -> Iterator[list[Row]]:
        """Train groups up to round `until`; gives the rows of the history as they are found.

        Afterwards the runs here are as they were where they were trained.
        """

    def close(self) -> None:
        """Leave nothing running."""


class InProcess:
    """Trains in this process, one group after another."""

    def advance(
        self, groups: Sequence[Group], until: int, preparing: Preparing
    ) -> Iterator[list[Row]]:
        for group in groups:
            yield from group.advance(until, preparing)

    def close(self) -> None:
        pass


class Forked:
    """Trains each group in a process of its own, forked when its group first advances."""

    def __init__(self) -> None:
        self._processes: dict[int, Process] = {}  # by the number of the group

    def advance(
        self, groups: Sequence[Group], until: int, preparing: Preparing
    ) -> Iterator[list[Row]]:
        for group in groups:
            if group.number not in self._processes:
                self._processes[group.number] = Process(partial(_serve, group))
        processes = [self._processes[group.number] for group in groups]
        for process in processes:
            process.ask(until)
        for index, is_answer, message in answers(processes):
            group = groups[index]
            if is_answer:
                group.restore(until, *message)
                continue
            kind, content, status = message
            group.elsewhere = partial(since, status, time.monotonic())
            if kind == "rows":
                yield content
            else:
                preparing(content)

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes = {}


def since(status: Status, when: float) -> Status:
    """What a process said of its runs at some time, with the time that it has been compiling since."""
    seconds = time.monotonic() - when if status.doing else 0.0
    return replace(status, preparing=status.preparing + seconds)


def _serve(group: Group, tell: Tell) -> Respond:
    """In a process of its own: advances its group, and answers with the state of the runs."""

    def advance(until: int) -> Saved:
        for rows in group.advance(until, lambda rows: tell(("step", rows, group.status()))):
            tell(("rows", rows, group.status()))
        return group.save()

    return advance
