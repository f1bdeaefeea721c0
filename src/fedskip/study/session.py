"""One setting under way: its runs in groups, where they are trained, its clock and its judge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedskip.engine import Stacked
from fedskip.records.checkpoint import found, load_checkpoint, save_checkpoint
from fedskip.records.history import HistoryFile, summarise
from fedskip.records.provenance import Facts
from fedskip.records.results import Row
from fedskip.report.progress import Course, Shown
from fedskip.study.engines import make_engine
from fedskip.study.group import Group
from fedskip.study.judge import Clock, Judge, Standing, restore_all, save_all
from fedskip.study.machine import Machine
from fedskip.study.places import Apart, Here, Place, Seen
from fedskip.study.prepare import Prepared

CHECKPOINTS = 20  # in a setting, unless `checkpoint_every` says otherwise


class Session:
    """Trains a setting, from checkpoint to checkpoint."""

    def __init__(
        self, prepared: Prepared, machine: Machine, rows: int | None = None, every: int | None = None
    ) -> None:
        """`rows`: the most that the stacked engine computes at a time; None: what fits.

        `every`: rounds from one checkpoint to the next; None: what suits the setting.
        """
        setting = prepared.setting
        self.prepared, self.machine, self.setting = prepared, machine, setting
        self.every = every or max(1, setting.rounds // CHECKPOINTS)
        self.clock = Clock()
        self.judge = Judge(prepared, machine, self.clock)
        self.standings = [
            Standing(prepared.run(method, seed), setting.name)
            for method in setting.methods
            for seed in setting.seeds
        ]
        number = min(machine.processes, len(self.standings))
        self.groups: list[Group] = []
        for share in (self.standings[i::number] for i in range(number)):
            engine = make_engine(prepared, machine, [standing.run for standing in share], rows)
            self.groups.append(Group(share, engine, self.judge))
        names = [standing.name for standing in self.standings]
        self.place: Place = Apart(self.groups, names) if number > 1 else Here(self.groups)
        self.round = 0  # that all runs have done

    def facts(self) -> Facts:
        """What the setting resolved to: what shapes its arithmetic, and its data in numbers."""
        plans = [group.engine.plan for group in self.groups if isinstance(group.engine, Stacked)]
        stacked: Facts = {}
        if plans:  # one for each process
            stacked = {
                "sizes": [list(plan.sizes) for plan in plans],
                "contrast_sizes": [list(plan.contrast_sizes) for plan in plans],
                "rows": plans[0].rows,
            }
        return {
            "machine": self.machine.facts() | stacked,
            "parameters": self.prepared.task.layout.size,
            "data": self.prepared.pool.digests,
            "divisions": {
                seed: division.facts() for seed, division in self.prepared.divisions.items()
            },
        }  # fmt: skip

    def course(self) -> Course:
        engine = self.groups[0].engine
        return Course(
            self.setting.name,
            [Shown(standing.name, standing.label, standing.seed) for standing in self.standings],
            self.round,
            self.setting.rounds,
            self.setting.metric,
            engine.plan.needs if isinstance(engine, Stacked) else (),
            self.place.status,
            self.clock.seconds,
        )

    def restore(self, folder: Path) -> None:
        """Go on from the last checkpoint in a folder, if there is one."""
        saved = found(folder, self.setting.name)
        if saved:
            tensors, notes = load_checkpoint(saved[-1][1])
            self.round, self.clock.before = notes["round"], notes["seconds"]
            restore_all(self.standings, tensors, notes["runs"])

    def train(self, folder: Path, history: HistoryFile, seen: Seen) -> Iterator[int]:
        """Train to the end; gives the round of every checkpoint when it is written in `folder`.

        `seen` gets rows of the history as soon as they are found.
        """
        rounds = self.setting.rounds
        while self.round < rounds:
            until = min(rounds, (self.round // self.every + 1) * self.every)
            for rows in self.place.advance(until, seen):
                history.append(rows)
            self.round = until
            history.sync()
            tensors, runs = save_all(self.standings)
            notes = {"round": until, "seconds": self.clock.seconds(), "runs": runs}
            save_checkpoint(folder, self.setting.name, until, tensors, notes)
            yield until

    def finish(self, history: HistoryFile) -> list[Row]:
        """The summary of each run, when all rounds are done."""
        self.judge.finish(self.standings)
        rows = []
        for standing in self.standings:
            measured = summarise(history.table.where(run=standing.name), rounds=self.setting.rounds)
            rows.append(measured | {"full_test": measured["last"]} | self.judge.summary(standing))
        return rows

    def close(self) -> None:
        self.place.close()
