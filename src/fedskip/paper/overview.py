"""What there is of the paper to run, what it needs, and what has been run."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.text import Text

from fedskip.data import cache, catalogue
from fedskip.input.errors import InputError
from fedskip.paper.beside import table_sheet
from fedskip.paper.columns import TABLES, Column, columns, settings
from fedskip.paper.estimate import DEVICE, time
from fedskip.report import units
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet

MISSING = "*"  # of data
NOTE = (
    f"{MISSING} not on this machine: fedskip data list. "
    "Times are for all seeds; those with `about` are estimates from steps."
)
log = logging.getLogger(__name__)


def overview(studies: Sequence[Results]) -> Sheet:
    """Every name that `fedskip run` takes, with its data, the time that it takes, and what was run."""
    rows, marks = [], dict[str, None]()
    for name, column in settings().items():
        runs = len(column.methods) * len(column.draft.keys["seeds"])
        cells = [f"{runs} × {column.rounds:,}", _data(column), time(name), _done(column, studies)]
        rows.append([Text(name), *map(Text, cells)])
        marks |= {f"{column.table}: {words}.": None for words in column.marks}
    headers = ["NAME", "runs × rounds", "data", f"time, {DEVICE}", "seeds run here"]
    return Sheet("fedskip run NAME", headers, 1, rows, " ".join([NOTE, *marks]))


def missing(studies: Sequence[Results]) -> Sheet:
    """What was not run, or not to its end, and the time that it would take."""
    rows = []
    for name, column in settings().items():
        lacking = lacks(column, studies)
        runs, count = len(column.methods) * len(column.draft.keys["seeds"]), sum(map(len, lacking.values()))
        if count:
            some = "" if count == runs else f"{count} of "
            which = _which(column, lacking) if some else "all"
            cells = [f"{some}{runs} × {column.rounds:,}", which, time(name, count / runs)]
            rows.append([Text(name), *map(Text, cells)])
    headers = ["fedskip run", "runs × rounds", "which", f"time on {DEVICE}, estimated"]
    return Sheet("not run", headers, 1, rows)


def lacks(column: Column, studies: Sequence[Results]) -> dict[str, list[int]]:
    """The seeds of a study at which a method was not run, or not to its end; one that diverged has ended."""
    found = {}
    for name, runs in column.runs(studies).items():
        ended = {row["seed"] for row in runs if row["diverged"] or row["rounds"] >= column.rounds}
        found[name] = [seed for seed in column.draft.keys["seeds"] if seed not in ended]
    return {name: seeds for name, seeds in found.items() if seeds}


def _which(column: Column, lacking: Mapping[str, Sequence[int]]) -> str:
    """Methods and seeds; those of which all seeds are missing are only named."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, seeds in lacking.items():
        groups.setdefault(tuple(seeds), []).append(name)
    said = []
    for at, names in groups.items():
        who = "all methods" if len(names) == len(column.methods) else ", ".join(names)
        when = f"seed{'s' * (len(at) > 1)} {units.listed([*map(str, at)])}"
        said.append(who if len(at) == len(column.draft.keys["seeds"]) else f"{who} at {when}")
    return "; ".join(said)


def tables(studies: Sequence[Results], score: str = "best") -> list[Sheet]:
    """The paper's tables, filled with what there is."""
    return [
        table_sheet(table, [one for one in columns().values() if one.table == table], list(studies), score)
        for table in TABLES
    ]


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
    return name if ready else f"{name} {MISSING}"


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
