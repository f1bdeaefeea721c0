"""What a study notes about itself: what shapes its arithmetic, and its data in numbers.

The notes stand in study.yaml under `record`. A study that resumes compares them with what it finds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from fedskip import config
from fedskip.batch import Batch
from fedskip.data import Dataset
from fedskip.engine import Stacked
from fedskip.errors import InputError
from fedskip.files import digest


def describe(batch: Batch) -> dict[str, Any]:
    """What a setting resolved to: what shapes its arithmetic, and its data in numbers."""
    prepared = batch.prepared
    stacked = [engine for engine in batch.engines if isinstance(engine, Stacked)]
    tables: dict[str, Any] = {}
    if stacked:  # one for each process
        tables = {
            "sizes": [list(engine.plain.sizes) for engine in stacked],
            "contrast_sizes": [engine.contrast_sizes for engine in stacked],
            "rows": stacked[0].rows,
        }
    return {
        "machine": batch.machine.facts() | tables,
        "parameters": prepared.task.layout.size,
        "data": {
            name: digest(array.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            for name, array in arrays(prepared.dataset).items()
        },
        "divisions": {
            seed: {
                "partition": d.clients.hash, "clients": len(d.clients), "train": int(d.clients.sizes.sum()),
                "test": len(d.test), "evaluated": len(d.evaluated), "validation": len(d.validation),
            }
            for seed, d in prepared.divisions.items()
        },
    }  # fmt: skip


def compare(before: dict[str, Any], now: dict[str, Any], out: Path) -> None:
    """Refuse to go on where what shapes the arithmetic has changed."""
    one, other = _flat(before), _flat(now)
    changes = [
        f"{key} was {one.get(key)!r} and is {other.get(key)!r}"
        for key in sorted({*one, *other})
        if one.get(key) != other.get(key)
    ]
    if changes:
        raise InputError(
            "resume", f"would not repeat the same numbers: {'; '.join(changes)}", ...,
            f"restore that, or go on all the same with `fedskip resume {out} --anyway`",
        )  # fmt: skip


def _flat(facts: dict[str, Any]) -> dict[str, Any]:
    found = {"parameters": facts["parameters"]}
    for part in ("versions", "machine", "divisions", "data"):
        found |= {f"{part}.{key}": value for key, value in facts.get(part, {}).items()}
    return found


def arrays(dataset: Dataset) -> dict[str, Tensor]:
    """The samples, as far as they lie in memory."""
    found = getattr(dataset.samples, "__dict__", {})
    return {name: array for name, array in found.items() if isinstance(array, Tensor)}


def digest_of_study(tree: dict[str, Any]) -> str:
    """Of a study as plain values, whatever the order of its keys."""
    return digest(json.dumps(tree, sort_keys=True, default=str).encode())


def without_rounds(tree: dict[str, Any]) -> dict[str, Any]:
    shorter = {key: value for key, value in tree.items() if key != "rounds"}
    shorter["settings"] = [
        {key: value for key, value in setting.items() if key != "rounds"} for setting in tree["settings"]
    ]
    return shorter


def written_spec(file: Path) -> dict[str, Any]:
    """The study that a study.yaml describes, as plain values."""
    return {k: v for k, v in yaml.safe_load(file.read_text(encoding="utf-8")).items() if k != config.RECORD}


def read_record(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")).get(config.RECORD) or {})
