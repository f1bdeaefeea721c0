"""What there is of the paper to run, what it needs, and what has been run."""

import csv
import logging
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from fedskip.data import cache, catalogue
from fedskip.input.errors import InputError
from fedskip.paper.beside import table_sheet
from fedskip.paper.columns import TABLES, Column, columns, settings
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet

log = logging.getLogger(__name__)


def overview(studies: Sequence[Results]) -> Sheet:
    """Every name that `fedskip run` takes, with its data, the time that was measured, and what was run."""
    times, rows = measured(), []
    for name, column in settings().items():
        seeds = len(column.draft.keys["seeds"])
        runs = len(column.methods) * seeds
        cells = [f"{runs} of {column.rounds:,} rounds", _data(column), times.get(name, "not measured")]
        rows.append([Text(name), *map(Text, cells), Text(_done(column, studies))])
    return Sheet("fedskip run NAME", ["NAME", "runs", "data", "time measured", "seeds run here"], 1, rows)


def tables(studies: Sequence[Results], score: str = "best") -> list[Sheet]:
    """The paper's tables, filled with what there is."""
    return [
        table_sheet(table, [one for one in columns().values() if one.table == table], list(studies), score)
        for table in TABLES
    ]


def measured() -> dict[str, str]:
    """How long something took, by name."""
    with Path(__file__).with_name("times.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["name"]: f"{row['minutes']} min, {row['seeds']} seeds, {row['device']}" for row in rows}


def found(folders: Sequence[Path] | None) -> list[Results]:
    """The studies in these folders, or those in runs/ that have results."""
    if folders:
        return [Results.read(folder) for folder in folders]
    studies = []
    for file in sorted(Path("runs").glob("*/study.yaml")):
        try:
            studies.append(Results.read(file.parent))
        except InputError as error:  # it may have just begun
            log.warning("%s is left out: %s", file.parent, error)
    return studies


def _data(column: Column) -> str:
    name = column.draft.keys["data"]["name"]
    ready = catalogue.CATALOGUE[name].files is None or cache.has(name)
    return name if ready else f"{name} (missing: fedskip data list)"


def _done(column: Column, studies: Sequence[Results]) -> str:
    """How many seeds of how many methods, and how far they came."""
    runs = {name: rows for name, rows in column.runs(list(studies)).items() if rows}
    if not runs:
        return ""
    most, least = (pick(int(row["rounds"]) for rows in runs.values() for row in rows) for pick in (max, min))
    seeds = sorted({len(rows) for rows in runs.values()})
    text = " to ".join(map(str, sorted({seeds[0], seeds[-1]})))
    text += "" if len(runs) == len(column.methods) else f", {len(runs)} of {len(column.methods)} methods"
    return text + ("" if most >= column.rounds else f", {least} to {most} rounds")
