"""Which runs diverged, when, on which client, and where the model came from: `diverged.csv`.

A slot that skips brings along what its last client made of the model, so that one is named, too. Clients'
sizes and classes are known where their partition can be dealt again, which needs the data. So a command
writes the file, and pages are made from it.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from fedskip.data import heatmap
from fedskip.federation.server import draw_cohort
from fedskip.files import write_text
from fedskip.methods import Method
from fedskip.methods.period import Period
from fedskip.paper.clients import dataset, dealt, undealt
from fedskip.paper.columns import settings
from fedskip.paper.output import sheet
from fedskip.records.table import Row, Table
from fedskip.report import units
from fedskip.report.recorded import About
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet

DIVERGED = (
    "setting", "method", "seed", "last_round", "broke_round", "broke_client", "size", "mean_size", "classes",
    "largest_class", "from_client", "from_size", "from_classes", "from_largest_class",
)  # fmt: skip


def diverged(studies: Sequence[Results], out: Path) -> list[RenderableType]:
    """Write `diverged.csv`: a row for each run that diverged.

    A run may be of several settings, and may have been made in several folders.
    """
    rows: dict[tuple[str, str, int], Row] = {}
    told: set[tuple[Path, str]] = set()
    unknown: dict[str, None] = {}
    for name, column in settings().items():
        for part in column.parts(studies):
            for run in part.summary:
                if run["diverged"] and (part.out, run["run"]) not in told:
                    told.add((part.out, run["run"]))
                    found = _lost(run, part.settings[0], column.methods[run["method"]])
                    rows.setdefault((name, run["method"], run["seed"]), {"setting": name} | found)
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
        said = ("; ".join(map(say, found)) for say in (_when, _where, _whence))
        cells = [f"{len(found)} of {len(runs)}", *said]
        rows.append([Text(name), Text(method), *map(Text, cells)])
    headers = ["setting", "method", "runs", "round", "client", "its model came from"]
    return Sheet("runs that diverged", headers, 2, rows)


def _lost(run: Row, setting: About, method: Method) -> Row:
    """A run that diverged, and what is known of the client on which it did, and of the one before."""
    about = {"method": run["method"], "seed": run["seed"], "last_round": run["rounds"]}
    about |= {key: run.get(key) for key in ("broke_round", "broke_client")}
    before = came_from(run, setting, method)
    whence = {f"from_{key}": value for key, value in _client(setting, run["seed"], before).items()}
    return about | _client(setting, run["seed"], run.get("broke_client")) | {"from_client": before} | whence


def came_from(run: Row, setting: About, method: Method) -> int | None:
    """The client that a slot had visited with the model that broke; None where that was sent out anew."""
    client, round = run.get("broke_client"), run.get("broke_round") or 1
    if client is None or round == 1 or Period.parse(method.period).merges(round - 1):
        return None
    keys, seed = setting.keys, run["seed"]
    policy = keys.get("cohort_policy", "uniform")
    clients = setting.divisions[_partition_seed(setting, seed)]["clients"]
    now, then = (draw_cohort(policy, seed, one - 1, clients, keys["cohort"]) for one in (round, round - 1))
    return int(then[now == client][0])


def _client(setting: About, seed: int, client: int | None) -> Row:
    """The size of a client, and how its samples are spread over classes."""
    division = None if client is None else dealt(setting, _partition_seed(setting, seed))
    if client is None or division is None:
        return {}
    data = dataset(**setting.keys["data"])
    counts = heatmap.class_counts(division.clients, data.samples.labels(), data.classes or 0)[:, client]
    sizes = division.clients.sizes
    return {
        "size": int(sizes[client]), "mean_size": float(np.mean(sizes)), "classes": int((counts > 0).sum()),
        "largest_class": float(counts.max() / counts.sum()),
    }  # fmt: skip


def _partition_seed(setting: About, seed: int) -> int:
    """The seed by which clients were dealt: that of the run, unless it is pinned."""
    fixed: int | None = setting.keys.get("partition_seed")
    return seed if fixed is None else fixed


def _when(row: Row) -> str:
    """The round in which a run broke, or the last that it recorded."""
    return f"{row['broke_round']}" if row["broke_round"] is not None else f"after {row['last_round']}"


def _where(row: Row) -> str:
    """The client on which a run broke."""
    if row["broke_client"] is None:
        return "not noted"
    about = f"{row['size']:,} samples, mean {row['mean_size']:,.0f}; " if row["size"] is not None else ""
    return f"{row['broke_client']}" + _mix(row, "", about)


def _whence(row: Row) -> str:
    """The client that it came from with its model."""
    if row["from_client"] is None:
        return units.NONE
    about = f"{row['from_size']:,} samples, " if row["from_size"] is not None else ""
    return f"{row['from_client']}" + _mix(row, "from_", about)


def _mix(row: Row, prefix: str, about: str) -> str:
    """How the samples of a client are spread over classes, as far as it is known.

    >>> _mix({"classes": 2, "largest_class": 0.9986}, "", "")
    ' (2 classes, >99% of one)'
    """
    classes, largest = row[f"{prefix}classes"], row[f"{prefix}largest_class"]
    if classes is None:
        return ""
    if classes == 1:
        return f" ({about}all of one class)"
    share = ">99%" if largest > 0.995 else f"{largest:.0%}"
    return f" ({about}{classes} classes, {share} of one)"
