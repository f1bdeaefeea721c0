"""The clients of runs that were made, dealt again: how large they are.

A study's folder notes a digest of who had what, and may lack the partition itself. Where the data are on this
machine it is dealt again, and believed only if the digest is the same.
"""

import csv
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from fedskip.data import catalogue
from fedskip.data.base import Dataset
from fedskip.data.division import Division, divide
from fedskip.engine.local import Local
from fedskip.files import write_text
from fedskip.input.errors import InputError
from fedskip.paper.output import sheet
from fedskip.records.table import Row, Table
from fedskip.report.recorded import About
from fedskip.report.results import Results

PARTITIONS = ("partition", "data", "clients", "smallest", "largest", "short")


def clients(studies: Sequence[Results], out: Path) -> list[RenderableType]:
    """`partitions.csv`: every partition of the studies in numbers; `short`: clients that fill no batch."""
    rows: dict[str, Row] = {}
    left: dict[str, None] = {}
    for study in studies:
        for setting in study.compared:
            for seed in setting.divisions:
                division = dealt(setting, seed)
                if division is not None:
                    row = _in_numbers(setting, division)
                    rows[row["partition"]] = row
                else:
                    left[f"left out: {setting.name} of {study.out}: {undealt(setting)}"] = None
    table = Table(PARTITIONS, rows.values())
    if rows:
        write_text(out / "partitions.csv", table.csv())
    shown = sheet("Clients", table, {name: name for name in PARTITIONS})
    return [*[shown] * bool(rows), *map(Text, left)]


def noted(study: Results, partitions: Path) -> Results:
    """A study that was made before studies noted their small clients, with those of a `partitions.csv`.

    Lines of it that cannot be read are passed over.
    """
    known: dict[str | None, int] = {}
    with partitions.open(encoding="utf-8", errors="replace", newline="") as file, suppress(csv.Error):
        for row in csv.DictReader(file):
            if (row.get("short") or "").isdecimal():
                known[row.get("partition")] = int(row["short"])
    settings = []
    for one in study.settings:
        found = {seed: known.get(facts.get("partition", "")) for seed, facts in one.divisions.items()}
        short = {seed: number for seed, number in found.items() if number is not None}
        settings.append(replace(one, short=short | one.short))
    return replace(study, settings=tuple(settings))


def dealt(setting: About, seed: int) -> Division | None:
    """Who had what at a seed of the partition; None where the data are missing, or not what they were."""
    keys = setting.keys
    local = Local(**keys["local"])
    try:
        found = divide(
            dataset(**keys["data"]), seed, partition=keys["partition"], clients=keys.get("clients"),
            cohort=keys["cohort"], batch=local.fewest, drop_small=local.small_clients == "drop",
            validation=keys.get("validation", 0.0), eval_samples=keys.get("eval_samples"),
        )  # fmt: skip
    except InputError:
        return None
    return found if found.clients.hash == setting.divisions[seed]["partition"] else None


def undealt(setting: About) -> str:
    """Why the clients of a setting cannot be dealt again."""
    try:
        dataset(**setting.keys["data"])
    except InputError as error:
        return error.message(flags=True)
    return "its clients are dealt in another way now, or its data are others."


@lru_cache(maxsize=1)
def dataset(**options: Any) -> Dataset:
    """A data set; the last one is kept."""
    return catalogue.load(**options)


def _in_numbers(setting: About, division: Division) -> Row:
    sizes = division.clients.sizes
    return {
        "partition": division.clients.hash, "data": setting.keys["data"]["name"], "clients": len(sizes),
        "smallest": int(sizes.min()), "largest": int(sizes.max()),
        "short": int((sizes < Local(**setting.keys["local"]).batch).sum()),
    }  # fmt: skip
