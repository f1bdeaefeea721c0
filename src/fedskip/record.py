"""What a study notes about itself: what shapes its arithmetic, and its data in numbers.

The notes stand in study.yaml under `record`. A study that resumes compares them with what it finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fedskip import config
from fedskip.batch import Batch
from fedskip.engine import Stacked
from fedskip.errors import InputError


def describe(batch: Batch) -> dict[str, Any]:
    """What a setting resolved to: what shapes its arithmetic, and its data in numbers."""
    prepared = batch.prepared
    stacked = [engine for engine in batch.engines if isinstance(engine, Stacked)]
    tables: dict[str, Any] = {}
    if stacked:  # one for each process
        tables = {
            "sizes": [list(engine.plain.sizes) for engine in stacked],
            "contrast_sizes": [list(engine.contrast.sizes) for engine in stacked],
            "rows": stacked[0].rows,
        }
    return {
        "machine": batch.machine.facts() | tables,
        "parameters": prepared.task.layout.size,
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
    changes = [
        f"{part}.{key} was {before[part].get(key)!r} and is {now[part].get(key)!r}"
        for part in ("versions", "machine", "divisions")
        for key in sorted({*before[part], *now[part]}, key=str)
        if before[part].get(key) != now[part].get(key)
    ]
    if changes:
        raise InputError(
            "resume", f"would not repeat the same numbers: {'; '.join(changes)}", ...,
            f"restore that, or go on all the same with `fedskip resume {out} --anyway`",
        )  # fmt: skip


def written_spec(file: Path) -> dict[str, Any]:
    """The study that a study.yaml describes, as plain values."""
    return {k: v for k, v in yaml.safe_load(file.read_text()).items() if k != config.RECORD}


def read_record(file: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(file.read_text()).get(config.RECORD) or {}) if file.exists() else {}
