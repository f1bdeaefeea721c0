"""The runs of one setting, trained together: feeds the engine, evaluates what merges, keeps the best."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.engine import make_engine
from fedskip.engine.base import Trained, Visits
from fedskip.engine.evaluate import Evaluator, Scores
from fedskip.entry import Entry
from fedskip.federation import Outcome, Saved
from fedskip.history import Row
from fedskip.machine import Machine
from fedskip.methods.text import in_a_file
from fedskip.prepare import Prepared, partition_seed
from fedskip.processes import Forked, Tell, answers

PENDING_BYTES = 1 << 30  # models that wait to be evaluated


@dataclass
class Batch:
    """A `Work` for the engine, made of all methods and seeds of a setting."""

    prepared: Prepared
    machine: Machine
    record: Callable[[list[Row]], None]  # where rows of the history go
    seen: Callable[[list[Row]], None]  # who wants to see them as soon as they are there
    rows: int | None = None  # the most in a batch of the stacked engine; None: what fits
    entries: list[Entry] = field(init=False)
    rounds: int = field(init=False)
    steps: int = 0  # client-steps done
    seconds: float = 0.0  # time spent before this process took over

    def __post_init__(self) -> None:
        setting = self.prepared.setting
        self.name, self.rounds = setting.name, setting.rounds
        self.entries = [
            Entry(
                f"{self.name}.{in_a_file(method.label)}.s{seed}",
                method,
                seed,
                self.prepared.run(method, seed),
            )
            for method in setting.methods
            for seed in setting.seeds
        ]
        apart = min(self.machine.processes, len(self.entries))
        self.shares = [self.entries[i::apart] for i in range(apart)]  # one for each process
        self.engines = [
            make_engine(self.prepared, self.machine, [entry.run for entry in share], self.rows)
            for share in self.shares
        ]
        self._forked: list[Forked] = []
        self.evaluator = Evaluator(
            self.prepared.task, stacked=self.machine.engine == "stacked" and not self.machine.streams,
            workers=self.machine.workers, threads=self.machine.threads,
        )  # fmt: skip
        self.until = 0
        self.round = 0
        self._owner: dict[Visits, Entry] = {}
        self._under_way: dict[Visits, int] = {}
        self._pending: list[tuple[Entry, Outcome]] = []
        self._started = time.perf_counter()
        self._preparing = 0.0  # as processes told

    # --- training ----------------------------------------------------------------------------------

    def advance(self, until: int) -> None:
        """Train until every run has done so many rounds, and evaluate all there is to evaluate."""
        if len(self.shares) > 1:
            self._advance_apart(until)
        else:
            self.until = until
            self.engines[0].run(self)
            self.evaluate()
        self.round = until

    def _advance_apart(self, until: int) -> None:
        """Each process trains its share of the runs, and what it saves is restored here."""
        if not self._forked:
            self._forked = [Forked(functools.partial(self._become, i)) for i in range(len(self.shares))]
        for forked in self._forked:
            forked.ask(until)
        rows: list[Row] = []
        for _, (found, tensors, notes) in answers(self._forked, self._heard):
            rows += found
            self._restore_runs(tensors, notes["runs"])
        order = {entry.name: i for i, entry in enumerate(self.entries)}
        self.record(sorted(rows, key=lambda row: (row["round"], order[row["run"]])))

    def _heard(self, told: tuple[list[Row], int, float, dict[str, tuple[float, bool]]]) -> None:
        rows, steps, preparing, states = told
        self.steps += steps
        self._preparing = max(self._preparing, preparing)
        for entry in self.entries:
            entry.told, entry.diverged = states.get(entry.name, (entry.told, entry.diverged))
        self.seen(rows)

    def _become(
        self, share: int, tell: Tell
    ) -> Callable[[int], tuple[list[Row], dict[str, Tensor], dict[str, Any]]]:
        """In a process of its own: keep one share of the runs, and answer with how they went on."""
        self.entries, self.engines = self.shares[share], [self.engines[share]]
        self.shares = [self.entries]
        self.steps = 0
        recorded: list[Row] = []
        self.record = recorded.extend

        def seen(rows: list[Row]) -> None:
            states = {entry.name: (entry.rounds_done, entry.diverged) for entry in self.entries}
            tell((rows, self.steps, self.preparing, states))
            self.steps = 0

        self.seen = seen

        def advance(until: int) -> tuple[list[Row], dict[str, Tensor], dict[str, Any]]:
            recorded.clear()
            self.advance(until)
            self.seen([])
            return recorded, *self.save()

        return advance

    def ready(self) -> list[Visits]:
        found = []
        for entry in self.entries:
            if not entry.diverged:
                for visits in entry.run.ready(self.until):
                    self._owner[visits], self._under_way[visits] = entry, len(visits.routes)
                    found.append(visits)
        return found

    def done(self, visits: Visits, ks: list[int], trained: Trained) -> None:
        entry = self._owner[visits]
        self._under_way[visits] -= len(ks)
        if not self._under_way[visits]:
            del self._owner[visits], self._under_way[visits]
        self.steps += sum(visits.routes[k].steps for k in ks)
        outcome = entry.run.done(visits, ks, trained)
        if outcome is not None and not entry.diverged and self._wanted(entry, outcome):
            self._pending.append((entry, outcome))
            # every entry once, on average: models are then evaluated together but not kept long
            if len(self._pending) >= min(len(self.entries), self._room()):
                self.evaluate()

    def _wanted(self, entry: Entry, outcome: Outcome) -> bool:
        """Merges are thinned by `eval_every`; the last one always counts."""
        every, period = self.prepared.setting.eval_every, entry.run.server.period
        due = outcome.round // every > entry.evaluated_at // every
        if not due and any(period.merges(t) for t in range(outcome.round + 1, self.rounds + 1)):
            return False
        entry.evaluated_at = outcome.round
        return True

    def _room(self) -> int:
        layout, slots = self.prepared.task.layout, self.prepared.setting.cohort
        slotted = self.prepared.setting.slot_accuracy or any(
            not entry.run.server.period.segments for entry in self.entries
        )
        models = 1 + slots * slotted
        return max(1, PENDING_BYTES // (4 * layout.size * models))

    # --- evaluation --------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Score the models that wait, those with the same test set together."""
        pending, self._pending = self._pending, []
        rows: dict[int, Row] = {}
        for seed in sorted({self._division_seed(entry) for entry, _ in pending}):
            chosen = [i for i, (entry, _) in enumerate(pending) if self._division_seed(entry) == seed]
            for i, row in zip(chosen, self._rows([pending[i] for i in chosen]), strict=True):
                rows[i] = row
        noted = [self._note(entry, outcome, rows[i]) for i, (entry, outcome) in enumerate(pending)]
        recorded = [row for row in noted if row is not None]
        self.seen(recorded)
        self.record(recorded)

    def _rows(self, pending: list[tuple[Entry, Outcome]]) -> list[Row]:
        division = self.prepared.division(pending[0][0].seed)
        models: list[Tensor] = []
        spans: list[dict[str, slice]] = []  # where each outcome's models stand in the stack
        for _, outcome in pending:
            span = {}
            for name in ("evaluated", "broadcast", "slots"):
                tensor = getattr(outcome, name)
                if tensor is not None:
                    start = sum(map(len, models))
                    models.append(tensor.reshape(-1, tensor.shape[-1]))
                    span[name] = slice(start, start + len(models[-1]))
            spans.append(span)
        stack = torch.cat(models)
        test = self.evaluator(stack, division.evaluated)
        val = self.evaluator(stack, division.validation) if len(division.validation) else None
        return [self._row(entry, o, span, test, val) for (entry, o), span in zip(pending, spans, strict=True)]

    def _row(
        self, entry: Entry, outcome: Outcome, span: dict[str, slice], test: Scores, val: Scores | None
    ) -> Row:
        def mean(scores: np.ndarray, name: str) -> float | None:
            return float(scores[span[name]].mean()) if name in span else None

        main = "evaluated" if outcome.evaluated is not None else "slots"
        return entry.about(self.name) | {
            "round": outcome.round,
            "merges": outcome.merges,
            "test_accuracy": mean(test.metric, main),
            "test_loss": mean(test.loss, main),
            "val_accuracy": None if val is None else mean(val.metric, main),
            "slot_accuracy": mean(test.metric, "slots"),
            "train_loss": float(outcome.train_loss),
            "drift_mean": float(outcome.drift_mean),
            "drift_broadcast": float(outcome.drift_broadcast),
            "bytes_down": outcome.bytes_down,
            "bytes_up": outcome.bytes_up,
            "seconds": round(self.elapsed(), 3),
            "x_broadcast_accuracy": mean(test.metric, "broadcast"),
        }

    def _note(self, entry: Entry, outcome: Outcome, row: Row) -> Row | None:
        """Keep what a row says of its run; None if it belongs in no history."""
        numbers = [row[name] for name in ("train_loss", "test_loss", "drift_mean")]
        if entry.diverged or not all(map(math.isfinite, numbers)):
            entry.diverged = True
            return None
        model = outcome.slots if outcome.evaluated is None else outcome.evaluated
        if outcome.final:
            entry.final, entry.final_model = row["test_accuracy"], model
            return None
        entry.last_model = model
        score = row["test_accuracy"] if row["val_accuracy"] is None else row["val_accuracy"]
        if score > entry.best:
            entry.best, entry.best_model = score, model
        return row

    def finish(self) -> None:
        """The extra merge of runs whose period does not divide the rounds."""
        for entry in self.entries:
            outcome = None if entry.diverged else entry.run.finish()
            if outcome is not None:
                self._pending.append((entry, outcome))
        self.evaluate()

    def close(self) -> None:
        """Dismiss the processes."""
        for forked in self._forked:
            forked.close()
        self._forked = []

    def summary(self, entry: Entry) -> Row:
        """What the run knows beside its history; rounds and bytes after the last merge count, too."""
        server, division = entry.run.server, self.prepared.division(entry.seed)
        row = entry.about(self.name) | {"final": entry.final, "diverged": entry.diverged}
        if not entry.diverged:  # else its last finite numbers stand
            row["rounds"] = entry.run.round
            row["bytes_total"] = server.bytes_down + server.bytes_up
        if entry.last_model is not None and len(division.evaluated) < len(division.test):
            model = entry.last_model.reshape(-1, entry.last_model.shape[-1])
            row["full_test"] = float(self.evaluator(model, division.test).metric.mean())
        return row

    def client_scores(self, entry: Entry) -> np.ndarray | None:
        """The last model's accuracy on each natural client's test samples; NaN where it has none."""
        owner = self.prepared.dataset.owner
        if owner is None or entry.last_model is None:
            return None
        test = self.prepared.division(entry.seed).test
        test = test[owner[test] >= 0]  # a test sample may belong to nobody
        model = entry.last_model.reshape(-1, entry.last_model.shape[-1])
        scores = self.evaluator(model, test, groups=owner[test]).by_group
        assert scores is not None
        return np.asarray(scores.mean(0))

    def _division_seed(self, entry: Entry) -> int:
        return partition_seed(self.prepared.setting, entry.seed)

    def elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self._started

    @property
    def preparing(self) -> float:
        """Seconds that went into compiling and the like, in the process where it took longest."""
        return max(self._preparing, *(engine.preparing for engine in self.engines))

    # --- checkpoints -------------------------------------------------------------------------------

    def save(self) -> Saved:
        """All runs, at the round they have all done."""
        tensors: dict[str, Tensor] = {}
        notes: dict[str, Any] = {
            "round": self.round,
            "steps": self.steps,
            "seconds": self.elapsed(),
            "runs": {},
        }
        for entry in self.entries:
            saved, notes["runs"][entry.name] = entry.save()
            tensors |= {f"{entry.name}/{name}": tensor for name, tensor in saved.items()}
        return tensors, notes

    def restore(self, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
        """Go on from what `save` gave."""
        self.round, self.steps, self.seconds = notes["round"], notes["steps"], notes["seconds"]
        self._restore_runs(tensors, notes["runs"])

    def _restore_runs(self, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
        device = self.prepared.device
        for entry in self.entries:
            about = notes.get(entry.name)
            if about is None:
                continue
            prefix = f"{entry.name}/"
            own = {k.removeprefix(prefix): t.to(device) for k, t in tensors.items() if k.startswith(prefix)}
            entry.restore(own, about)
