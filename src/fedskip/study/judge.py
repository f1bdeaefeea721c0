"""How runs stand: evaluates their models, makes rows of the history, and keeps the best models."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.data.mix import by_client, grouped
from fedskip.engine.evaluate import Evaluator, Scores
from fedskip.engine.handed import EPSILON
from fedskip.federation import Broke, Outcome, Run, Saved, Visited, first_broken
from fedskip.input.errors import InputError
from fedskip.methods.period import Period
from fedskip.models.metrics import MetricFailed
from fedskip.records.table import Row
from fedskip.spec.setting import Setting
from fedskip.study.machine import Machine
from fedskip.study.prepare import Prepared

ROOM = 1 << 30  # bytes of models that may wait to be evaluated


@dataclass
class Standing:
    """A run, its scores so far, and the models that are kept of it."""

    run: Run
    setting: str
    label: str  # of its method
    evaluated_at: int = 0  # the round of the last evaluation
    best: float = -math.inf  # by the headline, or minus that where lower is better
    best_at: int = 0  # its round
    ended: str = ""  # why it ended early: patience or target
    ended_at: int = 0  # its last round, then
    best_model: Tensor | None = None
    last_model: Tensor | None = None  # (P,), or (K, P) for runs that never merge
    final_model: Tensor | None = None
    final: float | None = None
    visits: list[Visited] = field(default_factory=list)  # that led to outcomes which nobody has evaluated
    broke: Broke | None = None  # the first visit whose loss was not finite, as far as one has looked

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def seed(self) -> int:
        return self.run.server.seed

    def about(self) -> Row:
        """The columns that all tables begin with."""
        return {
            "setting": self.setting, "run": self.name, "method": self.label,
            "period": str(self.run.server.method.period), "seed": self.seed,
        }  # fmt: skip

    def look_back(self) -> Broke | None:
        """The first visit whose training loss was not finite."""
        if self.broke is None:
            self.broke = first_broken([*self.visits, *self.run.visits])
        self.visits, self.run.visits = [], []
        return self.broke

    def save(self) -> Saved:
        """All that a checkpoint holds of it; of a run that is over only what was kept before."""
        saved, about = ({}, {}) if self.run.over else self.run.save()
        if self.best_model is not None:
            saved["best_model"] = self.best_model
        if self.last_model is not None and self.last_model is not self.best_model:
            saved["last_model"] = self.last_model
        return saved, {
            "run": about, "diverged": self.run.diverged, "broke": self.look_back(),
            "evaluated_at": self.evaluated_at,
            "best": self.best if math.isfinite(self.best) else None,
            "last_is_best": self.last_model is self.best_model,
            "best_at": self.best_at, "ended": self.ended, "ended_at": self.ended_at,
            "set_aside": self.run.server.set_aside,
        }  # fmt: skip

    def restore(self, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
        """Go on from what `save` gave."""
        self.run.diverged, self.evaluated_at = notes["diverged"], notes["evaluated_at"]
        self.broke = Broke(*notes["broke"]) if notes.get("broke") else None
        self.best = -math.inf if notes["best"] is None else notes["best"]
        self.best_at, self.ended = notes.get("best_at", 0), notes.get("ended", "")
        self.ended_at, self.run.ended = notes.get("ended_at", 0), bool(self.ended)
        self.best_model = tensors.pop("best_model", None)
        self.last_model = self.best_model if notes["last_is_best"] else tensors.pop("last_model", None)
        self.run.server.set_aside = notes.get("set_aside", 0)
        if not self.run.over:
            self.run.restore(tensors, notes["run"])


def save_all(standings: list[Standing]) -> Saved:
    """All runs, at the round they have all done."""
    tensors: dict[str, Tensor] = {}
    notes: dict[str, Any] = {}
    for standing in standings:
        saved, notes[standing.name] = standing.save()
        tensors |= {f"{standing.name}/{name}": tensor for name, tensor in saved.items()}
    return tensors, notes


def restore_all(standings: list[Standing], tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Go on from what `save_all` gave, of these runs or of more."""
    for standing in standings:
        device, prefix = standing.run.server.x.device, f"{standing.name}/"
        own = {k.removeprefix(prefix): t.to(device) for k, t in tensors.items() if k.startswith(prefix)}
        standing.restore(own, notes[standing.name])


Waiting = list[tuple[Standing, Outcome]]


