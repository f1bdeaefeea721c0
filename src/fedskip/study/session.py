"""One setting under way: its runs in groups, where they are trained, and their judge."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedskip.data.mix import worst_decile
from fedskip.engine import Stacked
from fedskip.input.errors import InputError, flag
from fedskip.models.metrics import Metric
from fedskip.models.weights import INPUT, write_weights
from fedskip.records.checkpoint import found, load_checkpoint, save_checkpoint
from fedskip.records.history import HistoryFile, summarise
from fedskip.records.provenance import Facts
from fedskip.records.table import Row, Table
from fedskip.report.progress import Course, Progress, Shown
from fedskip.report.units import Metric as ShownMetric
from fedskip.study.advice import advice, guessing
from fedskip.study.engines import make_engine, noted_sizes
from fedskip.study.groups import Apart, Group, Here, Place
from fedskip.study.judge import Judge, Standing, restore_all, save_all
from fedskip.study.machine import Machine
from fedskip.study.prepare import Prepared

CHECKPOINTS = 20  # in a setting, unless `checkpoint_every` says otherwise


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
    ) -> None:
        """`rows`: the most that the stacked engine computes at a time; None: what fits.

        `every`: rounds from one checkpoint to the next; None: what suits the setting.
        `study`: whose checkpoints they are, a digest. `before`: what was noted of the machine.
        """
        setting = prepared.setting
        self.prepared, self.machine, self.setting, self.study = prepared, machine, setting, study
        self.every = every or max(1, setting.rounds // CHECKPOINTS)
        self.judge = Judge(prepared, machine)
        self.warned = advice(prepared)
        self.standings = [
            Standing(run, setting.name, setting.label(run.server.method)) for run in prepared.runs()
        ]
        number = min(machine.processes, len(self.standings))
        self.groups = []
        for i in range(number):
            share, planned = self.standings[i::number], noted_sizes(before or {}, i, number)
            engine = make_engine(prepared, machine, [one.run for one in share], rows, planned)
            self.groups.append(Group(share, engine, self.judge))
        names = [standing.name for standing in self.standings]
        self.place: Place = Apart(self.groups, names) if number > 1 else Here(self.groups)
        self.round = 0  # that all runs have done
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

    def restore(self, folder: Path, anyway: bool = False) -> None:
        """Go on from the last checkpoint in a folder, if there is one.

        `anyway`: runs that it does not hold start at round 0.
        """
        saved = found(folder, self.setting.key)
        if saved:
            round, file = saved[-1]
            tensors, notes = load_checkpoint(file)
            whose = {"study": self.study, "setting": self.setting.key, "round": round}
            if not anyway and any(notes.get(key) != value for key, value in whose.items()):
                rule = f"is not of round {round} of this study's setting {self.setting.key}"
                raise InputError("checkpoint", rule, str(file), "bring back the one that was there")
            missing = [standing.name for standing in self.standings if standing.name not in notes["runs"]]
            if missing and not anyway:
                fix = f"bring back the study that it is of, or start the run anew with {flag('anyway')}"
                raise InputError("checkpoint", f"holds no run {missing[0]}", str(file), fix)
            self.new = missing
            known = [standing for standing in self.standings if standing.name not in missing]
            self.round = notes["round"]
            self.judge.began -= notes["seconds"]
            restore_all(known, tensors, notes["runs"])

    def train(self, folder: Path, history: HistoryFile, progress: Progress) -> Iterator[int]:
        """Train to the end; gives the round of every checkpoint when it is written in `folder`.

        `progress` hears of rows of the history as soon as they are found.
        """
        rounds = self.setting.rounds
        while self.round < rounds:
            going = any(not standing.run.over for standing in self.standings)
            until = min(rounds, (self.round // self.every + 1) * self.every) if going else rounds
            for rows in self.place.advance(until, progress):
                history.append(rows)
            self.round = until
            history.sync()
            tensors, runs = save_all(self.standings)
            name = self.setting.key
            notes = {
                "study": self.study, "setting": name, "round": until, "seconds": self.judge.seconds(),
                "runs": runs,
            }  # fmt: skip
            save_checkpoint(folder, name, until, tensors, notes, history.of(runs, until))
            yield until

    def finish(self, history: HistoryFile) -> list[Row]:
        """The summary of each run, when all rounds are done."""
        self.judge.finish(self.standings)
        rows: list[Row] = []
        runs: dict[str, Table] = {}
        for row in history.table:
            runs.setdefault(row["run"], Table(history.table.columns)).rows.append(row)
        for standing in self.standings:
            found = runs.get(standing.name, Table(history.table.columns))
            higher = self.judge.headline.higher_is_better
            rounds = standing.ended_at or self.setting.rounds
            measured = summarise(found, rounds=rounds, higher=higher)
            measured["full_test"] = measured["last"]
            if self.setting.client_accuracy:
                self.clients[standing.name] = self.judge.by_client(standing)
                measured["worst_clients"] = worst_decile(self.clients[standing.name].values(), higher)
            rows.append(measured | self.judge.summary(standing))
        return rows

    def write_models(self, folder: Path) -> None:
        """Write the last, the best and, where there is one, the final model of every run."""
        model = self.setting.model if isinstance(self.setting.model, dict) else None
        sample = self.prepared.task.sample()
        taken = {"shape": [*sample.shape[1:]], "dtype": str(sample.dtype).removeprefix("torch.")}
        for standing in self.standings:
            kinds = {"last": standing.last_model, "best": standing.best_model, "final": standing.final_model}
            for kind, vectors in kinds.items():
                if vectors is None:  # a study that was made longer may have left one
                    (folder / f"{standing.name}.{kind}.safetensors").unlink(missing_ok=True)
                    continue
                about = {"kind": kind, "model": model, "classes": self.prepared.dataset.classes, INPUT: taken}
                named = {standing.name: vectors}
                if vectors.dim() > 1:  # never merged: every slot has a model of its own
                    named = {f"{standing.name}.slot{k}": vector for k, vector in enumerate(vectors)}
                for name, vector in named.items():
                    state, file = self.prepared.task.layout.views(vector), f"{name}.{kind}.safetensors"
                    write_weights(folder / file, state, about | standing.about())

    def client_rows(self) -> list[Row]:
        """The rows of clients.csv, if the setting asks for them: one for each client and run."""
        return [
            standing.about() | {"client": client, "test_accuracy": score}
            for standing in self.standings
            for client, score in self.clients.get(standing.name, {}).items()
        ]

    def close(self) -> None:
        self.place.close()


def shown(metric: Metric) -> ShownMetric:
    """A metric as reports know it."""
    return ShownMetric(metric.name, metric.percent, metric.higher_is_better)


def in_words(seeds: Sequence[int]) -> str:
    """Seeds as people list them.

    >>> in_words([3]), in_words([3, 4])
    ('seed 3', 'seeds 3, 4')
    """
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
