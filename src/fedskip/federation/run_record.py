"""What is known of a run while it trains: rows of its history, why it ended, and the models that are kept.

A study, its worker processes, a cluster and the server of a federation over a network all record a run so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedskip.federation.run import Run
from fedskip.federation.server import Outcome, Saved, Visited
from fedskip.models.vector import Layout
from fedskip.models.weights import packed

Row = dict[str, Any]  # of a table, by column
NOTED = ("evaluated_at", "best_at", "ended", "ended_at")  # fields that a checkpoint has as they are


class BrokenVisit(NamedTuple):
    """A visit whose training loss was not finite."""

    round: int  # counted from 1
    client: int
    slot: int


def first_broken_visit(visits: Sequence[Visited]) -> BrokenVisit | None:
    """The first of some visits whose training loss was not finite. A GPU has to wait for the answer."""
    if not visits:
        return None
    fine = torch.cat([some.loss for some in visits]).isfinite().cpu().numpy()
    all_visits = [
        BrokenVisit(some.round + 1, int(client), int(slot))
        for some in visits
        for client, slot in zip(some.clients, some.slots, strict=True)
    ]
    broken = (visit for visit, ok in zip(all_visits, fine, strict=True) if not ok)
    return min(broken, key=lambda visit: visit.round, default=None)


@dataclass
class RunRecord:
    """A run, its scores so far, and the models that are kept of it."""

    run: Run
    setting: str
    label: str  # of its method
    higher_is_better: bool = True
    validated: bool = False  # whether the best model is chosen on a validation split
    stop: Mapping[str, float] = field(default_factory=dict)  # `patience` and `target`

    evaluated_at: int = 0  # the round of the last evaluation
    best: float = -math.inf  # the best score so far, or minus that where lower is better
    best_at: int = 0  # its round
    ended: str = ""  # why it ended early: patience or target
    ended_at: int = 0  # its last round, then
    best_model: Tensor | None = None
    last_model: Tensor | None = None  # (P,), or (K, P) for runs that never merge
    merged_model: Tensor | None = None
    merged: float | None = None
    visits: list[Visited] = field(default_factory=list)  # of outcomes that are not evaluated yet
    # the first visit whose loss was not finite, as far as is known
    broke: BrokenVisit | None = None
    # of the run
    name: str = field(init=False)
    seed: int = field(init=False)
    about: Row = field(init=False)  # the columns that all tables begin with

    def __post_init__(self) -> None:
        server = self.run.server
        self.name, self.seed = self.run.name, server.seed
        self.about = {
            "setting": self.setting, "run": self.name, "method": self.label,
            "period": str(server.method.period), "seed": self.seed,
        }  # fmt: skip

    # --- evaluations ---------------------------------------------------------------------------------

    def wants(self, outcome: Outcome) -> bool:
        """Whether an outcome is to be evaluated: every `eval_every` rounds, and the last one always."""
        run, round = self.run, outcome.round
        assert run.rounds is not None
        if round // run.eval_every > self.evaluated_at // run.eval_every:
            return True
        return not any(run.server.period.merges(r) for r in range(round + 1, run.rounds + 1))

    def row(
        self,
        outcome: Outcome,
        *,
        test_accuracy: float | None,
        test_loss: float | None,
        seconds: float,
        val_accuracy: float | None = None,
        slot_accuracy: float | None = None,
        broadcast_accuracy: float | None = None,
        **further: Any,
    ) -> Row:
        """The row of the history for an outcome that was evaluated; `further`: columns beside the usual."""
        return self.about | {
            "round": outcome.round, "merges": outcome.merges,
            "test_accuracy": test_accuracy, "test_loss": test_loss,
            "val_accuracy": val_accuracy, "slot_accuracy": slot_accuracy,
            "train_loss": None if outcome.train_loss is None else float(outcome.train_loss),
            "drift_mean": float(outcome.drift_mean),
            "drift_broadcast": float(outcome.drift_broadcast),
            "bytes_down": outcome.bytes_down, "bytes_up": outcome.bytes_up,
            "seconds": round(seconds, 3), "x_broadcast_accuracy": broadcast_accuracy,
            "x_set_aside": outcome.set_aside if self.run.clients.guard else None,
        } | further  # fmt: skip

    def add(self, outcome: Outcome, row: Row) -> Row | None:
        """Keep what a row says of the run; None if the row belongs in no history.

        The run ends here if its numbers are not finite, or if its stopping rule says so.
        """
        if self.run.ended:
            return None
        numbers = [row[name] for name in ("train_loss", "test_loss", "drift_mean")]
        if self.run.diverged or not all(math.isfinite(n) for n in numbers if n is not None):
            self.run.diverged = True
            self.find_broken_visit()
            return None
        # losses up to here were finite, as their mean is; later outcomes may wait beside this one
        self.visits = [visited for visited in self.visits if visited.round >= outcome.round]
        model = outcome.slots if outcome.evaluated is None else outcome.evaluated
        if outcome.final:
            self.merged, self.merged_model = row["test_accuracy"], model
            return None
        self.last_model = model
        score = row["val_accuracy"] if self.validated else row["test_accuracy"]
        sign = 1 if self.higher_is_better else -1
        if score is not None and sign * score > self.best:
            self.best, self.best_model, self.best_at = sign * score, model, outcome.round
        target, patience = self.stop.get("target"), self.stop.get("patience", math.inf)
        if score is not None and target is not None and sign * score >= sign * target:
            self.ended = "target"
        elif outcome.round - self.best_at >= patience:
            self.ended = "patience"
        if self.ended:
            self.ended_at, self.run.ended = outcome.round, True
        return row

    def find_broken_visit(self) -> BrokenVisit | None:
        """The first visit whose training loss was not finite."""
        if self.broke is None:
            self.broke = first_broken_visit([*self.visits, *self.run.visits])
        self.visits, self.run.visits = [], []
        return self.broke

    # --- when all rounds are done --------------------------------------------------------------------

    def summary(self) -> Row:
        """What is known of the run beside its history; rounds and bytes after the last merge count, too."""
        server, run = self.run.server, self.run
        row = self.about | {"merged": self.merged, "diverged": run.diverged, "ended": self.ended}
        if run.diverged:  # its last finite numbers stand
            broke = self.find_broken_visit()
            row |= {f"broke_{name}": n for name, n in broke._asdict().items()} if broke else {}
        elif not run.ended:  # those of one that ended are of its last evaluation
            row["rounds"] = run.round
            row["bytes_total"] = server.bytes_down + server.bytes_up
        if run.clients.guard:
            row["set_aside"] = server.set_aside
        return row

    def model_files(
        self, layout: Layout, about: Mapping[str, Any]
    ) -> Iterator[tuple[str, bytes | None]]:
        """The files of the last, the best and the merged model; None: there is no such model.

        `about`: what files say of the model beside the run, such as how it is made.
        """
        kinds = {"last": self.last_model, "best": self.best_model, "merged": self.merged_model}
        for kind, vectors in kinds.items():
            if vectors is None:
                yield f"{self.name}.{kind}.safetensors", None
                continue
            named = {self.name: vectors}
            if vectors.dim() > 1:  # never merged: every slot has a model of its own
                named = {f"{self.name}.slot{k}": vector for k, vector in enumerate(vectors)}
            for name, vector in named.items():
                notes = {"kind": kind, **about, **self.about}
                yield f"{name}.{kind}.safetensors", packed(layout.views(vector), notes)

    # --- checkpoints ---------------------------------------------------------------------------------

    def save(self) -> Saved:
        """All that a checkpoint holds of it; of a run that is over only what was kept before."""
        tensors, run = ({}, {}) if self.run.over else self.run.save()
        if self.best_model is not None:
            tensors["best_model"] = self.best_model
        if self.last_model is not None and self.last_model is not self.best_model:
            tensors["last_model"] = self.last_model
        return tensors, {
            "run": run, "diverged": self.run.diverged, "broke": self.find_broken_visit(),
            "best": self.best if math.isfinite(self.best) else None,
            "last_is_best": self.last_model is self.best_model,
            "set_aside": self.run.server.set_aside, **{name: getattr(self, name) for name in NOTED},
        }  # fmt: skip

    def restore(self, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
        """Go on from what `save` gave."""
        for name in NOTED:
            setattr(self, name, notes[name])
        self.run.diverged, self.run.ended = notes["diverged"], bool(self.ended)
        self.broke = BrokenVisit(*notes["broke"]) if notes["broke"] else None
        self.best = -math.inf if notes["best"] is None else notes["best"]
        self.best_model, last = tensors.pop("best_model", None), tensors.pop("last_model", None)
        self.last_model = self.best_model if notes["last_is_best"] else last
        self.run.server.set_aside = notes["set_aside"]
        if not self.run.over:
            self.run.restore(tensors, notes["run"])


def save_records(records: list[RunRecord]) -> Saved:
    """All runs, at the round they have all done."""
    tensors: dict[str, Tensor] = {}
    notes: dict[str, Any] = {}
    for record in records:
        saved, notes[record.name] = record.save()
        tensors |= {f"{record.name}/{name}": tensor for name, tensor in saved.items()}
    return tensors, notes


def restore_records(
    records: list[RunRecord], tensors: Mapping[str, Tensor], notes: Mapping[str, Any]
) -> None:
    """Go on from what `save_records` gave, of these runs or of more."""
    for record in records:
        device, prefix = record.run.server.x.device, f"{record.name}/"
        own = {
            name.removeprefix(prefix): tensor.to(device)
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        record.restore(own, notes[record.name])