class Judge:
    """Evaluates the runs of one setting."""

    def __init__(self, prepared: Prepared, machine: Machine) -> None:
        self.prepared = prepared
        self.headline, *self.further = prepared.task.metrics
        self._visits: dict[str, tuple[int, np.ndarray]] = {}  # by run: rounds, and each client's among them
        self.made = time.perf_counter()
        self.began = self.made  # earlier, if other processes worked on the setting before
        self.evaluator = Evaluator(
            prepared.task, stacked=machine.engine == "stacked" and not machine.streams,
            workers=machine.workers, threads=machine.threads,
        )  # fmt: skip

    def seconds(self) -> float:
        """Since the setting began, over all processes that worked on it."""
        return time.perf_counter() - self.began

    def wants(self, standing: Standing, outcome: Outcome) -> bool:
        """Whether an outcome is evaluated: they are thinned by `eval_every`; the last one always counts."""
        setting, period = self.prepared.setting, standing.run.server.period
        return is_due(setting, period, outcome.round, standing.evaluated_at)

    def room(self, standings: list[Standing]) -> int:
        """How many outcomes of these runs may wait to be evaluated together."""
        setting = self.prepared.setting
        slotted = setting.slot_accuracy or any(not s.run.server.period.segments for s in standings)
        models = 1 + setting.cohort * slotted
        return min(len(standings), max(1, ROOM // (4 * self.prepared.task.layout.size * models)))

    def __call__(self, waiting: Waiting) -> list[Row]:
        """Evaluate outcomes, those with the same test set together; gives the rows of the history."""
        rows: dict[int, Row] = {}
        seeds = [self.prepared.setting.division_seed(standing.seed) for standing, _ in waiting]
        for seed in sorted(set(seeds)):
            chosen = [i for i, one in enumerate(seeds) if one == seed]
            rows |= zip(chosen, self._rows([waiting[i] for i in chosen]), strict=True)
        noted = [self._note(*waiting[i], rows[i]) for i in range(len(waiting))]
        return [row for row in noted if row is not None]

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
        return [self._row(*one, span, test, val) for one, span in zip(waiting, spans, strict=True)]

    def _row(
        self, standing: Standing, outcome: Outcome, span: dict[str, slice], test: Scores, val: Scores | None
    ) -> Row:
        def mean(scores: np.ndarray, name: str) -> float | None:
            return float(scores[span[name]].mean()) if name in span else None

        def score(scores: np.ndarray, name: str) -> float | None:
            return _defined(mean(scores, name))

        main = "evaluated" if outcome.evaluated is not None else "slots"
        return standing.about() | {
            "round": outcome.round, "merges": outcome.merges,
            "test_accuracy": score(test.metric, main), "test_loss": mean(test.loss, main),
            "val_accuracy": None if val is None else score(val.metric, main),
            "slot_accuracy": score(test.metric, "slots"),
            "train_loss": None if outcome.train_loss is None else float(outcome.train_loss),
            "drift_mean": float(outcome.drift_mean),
            "drift_broadcast": float(outcome.drift_broadcast),
            "bytes_down": outcome.bytes_down, "bytes_up": outcome.bytes_up,
            "seconds": round(self.seconds(), 3), "x_broadcast_accuracy": score(test.metric, "broadcast"),
            "x_set_aside": outcome.set_aside if standing.run.clients.guard else None,
        } | {
            metric.column: score(found, main)
            for metric, found in zip(self.further, test.others, strict=True)
        } | self._spent(standing, outcome.round)  # fmt: skip

    def _note(self, standing: Standing, outcome: Outcome, row: Row) -> Row | None:
        """Keep what a row says of its run; None if it belongs in no history."""
        if standing.run.ended:
            return None
        numbers = [row[name] for name in ("train_loss", "test_loss", "drift_mean")]
        if standing.run.diverged or not all(math.isfinite(n) for n in numbers if n is not None):
            standing.run.diverged = True
            standing.look_back()
            return None
        # losses up to here were finite, as their mean is; later outcomes may wait beside this one
        standing.visits = [visited for visited in standing.visits if visited.round >= outcome.round]
        model = outcome.slots if outcome.evaluated is None else outcome.evaluated
        if outcome.final:
            standing.final, standing.final_model = row["test_accuracy"], model
            return None
        standing.last_model = model
        validated = len(self.prepared.division(standing.seed).validation) > 0
        score = row["val_accuracy"] if validated else row["test_accuracy"]
        if score is not None and self._sign * score > standing.best:
            standing.best, standing.best_model = self._sign * score, model
            standing.best_at = outcome.round
        since, stop = outcome.round - standing.best_at, self.prepared.setting.stop or {}
        if why := enough(stop, score, since, higher=self.headline.higher_is_better):
            standing.ended, standing.ended_at, standing.run.ended = why, outcome.round, True
        return row

    def _spent(self, standing: Standing, round: int) -> Row:
        """What privacy has cost the client that was visited most, if it is kept at all."""
        privacy, server = self.prepared.setting.privacy, standing.run.server
        if privacy is None:
            return {}
        counted, visits = self._visits.get(standing.name, (0, np.zeros(len(standing.run.clients.sizes), int)))
        for before in range(counted, round):
            visits[server.cohort(before)] += 1
        self._visits[standing.name] = round, visits
        return {EPSILON: privacy.epsilon(int(visits.max()))}

    @property
    def _sign(self) -> int:
        return 1 if self.headline.higher_is_better else -1

    def _scores(
        self, models: Tensor, index: np.ndarray, owner: np.ndarray | None = None, **how: bool
    ) -> Scores:
        """What the evaluator says; where a metric fails, in words, as the study will stop."""
        try:
            return self.evaluator(models, index, owner, **how)
        except MetricFailed as failed:
            rule = f"fails on {failed.samples:,} samples, of a model that was trained"
            fix = f"it says: {failed.says}. Mend it, or let it give nan where it is undefined; then resume "
            fix += "the study, which goes on from its last checkpoint"
            raise InputError(f"metric {failed.name}", rule, fix=fix) from failed

    # --- when all rounds are done --------------------------------------------------------------------

    def finish(self, standings: list[Standing]) -> None:
        """Evaluate the extra merge of runs whose period does not divide the rounds."""
        outcomes = [(s, None if s.run.over else s.run.finish()) for s in standings]
        self([(standing, outcome) for standing, outcome in outcomes if outcome is not None])

    def summary(self, standing: Standing) -> Row:
        """What is known of a run beside its history; rounds and bytes after the last merge count, too."""
        server, division = standing.run.server, self.prepared.division(standing.seed)
        row = standing.about() | {"final": standing.final, "diverged": standing.run.diverged}
        row["ended"] = standing.ended
        if standing.run.diverged:  # its last finite numbers stand
            broke = standing.look_back()
            row |= {f"broke_{name}": value for name, value in broke._asdict().items()} if broke else {}
        elif not standing.run.ended:  # those of one that ended are of its last evaluation
            row["rounds"] = standing.run.round
            row["bytes_total"] = server.bytes_down + server.bytes_up
        if standing.run.clients.guard:
            row["set_aside"] = server.set_aside
        if standing.last_model is not None and len(division.evaluated) < len(division.test):
            row["full_test"] = _defined(float(self._scores(_models(standing), division.test).metric.mean()))
        return row

    def by_client(self, standing: Standing) -> dict[str | int, float]:
        """The last model's accuracy for each client: see `data/mix.py`."""
        if standing.last_model is None:
            return {}
        data, seed = self.prepared.dataset, standing.seed
        division = self.prepared.divisions[self.prepared.setting.division_seed(seed)]
        places, group = grouped(data, division)
        test = self.prepared.division(seed).test[places]
        scores = self._scores(_models(standing), test, group).by_owner
        assert scores is not None
        return by_client(data, division, np.asarray(scores.mean(0)))


def enough(stop: Mapping[str, float], score: float | None, since: int, *, higher: bool = True) -> str:
    """Why a run ends here, or nothing; `since`: the rounds since its validation score was best.

    `score` is None where the metric is undefined; `higher`: whether higher ones are better.

    >>> enough({"patience": 5, "target": 0.9}, 0.8, 5), enough({"target": 0.9}, 0.9, 0), enough({}, 1.0, 9)
    ('patience', 'target', '')
    """
    target = stop.get("target")
    if score is not None and target is not None and (score >= target if higher else score <= target):
        return "target"
    return "patience" if since >= stop.get("patience", math.inf) else ""


def is_due(setting: Setting, period: Period, round: int, evaluated_at: int) -> bool:
    """Whether what there is after a round is evaluated, if that was last done after `evaluated_at`."""
    due = round // setting.eval_every > evaluated_at // setting.eval_every
    return due or not any(period.merges(later) for later in range(round + 1, setting.rounds + 1))


def _models(standing: Standing) -> Tensor:
    """The last model of a run, or of each of its slots, (m, P)."""
    assert standing.last_model is not None
    return standing.last_model.reshape(-1, standing.last_model.shape[-1])


def _defined(score: float | None) -> float | None:
    """A score, if there is one: a metric may be undefined, and its cell is empty then."""
    return None if score is None or not math.isfinite(score) else score
