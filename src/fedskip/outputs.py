"""What a setting leaves behind when it ends, beside its numbers: trained models, and accuracy by client."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedskip.batch import Batch
from fedskip.history import Row
from fedskip.weights import write_weights


def write_models(batch: Batch, folder: Path) -> None:
    """The last, the best and, where there is one, the final model of every run."""
    setting, layout = batch.prepared.setting, batch.prepared.task.layout
    model = setting.model if isinstance(setting.model, dict) else None
    for entry in batch.entries:
        kinds = {"last": entry.last_model, "best": entry.best_model, "final": entry.final_model}
        for kind, vectors in kinds.items():
            if vectors is None:  # a study that was made longer may have left one
                (folder / f"{entry.name}.{kind}.safetensors").unlink(missing_ok=True)
                continue
            about = {"kind": kind, "model": model, "classes": batch.prepared.dataset.classes}
            about |= entry.about(batch.name)
            if vectors.dim() == 1:
                named = {entry.name: vectors}
            else:  # never merged: every slot has a model of its own
                named = {f"{entry.name}.slot{k}": vector for k, vector in enumerate(vectors)}
            for name, vector in named.items():
                write_weights(folder / f"{name}.{kind}.safetensors", layout.views(vector), about)


def client_rows(batch: Batch) -> list[Row]:
    """The rows of clients.csv, if the setting asks for them: every client that has test samples."""
    if not batch.prepared.setting.client_accuracy:
        return []
    names = batch.prepared.dataset.owner_names
    rows = []
    for entry in batch.entries:
        scores = batch.client_scores(entry)
        if scores is None:
            continue
        for client in np.flatnonzero(np.isfinite(scores)):
            row = {"client": names[client] if names else int(client), "test_accuracy": float(scores[client])}
            rows.append(entry.about(batch.name) | row)
    return rows
