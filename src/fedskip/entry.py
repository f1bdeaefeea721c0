"""One run of a batch, with what has been measured of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedskip.federation import Run, Saved
from fedskip.history import Row
from fedskip.methods.base import Method


@dataclass
class Entry:
    """A run, its scores and the models that are kept of it."""

    name: str
    method: Method
    seed: int
    run: Run
    evaluated_at: int = 0  # the round of the last evaluation
    best: float = -math.inf
    best_model: Tensor | None = None
    last_model: Tensor | None = None  # (P,), or (K, P) for runs that never merge
    final_model: Tensor | None = None
    final: float | None = None
    diverged: bool = False
    told: float = 0.0  # rounds that a process which trains it has told of

    @property
    def rounds_done(self) -> float:
        """By its slots on average: between two merges, slots need not be at the same round."""
        return max(float(self.run.at.mean()), self.told)

    def about(self, setting: str) -> Row:
        period = str(self.method.period)
        return {
            "setting": setting,
            "run": self.name,
            "method": self.method.label,
            "period": period,
            "seed": self.seed,
        }

    def save(self) -> Saved:
        """All that a checkpoint holds of it; of a run that diverged only what was kept before."""
        saved, about = ({}, {}) if self.diverged else self.run.save()
        for name in ("best_model", "last_model"):
            model = getattr(self, name)
            if model is not None and not (name == "last_model" and model is self.best_model):
                saved = saved | {name: model}
        return saved, {
            "run": about, "diverged": self.diverged, "evaluated_at": self.evaluated_at,
            "best": self.best if math.isfinite(self.best) else None,
            "last_is_best": self.last_model is self.best_model,
        }  # fmt: skip

    def restore(self, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
        """Go on from what `save` gave."""
        self.diverged, self.evaluated_at = notes["diverged"], notes["evaluated_at"]
        self.best = -math.inf if notes["best"] is None else notes["best"]
        self.best_model = tensors.pop("best_model", None)
        self.last_model = self.best_model if notes["last_is_best"] else tensors.pop("last_model", None)
        if not self.diverged:
            self.run.restore(tensors, notes["run"])
