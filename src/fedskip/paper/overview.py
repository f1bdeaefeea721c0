"""What there is of the paper to run, what it needs, and what has been run."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.text import Text

from fedskip.data import cache, catalogue
from fedskip.input.errors import InputError, few
from fedskip.paper import compose, tune
from fedskip.paper.beside import column_sheet, table_sheet
from fedskip.paper.clients import noted
from fedskip.paper.columns import TABLES, Column, columns, settings
from fedskip.paper.estimate import DEVICE, time
from fedskip.paper.remarks import length, precision, seeds
from fedskip.report import units
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet

MISSING = "*"  # of data
NOTE = (
    f"{MISSING} not on this machine: fedskip data get NAME brings it, fedskip data import NAME PATH what is "
    "not for download. "
    "Times are for all seeds; those with `about` are estimates from steps."
)
DRAWN = ("fig1", "fig5", compose.STUDY)  # which `pictures.shown` shows
OWN = {compose.STUDY: compose.compose_sheet, tune.STUDY: tune.tune_sheet}  # studies with tables of their own
log = logging.getLogger(__name__)


def overview(studies: Sequence[Results]) -> Sheet:
    """Every name that `fedskip run` takes, with its data, the time that it takes, and what was run."""
    rows, marks = [], dict[str, None]()
    for name, column in settings().items():
        cells = [f"{column.planned} × {column.rounds:,}", _data(column), time(name), _done(column, studies)]
        rows.append([Text(name), *map(Text, cells)])
        marks |= {f"{column.table}: {words}.": None for words in column.marks}
    headers = ["NAME", "runs × rounds", "data", f"time on {DEVICE}, or as said", "run here"]
    return Sheet("fedskip run NAME", headers, 1, rows, " ".join([NOTE, *marks]))


def missing(studies: Sequence[Results]) -> Sheet:
    """What was not run, or not to its end, and the time that it would take."""
    rows = []
    for name, column in settings().items():
        lacking = lacks(column, studies)
        runs, count = column.planned, sum(map(len, lacking.values()))
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
    return {name: lost for name, lost in found.items() if lost}


def _which(column: Column, lacking: Mapping[str, Sequence[int]]) -> str:
    """Methods and seeds; those of which all seeds are missing are only named."""
    alike: dict[tuple[int, ...], list[str]] = {}  # methods by the seeds that they lack
    for name, lost in lacking.items():
        alike.setdefault(tuple(lost), []).append(name)
    said = []
    for at, names in alike.items():
        who = "all methods" if len(names) == len(column.methods) else "; ".join(names)
        when = f"seed{'s' * (len(at) > 1)} {units.listed([*map(str, at)])}"
        said.append(who if len(at) == len(column.draft.keys["seeds"]) else f"{who} at {when}")
    return "; ".join(said)


def tables(studies: Sequence[Results], score: str = "best", whole: bool = True) -> list[Sheet]:
    """The paper's tables, filled with what there is; not `whole`: without tables that have no runs."""
    parts = {table: [one for one in columns().values() if one.table == table] for table in TABLES}
    return [
        table_sheet(table, some, list(studies), score)
        for table, some in parts.items()
        if whole or any(_runs(column, studies) for column in some)
    ]


def others(studies: Sequence[Results]) -> list[Sheet]:
    """All other settings that were run, one by one; those of which the tables show every run are left out."""
    every = settings()
    told = {
        run
        for column in every.values()
        if column.table in (*TABLES, *DRAWN)
        for run in _runs(column, studies)
    }
    return [
        sheet_of(column, studies)
        for column in every.values()
        if column.table not in (*TABLES, *DRAWN) and _runs(column, studies) - told
    ]


def sheet_of(column: Column, studies: Sequence[Results]) -> Sheet:
    """A setting in full."""
    return OWN.get(column.table, column_sheet)(column, list(studies))


def strangers(studies: Sequence[Results]) -> list[Results]:
    """The studies that have no run of any setting of the paper."""
    known = {out for column in settings().values() for out, _ in _runs(column, studies)}
    return [study for study in studies if study.out not in known]


def _runs(column: Column, studies: Sequence[Results]) -> set[tuple[Path, str]]:
    return {(part.out, row["run"]) for part in column.parts(studies) for row in part.summary}


def found(folders: Sequence[Path] | None, field: str = "OUT") -> list[Results]:
    """The studies in these folders, or in folders in them; by default those in runs/ that have results.

    `field`: where the folders were named. Of several, one that holds no study, or one that cannot be read, is
    left out with a line; so are files, which a pattern such as docs/results/* may name.
    """
    studies: list[Results] = []
    files = [path for path in folders or () if path.is_file()]
    if files and len(files) == len(folders or ()):
        raise InputError(field, "is not a folder", str(files[0]))
    if files:
        log.warning("left out, as no folder: %s", few(file.name for file in files))
    for folder in (one for one in folders or [Path("runs")] if one not in files):
        alone = (folder / "study.yaml").exists()
        inner = [folder] if alone else sorted(file.parent for file in folder.glob("*/study.yaml"))
        for one in inner:
            try:
                studies.append(_read(one, field))
            except InputError as error:  # it may have just begun
                if alone and len(folders or ()) == 1:
                    raise
                log.warning("%s is left out: %s", one, error)
        if folders and not inner:
            if len(folders) == 1 or not folder.is_dir():
                rule = "holds no study: there is no study.yaml in it, or in a folder in it"
                raise InputError(field, rule if folder.is_dir() else "is not a folder", str(folder))
            log.warning("%s is left out: it holds no study", folder)
    return studies


def _read(folder: Path, field: str) -> Results:
    """A study; if it is an old one, with what `fedskip run clients` has written to `clients` beside it."""
    try:
        study = Results.read(folder)
    except InputError as error:
        raise InputError(
            field if error.field == "out" else error.field, error.rule, error.value, error.fix
        ) from None
    partitions = folder.parent / "clients" / "partitions.csv"
    return noted(study, partitions) if partitions.exists() else study


def _data(column: Column) -> str:
    name = column.draft.keys["data"]["name"]
    ready = catalogue.CATALOGUE[name].files is None or cache.has(name)
    return name if ready else f"{name} {MISSING}"


def _done(column: Column, studies: Sequence[Results]) -> str:
    """How many seeds of how many methods, and how far they came."""
    runs = column.runs(list(studies))
    made = {name: rows for name, rows in runs.items() if rows}
    if not made:
        return ""
    count = seeds(map(len, made.values()), column.seeds(runs))
    said = [f"{count} seed{'s' * (count != '1')}"]
    said += [f"{len(made)} of {len(runs)} methods"] * (len(made) < len(runs))
    all_runs = [row for rows in made.values() for row in rows]
    return ", ".join([*said, *filter(None, [length(column, all_runs), precision(column, all_runs)])])
