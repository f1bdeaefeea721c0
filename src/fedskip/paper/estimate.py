"""How long a setting takes: as it was measured, or else an estimate for one H200 by one rule.

    minutes = 1 + client-steps × ms per client-step / 60,000

One minute is for loading and compiling. Client-steps are methods × seeds × rounds × cohort × epochs × the
batches of an average client. Milliseconds are those of the settings with the same model that were timed on an
H200 (`times.csv`), less that minute, but for those with a note, which shared it; of a model without any,
those of `fedskip bench` with many rows (`rates.csv`). Evaluations count where they were part of what was
timed.
"""

import csv
from functools import cache
from pathlib import Path

from fedskip.engine.local import Local
from fedskip.paper.columns import Column, settings

START = 1.0  # minutes
DEVICE = "one H200"
POOL = {"cifar10": 50_000, "cifar100": 50_000}  # training samples, dealt to all clients
OWN = {"femnist": 145, "shakespeare": 5_573, "synthetic": 244}  # training samples of an average client


def time(name: str, share: float = 1.0) -> str:
    """How long a setting takes, in words: measured, or `about` so long; `share`: of its runs only so many."""
    column, rows = settings()[name], {row["name"]: row for row in _read("times")}
    if name in rows and (share == 1 or not rows[name]["note"]):
        row, minutes, runs = rows[name], float(rows[name]["minutes"]), int(rows[name]["runs"])
        where = "" if row["device"] == DEVICE else f", {row['device']}"
        where += f", {row['note']}" if row["note"] else ""
        if share < 1:
            whole = (minutes - START) * column.planned / runs
            return f"about {_words(START + share * whole)}{where}"
        some = "" if runs == column.planned else f", {runs} of {column.planned} runs"
        return f"{minutes:.0f} min{some}{where}"
    found = {precision: estimate(column, precision, share) for precision in ("tf32", "bf16")}
    known = {precision: _words(minutes) for precision, minutes in found.items() if minutes is not None}
    own = column.precision or "tf32"
    if own not in known:
        return "not measured"
    half = f" ({known['bf16']} in bf16)" if "bf16" in known and own != "bf16" else ""
    return f"about {known[own]}{half}"


def estimate(column: Column, precision: str = "tf32", share: float = 1.0) -> float | None:
    """Minutes on one H200, for a share of the runs; None for a model that nobody timed there."""
    ms = rates().get((column.draft.keys["model"]["name"], precision))
    return None if ms is None else START + share * client_steps(column) * ms / 60_000


def client_steps(column: Column, runs: int | None = None) -> int:
    """The optimiser steps of all clients in all runs, or in so many."""
    keys = column.draft.keys
    data, local = keys["data"]["name"], Local(**keys["local"])
    samples = POOL[data] / keys["clients"] if data in POOL else OWN[data]
    visit = local.steps(int((1 - keys.get("validation", 0)) * samples))
    return int((column.planned if runs is None else runs) * column.rounds * keys["cohort"] * visit)


@cache
def rates() -> dict[tuple[str, str], float]:
    """Milliseconds of a client-step on one H200, by model and precision."""
    minutes: dict[str, float] = {}
    steps: dict[str, int] = {}
    for row in _read("times"):
        column = settings()[row["name"]]
        model = column.draft.keys["model"]["name"]
        if row["device"] == DEVICE and not row["note"]:
            minutes[model] = minutes.get(model, 0.0) + float(row["minutes"]) - START
            steps[model] = steps.get(model, 0) + client_steps(column, int(row["runs"]))
    timed = {(model, "tf32"): 60_000 * total / steps[model] for model, total in minutes.items()}
    return {(row["model"], row["precision"]): float(row["ms"]) for row in _read("rates")} | timed


def _words(minutes: float) -> str:
    """Minutes as people say them.

    >>> _words(7.4), _words(150), _words(5161.0)
    ('7 min', '2.5 h', '86 h')
    """
    if minutes < 100:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} h" if minutes < 600 else f"{minutes / 60:.0f} h"


def _read(name: str) -> list[dict[str, str]]:
    with Path(__file__).with_name(f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
