"""Evaluates the models of runs as they come, and gives the rows of the history."""

import math
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedskip.data.division import by_client, grouped
from fedskip.engine.evaluate import Evaluator, Scores
from fedskip.engine.upload_filters import EPSILON
from fedskip.errors import InputError
from fedskip.federation import Outcome, RunRecord
from fedskip.models.metrics import MetricFailed
from fedskip.records.table import Row
from fedskip.study.prepare import Prepared

ROOM = 1 << 30  # bytes of models that may wait to be evaluated

Waiting = list[tuple[RunRecord, Outcome]]


class Evaluation:
    """Evaluates the runs of one setting, on the test and validation samples of their seeds."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared, machine = prepared, prepared.machine
        assert machine is not None
        self.headline, *self.further = prepared.task.metrics
        # by run: rounds, and how often each client was visited in them
        self._visits: dict[str, tuple[int, np.ndarray]] = {}
        self.made = time.perf_counter()
        self.began = self.made  # earlier, if other processes worked on the setting before
        self.evaluator = Evaluator(
            prepared.task, stacked=machine.engine == "stacked" and not machine.streams,
            workers=machine.workers, threads=machine.threads,
        )  # fmt: skip

    def seconds(self) -> float:
        """Since the setting began, over all processes that worked on it."""
        return time.perf_counter() - self.began

    def room(self, records: Sequence[RunRecord]) -> int:
        """How many outcomes of these runs may wait to be evaluated together."""
        setting = self.prepared.setting
        slots = setting.slot_accuracy or any(not r.run.server.period.segments for r in records)
        models = 1 + setting.cohort * slots
        return min(len(records), max(1, ROOM // (4 * self.prepared.task.layout.size * models)))

    def evaluate(self, waiting: Waiting) -> list[Row]:
        """Evaluate outcomes, those with the same test set together; gives the rows of the history."""
        rows: dict[int, Row] = {}
        seeds = [self.prepared.setting.division_seed(record.seed) for record, _ in waiting]
        for seed in sorted(set(seeds)):
            chosen = [i for i, other in enumerate(seeds) if other == seed]
            rows |= zip(chosen, self._rows([waiting[i] for i in chosen]), strict=True)
        added = [record.add(outcome, rows[i]) for i, (record, outcome) in enumerate(waiting)]
        return [row for row in added if row is not None]

    def _rows(self, waiting: Waiting) -> list[Row]:
        division = self.prepared.division(waiting[0][0].seed)
        models: list[Tensor] = []
        spans: list[dict[str, slice]] = []  # where each outcome's models are among all
        for _, outcome in waiting:
            span = {}
            for name in ("evaluated", "broadcast", "slots"):
                tensor = getattr(outcome, name)
                if tensor is not None:
                    start = sum(map(len, models))
                    models.append(tensor.reshape(-1, tensor.shape[-1]))
                    span[name] = slice(start, start + len(models[-1]))
            spans.append(span)
        together = torch.cat(models)
        test = self._scores(together, division.evaluated, further=True)
        val = self._scores(together, division.validation) if len(division.validation) else None
        return [
            self._row(record, outcome, span, test, val)
            for (record, outcome), span in zip(waiting, spans, strict=True)
        ]

    def _row(
        self,
        record: RunRecord,
        outcome: Outcome,
        span: dict[str, slice],
        test: Scores,
        val: Scores | None,
    ) -> Row:
        def score(scores: np.ndarray, name: str) -> float | None:
            """The mean over models, if there is one: a metric may be undefined, and its cell is empty then."""
            mean = float(scores[span[name]].mean()) if name in span else math.nan
            return mean if math.isfinite(mean) else None

        main = "evaluated" if outcome.evaluated is not None else "slots"
        further: Row = {
            metric.column: score(scores, main)
            for metric, scores in zip(self.further, test.others, strict=True)
        }
        if self.prepared.setting.privacy is not None:
            further[EPSILON] = self._epsilon(record, outcome.round)
        return record.row(
            outcome,
            test_accuracy=score(test.metric, main), test_loss=float(test.loss[span[main]].mean()),
            val_accuracy=None if val is None else score(val.metric, main),
            slot_accuracy=score(test.metric, "slots"),
            broadcast_accuracy=score(test.metric, "broadcast"),
            seconds=self.seconds(), **further,
        )  # fmt: skip

    def _epsilon(self, record: RunRecord, round: int) -> float:
        """What privacy has cost the client that was visited most."""
        privacy, server = self.prepared.setting.privacy, record.run.server
        assert privacy is not None
        none = 0, np.zeros(len(record.run.clients.sizes), int)
        counted, visits = self._visits.get(record.name, none)
        for before in range(counted, round):
            visits[server.cohort(before)] += 1
        self._visits[record.name] = round, visits
        return privacy.epsilon(int(visits.max()))

    def _scores(
        self, models: Tensor, index: np.ndarray, owner: np.ndarray | None = None, **how: bool
    ) -> Scores:
        """What the evaluator gives; an error that names the metric where one fails."""
        try:
            return self.evaluator(models, index, owner, **how)
        except MetricFailed as failed:
            rule = f"fails on {failed.samples:,} samples, of a model that was trained"
            fix = f"it says: {failed.says}. Mend it, or let it give nan where it is undefined; then resume "
            fix += "the study, which goes on from its last checkpoint"
            raise InputError(f"metric {failed.name}", rule, fix=fix) from failed

    # --- when all rounds are done --------------------------------------------------------------------

    def finish(self, records: Sequence[RunRecord]) -> None:
        """Evaluate the extra merge of runs whose period does not divide the rounds."""
        unfinished = [record for record in records if not record.run.over]
        outcomes = [(record, record.run.finish()) for record in unfinished]
        self.evaluate([(record, outcome) for record, outcome in outcomes if outcome is not None])

    def summary(self, record: RunRecord) -> Row:
        """What is known of a run beside its history, its last model's score on the whole test set too."""
        row, division = record.summary(), self.prepared.division(record.seed)
        if record.last_model is not None and len(division.evaluated) < len(division.test):
            score = float(self._scores(models_of(record), division.test).metric.mean())
            row["full_test"] = score if math.isfinite(score) else None
        return row

    def by_client(self, record: RunRecord) -> dict[str | int, float]:
        """The last model's accuracy for each client: see `data/client_scores.py`."""
        if record.last_model is None:
            return {}
        data, seed = self.prepared.dataset, record.seed
        division = self.prepared.divisions[self.prepared.setting.division_seed(seed)]
        places, group = grouped(data, division)
        test = self.prepared.division(seed).test[places]
        scores = self._scores(models_of(record), test, group).by_owner
        assert scores is not None
        return by_client(data, division, np.asarray(scores.mean(0)))


def models_of(record: RunRecord) -> Tensor:
    """The last model of a run, or of each of its slots, (m, P)."""
    assert record.last_model is not None
    return record.last_model.reshape(-1, record.last_model.shape[-1])
