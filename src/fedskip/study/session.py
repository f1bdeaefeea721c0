"""One setting under way: its runs in groups, where they are trained, and their judge."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedskip.data.mix import worst_decile
from fedskip.engine import Stacked
from fedskip.files import write_bytes
from fedskip.input.errors import InputError, flag
from fedskip.models.metrics import Metric
from fedskip.models.weights import INPUT
from fedskip.models.weights import packed as packed_weights
from fedskip.records.checkpoint import group_key, load_checkpoint, newest, save_checkpoint
from fedskip.records.history import HistoryFile, summarise
from fedskip.records.provenance import Facts
from fedskip.records.table import Row
from fedskip.report.progress import Course, Progress, Shown
from fedskip.report.units import Metric as ShownMetric
from fedskip.study.advice import advice, guessing
from fedskip.study.engines import make_engine, noted_sizes
from fedskip.study.groups import Apart, Group, Here, Place, behind
from fedskip.study.judge import Judge, Standing, restore_all, save_all
from fedskip.study.machine import Machine
from fedskip.study.prepare import Prepared

CHECKPOINTS = 20  # in a setting, unless `checkpoint_every` says otherwise


def interval(rounds: int, every: int | None) -> int:
    """Rounds from one checkpoint to the next; `every`: as the study says."""
    return every or max(1, rounds // CHECKPOINTS)


class Session:
    """Trains a setting, from checkpoint to checkpoint."""

    def __init__(
        self,
        prepared: Prepared,
        machine: Machine,
        rows: int | None = None,
        every: int | None = None,
        study: str = "",
        before: Facts | None = None,
        only: int | None = None,
    ) -> None:
        """`rows`: the most that the stacked engine computes at a time; None: what fits.

        `every`: rounds from one checkpoint to the next; None: what suits the setting.
        `study`: whose checkpoints they are, a digest. `before`: what was noted of the machine.
        `only`: the number of the one group that is trained here; None: all are.
        """
        setting = prepared.setting
        self.prepared, self.machine, self.setting, self.study = prepared, machine, setting, study
        self.every = interval(setting.rounds, every)
        self.judge = Judge(prepared, machine)
        self.warned = advice(prepared)
        self.number = min(machine.processes, len(setting.run_names))  # of groups
        mine = slice(None) if only is None else slice(only, None, self.number)
        self.standings = [
            Standing(run, setting.name, setting.label(run.server.method))
            for run in itertools.islice(prepared.runs(), mine.start, mine.stop, mine.step)
        ]
        self.groups = []
        for i in range(self.number) if only is None else [only]:
            share = self.standings if only is not None else self.standings[i :: self.number]
            planned = noted_sizes(before or {}, i, self.number)
            engine = make_engine(prepared, machine, [one.run for one in share], rows, planned)
            self.groups.append(Group(share, engine, self.judge, i))
        names = [standing.name for standing in self.standings]
        apart = len(self.groups) > 1 and machine.apart
        self.place: Place = Apart(self.groups, names) if apart else Here(self.groups)
        self.clients: dict[str, dict[str | int, float]] = {}  # by run, when all rounds are done
        self.new: list[str] = []  # runs that start at round 0, although others go on

    def facts(self) -> Facts:
        """What the setting resolved to: what shapes its arithmetic, and its data in numbers."""
        plans = [group.engine.plan for group in self.groups if isinstance(group.engine, Stacked)]
        stacked: Facts = {}
        if plans:  # one for each group
            sizes = {name: [list(getattr(p, name)) for p in plans] for name in ("sizes", "contrast_sizes")}
            stacked = {**sizes, "rows": plans[0].rows}
        why = self.prepared.choice.why if self.prepared.choice else ""
        return {
            **({"why": f"auto: {why}"} if why else {}),  # the engine
            "machine": self.machine.facts() | stacked,
            "parameters": self.prepared.task.layout.size,
            "data": dict(self.prepared.pool.digests),
            "divisions": {seed: each.facts() for seed, each in self.prepared.divisions.items()},
            "short": self.prepared.short(),
            "metrics": [shown(metric)._asdict() for metric in self.prepared.metrics],
            "guessing": guessing(self.prepared),
            "warned": self.warned,
        }

    def course(self, notes: Sequence[str] = ()) -> Course:
        """What there is to watch; `notes` are said when it begins."""
        setting, engine = self.setting, self.groups[0].engine
        runs = [Shown(standing.name, standing.label, standing.seed) for standing in self.standings]
        needs = engine.plan.needs if isinstance(engine, Stacked) else ()
        labels = ", ".join(dict.fromkeys(run.label for run in runs))
        later = [f"added: {labels}, {in_words(setting.seeds)}"] * (setting.key != setting.name)
        known = [*self.prepared.dataset.notes, *self.prepared.small_clients(), *needs, *self.warned]
        return Course(
            setting.name, runs, self.round, setting.rounds, shown(self.judge.headline),
            [*later, *notes, *known], self.place.status, self.judge.seconds,
        )  # fmt: skip

    @property
    def round(self) -> int:
        """That all runs have done."""
        return min(group.round for group in self.groups)

    def restore(self, folder: Path, anyway: bool = False) -> None:
        """Go on from the last checkpoints in a folder, if there are any.

        `anyway`: runs that they do not hold start at round 0.
        """
        for held in newest(folder, self.setting.key):
            if held.path is not None:
                groups = [group for group in self.groups if held.group in (None, group.number)]
                self.take_back(groups, held.path, *load_checkpoint(held.path), anyway=anyway)

    def take_back(
        self,
        groups: Sequence[Group],
        file: Path,
        tensors: Mapping[str, Tensor],
        notes: Mapping[str, Any],
        *,
        anyway: bool = False,
    ) -> None:
        """Go on from a checkpoint of some groups."""
        key, round = self.setting.key, int(file.name.split(".")[-3])
        whose = {"study": self.study, "setting": key, "round": round}
        if not anyway and any(notes.get(name) != value for name, value in whose.items()):
            rule = f"is not of round {round} of this study's setting {key}"
            raise InputError("checkpoint", rule, str(file), "bring back the one that was there")
        standings = [standing for group in groups for standing in group.standings]
        missing = [standing.name for standing in standings if standing.name not in notes["runs"]]
        if missing and not anyway:
            fix = f"bring back the study that it is of, or start the run anew with {flag('anyway')}"
            raise InputError("checkpoint", f"holds no run {missing[0]}", str(file), fix)
        self.new += missing
        known = [standing for standing in standings if standing.name not in missing]
        restore_all(known, tensors, notes["runs"])
        self.judge.began = min(self.judge.began, self.judge.made - notes["seconds"])
        for group in groups:
            group.round = notes["round"]

    def cut(self, history: HistoryFile) -> None:
        """Forget what runs recorded after the round that they go on from."""
        rounds = {one.name: group.round for group in self.groups for one in group.standings}
        history.cut(rounds, self.new)

    def train(self, folder: Path, history: HistoryFile, progress: Progress) -> Iterator[int]:
        """Train to the end; gives the round of every checkpoint when it is written in `folder`.

        `progress` hears of rows of the history as soon as they are found.
        """
        while self.round < self.setting.rounds:
            until = self.next_stop()
            late = behind(self.groups, until)
            for rows in self.place.advance(until, progress):
                history.append(rows)
            history.sync()
            level = all(group.round == until for group in self.groups)
            for key, groups in {self.setting.key: self.groups}.items() if level else self._by_key(late):
                tensors, notes = self.saved(groups, until)
                save_checkpoint(folder, key, until, tensors, notes, history.of(notes["runs"], until))
            yield until

    def next_stop(self) -> int:
        """The round of the next checkpoint; where all runs are over, the last."""
        going = any(not standing.run.over for standing in self.standings)
        rounds = self.setting.rounds
        return min(rounds, (self.round // self.every + 1) * self.every) if going else rounds

    def saved(self, groups: Sequence[Group], round: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint holds of some groups after a round."""
        tensors, runs = save_all([standing for group in groups for standing in group.standings])
        return tensors, {
            "study": self.study, "setting": self.setting.key, "round": round,
            "seconds": self.judge.seconds(), "runs": runs,
        }  # fmt: skip

    def _by_key(self, groups: Sequence[Group]) -> Collection[tuple[str, list[Group]]]:
        """Groups one by one, each with what its checkpoints are called."""
        return [(group_key(self.setting.key, group.number, self.number), [group]) for group in groups]

    def finish(self, history: Sequence[Row]) -> list[Row]:
        """The summary of each run, when all rounds are done."""
        for group in self.groups:  # as many models are evaluated together as were trained together
            self.judge.finish(group.standings)
        rows: list[Row] = []
        runs: dict[str, list[Row]] = {}
        for row in history:
            runs.setdefault(row["run"], []).append(row)
        for standing in self.standings:
            higher = self.judge.headline.higher_is_better
            rounds = standing.ended_at or self.setting.rounds
            measured = summarise(runs.get(standing.name, []), rounds=rounds, higher=higher)
            measured["full_test"] = measured["last"]
            if self.setting.client_accuracy:
                self.clients[standing.name] = self.judge.by_client(standing)
                measured["worst_clients"] = worst_decile(self.clients[standing.name].values(), higher)
            rows.append(measured | self.judge.summary(standing))
        return rows

    def write_models(self, folder: Path) -> None:
        """Write the last, the best and, where there is one, the final model of every run."""
        for name, content in self.models():
            write_model(folder / name, content)

    def models(self) -> Iterator[tuple[str, bytes | None]]:
        """The files of all models, one after another; None: there is no such model."""
        model = self.setting.model if isinstance(self.setting.model, dict) else None
        sample = self.prepared.task.sample()
        taken = {"shape": [*sample.shape[1:]], "dtype": str(sample.dtype).removeprefix("torch.")}
        for standing in self.standings:
            kinds = {"last": standing.last_model, "best": standing.best_model, "final": standing.final_model}
            for kind, vectors in kinds.items():
                if vectors is None:
                    yield f"{standing.name}.{kind}.safetensors", None
                    continue
                about = {"kind": kind, "model": model, "classes": self.prepared.dataset.classes, INPUT: taken}
                named = {standing.name: vectors}
                if vectors.dim() > 1:  # never merged: every slot has a model of its own
                    named = {f"{standing.name}.slot{k}": vector for k, vector in enumerate(vectors)}
                for name, vector in named.items():
                    state = self.prepared.task.layout.views(vector)
                    yield f"{name}.{kind}.safetensors", packed_weights(state, about | standing.about())

    def client_rows(self) -> list[Row]:
        """The rows of clients.csv, if the setting asks for them: one for each client and run."""
        return [
            standing.about() | {"client": client, "test_accuracy": score}
            for standing in self.standings
            for client, score in self.clients.get(standing.name, {}).items()
        ]

    def close(self) -> None:
        self.place.close()


def write_model(path: Path, content: bytes | None) -> None:
    """Write a model; None: a study that was made longer may have left one that is no more."""
    if content is None:
        path.unlink(missing_ok=True)
    else:
        write_bytes(path, content)


def shown(metric: Metric) -> ShownMetric:
    """A metric as reports know it."""
    return ShownMetric(metric.name, metric.percent, metric.higher_is_better)


def in_words(seeds: Sequence[int]) -> str:
    """Seeds as people list them.

    >>> in_words([3]), in_words([3, 4])
    ('seed 3', 'seeds 3, 4')
    """
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
