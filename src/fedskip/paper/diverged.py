"""Which runs diverged, when, and on which client: `diverged.csv`, and what follows from it.

The client's size and classes are known where its partition can be dealt again, which needs the data. So a
command writes the file, and pages are made from it.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from fedskip.data import heatmap
from fedskip.files import write_text
from fedskip.paper.clients import dataset, dealt, undealt
from fedskip.paper.columns import settings
from fedskip.paper.output import sheet
from fedskip.records.table import Row, Table
from fedskip.report.recorded import About
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet

DIVERGED = (
    "setting", "method", "seed", "last_round", "broke_round", "broke_client", "size", "mean_size", "classes",
    "largest_class",
)  # fmt: skip


def diverged(studies: Sequence[Results], out: Path) -> list[RenderableType]:
    """Write `diverged.csv`: a row for each run that diverged."""
    rows: dict[tuple[Path, str], Row] = {}
    unknown: dict[str, None] = {}
    for name, column in settings().items():
        for part in column.parts(studies):
            for run in part.summary:
                if run["diverged"] and (part.out, run["run"]) not in rows:  # it may be of several settings
                    rows[part.out, run["run"]] = found = {"setting": name} | _lost(run, part.settings[0])
                    if run.get("broke_client") is not None and "size" not in found:
                        unknown[f"no sizes of {name}: {undealt(part.settings[0])}"] = None
    table = Table(DIVERGED, rows.values())
    write_text(out / "diverged.csv", table.csv())
    return [sheet("Runs that diverged", table, {name: name for name in DIVERGED}, 2), *map(Text, unknown)]


def diverged_sheet(studies: Sequence[Results], file: Path) -> Sheet:
    """By setting and method: how many runs diverged, in which rounds, and on which clients."""
    known, rows = Table.read(file), []
    for name, method in dict.fromkeys((row["setting"], row["method"]) for row in known):
        found = known.where(setting=name, method=method)
        runs = settings()[name].runs(studies)[method]
        cells = [f"{len(found)} of {len(runs)}", "; ".join(map(_when, found)), "; ".join(map(_where, found))]
        rows.append([Text(name), Text(method), *map(Text, cells)])
    return Sheet("runs that diverged", ["setting", "method", "runs", "round", "client"], 2, rows)


def _lost(run: Row, setting: About) -> Row:
    """A run that diverged, and what is known of the client on which it did."""
    about = {"method": run["method"], "seed": run["seed"], "last_round": run["rounds"]}
    about |= {key: run.get(key) for key in ("broke_round", "broke_client")}
    return about | _client(setting, run["seed"], run.get("broke_client"))


def _client(setting: About, seed: int, client: int | None) -> Row:
    """The size of a client, and how its samples are spread over classes."""
    fixed = setting.keys.get("partition_seed")
    division = None if client is None else dealt(setting, seed if fixed is None else fixed)
    if client is None or division is None:
        return {}
    data = dataset(**setting.keys["data"])
    counts = heatmap.class_counts(division.clients, data.samples.labels(), data.classes or 0)[:, client]
    sizes = division.clients.sizes
    return {
        "size": int(sizes[client]), "mean_size": float(np.mean(sizes)), "classes": int((counts > 0).sum()),
        "largest_class": float(counts.max() / counts.sum()),
    }  # fmt: skip


def _when(row: Row) -> str:
    """The round in which a run broke, or the last that it recorded."""
    return f"{row['broke_round']}" if row["broke_round"] is not None else f"after {row['last_round']}"


def _where(row: Row) -> str:
    if row["broke_client"] is None:
        return "not noted"
    said = f"{row['broke_client']}"
    if row["size"] is not None:
        said += f" ({row['size']:,} samples of {row['mean_size']:,.0f} on average, {row['classes']} classes, "
        said += f"{row['largest_class']:.0%} of one)"
    return said
