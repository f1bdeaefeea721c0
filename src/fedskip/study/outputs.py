"""What a setting leaves behind when it ends, beside its numbers: trained models, and accuracy by client."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedskip.models.weights import write_weights
from fedskip.records.results import Row
from fedskip.study.judge import Judge, Standing
from fedskip.study.prepare import Prepared


def write_models(prepared: Prepared, standings: list[Standing], folder: Path) -> None:
    """The last, the best and, where there is one, the final model of every run."""
    setting, layout = prepared.setting, prepared.task.layout
    model = setting.model if isinstance(setting.model, dict) else None
    for standing in standings:
        kinds = {"last": standing.last_model, "best": standing.best_model, "final": standing.final_model}
        for kind, vectors in kinds.items():
            if vectors is None:  # a study that was made longer may have left one
                (folder / f"{standing.name}.{kind}.safetensors").unlink(missing_ok=True)
                continue
            about = {"kind": kind, "model": model, "classes": prepared.dataset.classes} | standing.about()
            if vectors.dim() == 1:
                named = {standing.name: vectors}
            else:  # never merged: every slot has a model of its own
                named = {f"{standing.name}.slot{k}": vector for k, vector in enumerate(vectors)}
            for name, vector in named.items():
                write_weights(folder / f"{name}.{kind}.safetensors", layout.views(vector), about)


def client_rows(prepared: Prepared, standings: list[Standing], judge: Judge) -> list[Row]:
    """The rows of clients.csv, if the setting asks for them: every client that has test samples."""
    if not prepared.setting.client_accuracy:
        return []
    names = prepared.dataset.owner_names
    rows = []
    for standing in standings:
        scores = judge.by_client(standing)
        if scores is None:
            continue
        for client in np.flatnonzero(np.isfinite(scores)):
            row = {"client": names[client] if names else int(client), "test_accuracy": float(scores[client])}
            rows.append(standing.about() | row)
    return rows
