"""How a setting is trained: its runs in groups, an engine for each group, and the rounds of checkpoints.

A row's bits depend on how many rows are computed with it. So bits depend on how runs are grouped, which is
planned and stored, and never on where a group is trained.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from torch import Tensor

from fedskip.config import StudySpec
from fedskip.data.division import worst_decile
from fedskip.engine import Engine, Loop, Stacked
from fedskip.errors import InputError, flag
from fedskip.federation import (
    Run,
    RunRecord,
    Saved,
    make_plan,
    restore_records,
    save_records,
    train,
)
from fedskip.models.metrics import Metric
from fedskip.models.weights import INPUT
from fedskip.records.checkpoint import group_key, interval
from fedskip.records.folder import Facts
from fedskip.records.history import summarise
from fedskip.records.table import Row
from fedskip.report.progress import RunLabel, SettingProgress, Status
from fedskip.report.results import Metric as ShownMetric
from fedskip.study.evaluation import Evaluation, Waiting
from fedskip.study.machine import Machine
from fedskip.study.prepare import Prepared
from fedskip.study.rehearsal import sanity_checks, score_of_guessing

NO_LIMIT = 1 << 62  # rows

Sizes = tuple[Sequence[int], Sequence[int]]  # numbers of rows, of those without and with a contrast


class Group:
    """Runs that train in one engine, and are evaluated as they go."""

    def __init__(
        self,
        records: list[RunRecord],
        engine: Engine,
        evaluation: Evaluation,
        number: int,
        key: str,
    ) -> None:
        """`number`: which of the setting's groups it is; `key`: how its own checkpoints are called."""
        self.records, self.engine, self.evaluation = records, engine, evaluation
        self.number, self.key = number, key
        self.round = 0  # that all its runs have done
        self.elsewhere: Callable[[], Status] | None = None  # how far it is, if trained elsewhere

    def advance(self, until: int, preparing: Callable[[int], None]) -> Iterator[list[Row]]:
        """Train all runs up to round `until`; gives the rows of the history as they are found.

        `preparing` hears of steps that are compiled, as `Engine.watch` says it.
        """
        self.engine.watch(preparing)
        records = {record.name: record for record in self.records}
        # every run once, on average: models are then evaluated together but not kept long
        waiting, room = Waiting(), self.evaluation.room(self.records)
        for run, outcome in train(self.engine, [record.run for record in self.records], until):
            record = records[run.name]
            record.visits += outcome.visits
            if run.over or not record.wants(outcome):
                continue
            record.evaluated_at = outcome.round
            waiting.append((record, outcome))
            if len(waiting) >= room:
                yield self.evaluation.evaluate(waiting)
                waiting = []
        yield self.evaluation.evaluate(waiting)
        self.round = until

    def status(self) -> Status:
        """How far its runs are, also while they are trained elsewhere."""
        if self.elsewhere is not None:
            return self.elsewhere()
        runs, preparing = [record.run for record in self.records], self.engine.preparing
        return Status(
            {run.name: run.rounds_done for run in runs},
            frozenset(run.name for run in runs if run.diverged),
            sum(run.steps for run in runs),
            preparing.seconds, preparing.doing, preparing.begun, preparing.most,
            {one.name: one.broke for one in self.records if one.run.diverged and one.broke},
            sum(run.server.set_aside for run in runs),
            frozenset(run.name for run in runs if run.ended),
        )  # fmt: skip

    def save(self) -> Saved:
        """The state of its runs."""
        return save_records(self.records)

    def restore(self, round: int, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        """Go on after a round from what `save` gave, of this group or of more runs."""
        restore_records([r for r in self.records if r.name in notes], tensors, notes)
        self.round = round


class SettingPlan:
    """The runs of a setting, how they are trained, and what comes of them."""

    def __init__(
        self,
        prepared: Prepared,
        spec: StudySpec,
        study: str,
        only: int | None = None,
    ) -> None:
        """Plan a setting.

        Args:
            spec: says how many rows the stacked engine computes at a time, else what was noted or what fits.
            study: whose checkpoints they are, a digest.
            only: the number of the one group that is trained here; None: all are.
        """
        assert prepared.machine is not None
        self.prepared, self.machine, self.setting = prepared, prepared.machine, prepared.setting
        self.study, setting, noted = study, prepared.setting, prepared.noted.get("machine", {})
        self.checkpoint_every = interval(setting.rounds, spec.checkpoint_every)
        self.evaluation = Evaluation(prepared)
        self.warnings = sanity_checks(prepared)
        self.new: list[str] = []  # runs that start at round 0, although others go on
        self.groups: list[Group] = []
        total = min(self.machine.processes, len(setting.runs))
        numbers = [*range(total)] if only is None else [only]
        mine = setting.runs if only is None else setting.runs[only::total]
        self.records = [
            RunRecord(
                prepared.run(planned), setting.name, planned.label, stop=setting.stop or {},
                higher_is_better=self.evaluation.headline.higher_is_better,
                validated=len(prepared.division(planned.seed).validation) > 0,
            )
            for planned in mine
        ]  # fmt: skip
        rows = spec.rows or noted.get("rows") or (NO_LIMIT if noted else None)
        for index, number in enumerate(numbers):
            records = self.records[index :: len(numbers)]
            sizes = noted_sizes(noted, number, total)
            runs = [record.run for record in records]
            engine = make_engine(prepared, self.machine, runs, rows, sizes)
            key = group_key(setting.key, number, total)
            self.groups.append(Group(records, engine, self.evaluation, number, key))

    @property
    def round(self) -> int:
        """The round that all runs have done."""
        return min(group.round for group in self.groups)

    def next_checkpoint(self) -> int:
        """The round of the next checkpoint; where all runs are over, the last."""
        rounds, every = self.setting.rounds, self.checkpoint_every
        if all(record.run.over for record in self.records):
            return rounds
        return min(rounds, (self.round // every + 1) * every)

    def facts(self) -> Facts:
        """What the setting resolved to: what shapes its arithmetic, and its data in numbers."""
        plans = [group.engine.plan for group in self.groups if isinstance(group.engine, Stacked)]
        stacked: Facts = {}
        if plans:  # one for each group
            sizes = {
                name: [list(getattr(plan, name)) for plan in plans]
                for name in ("sizes", "contrast_sizes")
            }
            stacked = {**sizes, "rows": plans[0].rows}
        why = self.machine.why
        return {
            **({"why": f"auto: {why}"} if why else {}),  # the engine
            "machine": self.machine.facts() | stacked,
            "parameters": self.prepared.task.layout.size,
            "data": dict(self.prepared.dataset.digests),
            "divisions": {seed: each.facts() for seed, each in self.prepared.divisions.items()},
            "short": self.prepared.short(),
            "methods": [one.label_with(vars(one)) for one in self.prepared.setting.methods],
            "metrics": [shown(metric)._asdict() for metric in self.prepared.task.metrics],
            "guessing": score_of_guessing(self.prepared),
            "warned": self.warnings,
        }

    # --- checkpoints ---------------------------------------------------------------------------------

    def restore_groups(
        self,
        groups: Sequence[Group],
        file: Path,
        tensors: Mapping[str, Tensor],
        notes: Mapping[str, Any],
        *,
        anyway: bool = False,
    ) -> None:
        """Go on from a checkpoint of some groups."""
        round = int(file.name.split(".")[-3])
        whose = {"study": self.study, "setting": self.setting.key, "round": round}
        if not anyway and any(notes.get(name) != value for name, value in whose.items()):
            rule = f"is not of round {round} of this study's setting {self.setting.key}"
            raise InputError("checkpoint", rule, str(file), "bring back the one that was there")
        names = [record.name for group in groups for record in group.records]
        missing = [name for name in names if name not in notes["runs"]]
        if missing and not anyway:
            fix = f"bring back its study, or start the run again with {flag('anyway')}"
            raise InputError("checkpoint", f"holds no run {missing[0]}", str(file), fix)
        self.new += missing
        for group in groups:
            group.restore(notes["round"], tensors, notes["runs"])
        evaluation = self.evaluation
        evaluation.began = min(evaluation.began, evaluation.made - notes["seconds"])

    def checkpoint(self, groups: Sequence[Group], round: int) -> Saved:
        """What a checkpoint holds of some groups after a round."""
        tensors, runs = save_records([record for group in groups for record in group.records])
        return tensors, {
            "study": self.study, "setting": self.setting.key, "round": round,
            "seconds": self.evaluation.seconds(), "runs": runs,
        }  # fmt: skip

    # --- what there is to watch ----------------------------------------------------------------------

    def progress(self, notes: Sequence[str] = ()) -> SettingProgress:
        """What progress shows of the setting; `notes` are said when it begins."""
        setting, engine = self.setting, self.groups[0].engine
        runs = [RunLabel(record.name, record.label, record.seed) for record in self.records]
        needs = engine.plan.needs if isinstance(engine, Stacked) else ()
        labels = ", ".join(dict.fromkeys(run.method for run in runs))
        seeds = f"seed{'s' * (len(setting.seeds) > 1)} {', '.join(map(str, setting.seeds))}"
        added = [f"added: {labels}, {seeds}"] * bool(setting.earlier)
        small = self.prepared.small_clients()
        notes = [*added, *notes, *self.prepared.dataset.notes, *small, *needs, *self.warnings]
        return SettingProgress(
            setting.name, runs, self.round, setting.rounds, shown(self.evaluation.headline),
            notes, self.status, self.evaluation.seconds,
        )  # fmt: skip

    def status(self) -> Status:
        """How far the runs are, also while they are trained."""
        return reduce(or_, [group.status() for group in self.groups])

    # --- when all rounds are done --------------------------------------------------------------------

    def summarise(self, history: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """The rows of summary.csv, and of clients.csv if the setting asks for them."""
        for group in self.groups:  # as many models are evaluated together as were trained together
            self.evaluation.finish(group.records)
        summary, clients = [], []
        by_run: dict[str, list[Row]] = {}
        for row in history:
            by_run.setdefault(row["run"], []).append(row)
        higher = self.evaluation.headline.higher_is_better
        for record in self.records:
            rounds = record.ended_at or self.setting.rounds
            measured = summarise(by_run.get(record.name, []), rounds=rounds, higher=higher)
            measured["full_test"] = measured["last"]
            if self.setting.client_accuracy:
                scores = self.evaluation.by_client(record)
                measured["worst_clients"] = worst_decile(scores.values(), higher)
                clients += [
                    record.about | {"client": client, "test_accuracy": score}
                    for client, score in scores.items()
                ]
            summary.append(measured | self.evaluation.summary(record))
        return summary, clients

    def models(self) -> Iterator[tuple[str, bytes | None]]:
        """The files of all models, one after another; None: there is no such model."""
        model = self.setting.model if isinstance(self.setting.model, dict) else None
        sample = self.prepared.task.sample()
        takes = {"shape": [*sample.shape[1:]], "dtype": str(sample.dtype).removeprefix("torch.")}
        about = {"model": model, "classes": self.prepared.dataset.classes, INPUT: takes}
        for record in self.records:
            yield from record.model_files(self.prepared.task.layout, about)


def make_engine(
    prepared: Prepared,
    machine: Machine,
    runs: Sequence[Run],
    rows: int | None = None,
    sizes: Sizes | None = None,
) -> Engine:
    """The machine's engine for these runs, before their first round.

    `sizes`: those that they began with, if they did: a study that goes on for longer keeps them.
    """
    if machine.engine == "loop":
        return Loop(prepared.task, machine.workers)
    plan = make_plan(
        prepared.task, runs, prepared.setting.rounds, compile=machine.compile, threads=machine.threads,
        streams=machine.streams, kernels=machine.kernels, rows=rows,
    )  # fmt: skip
    if sizes is not None:
        plan = replace(plan, sizes=sizes[0], contrast_sizes=sizes[1])
    return Stacked(prepared.task, plan)


def noted_sizes(machine: Facts, group: int, groups: int) -> Sizes | None:
    """The sizes of a group, if they were noted for as many groups."""
    noted = [machine.get(name) for name in ("sizes", "contrast_sizes")]
    sizes = [each[group] for each in noted if isinstance(each, list) and len(each) == groups]
    whole = all(isinstance(each, list) and all(type(n) is int for n in each) for each in sizes)
    return (sizes[0], sizes[1]) if len(sizes) == len(noted) and whole else None


def shown(metric: Metric) -> ShownMetric:
    """A metric as reports know it."""
    return ShownMetric(metric.name, metric.percent, metric.higher_is_better)
