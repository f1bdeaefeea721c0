"""Runs that diverged and visits that were set aside: where it happened, and what helps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedskip.records.table import Row, to_rows

if TYPE_CHECKING:
    from fedskip.report.results import Results

HELP = (
    "What helps: a smaller local.lr, a local.clip (largest norm of a gradient; 10, say), "
    "or guard=nonfinite, which sets visits aside that end in NaN or infinity."
)
SHOWN = 3  # runs that are named


def where(round: int | None, client: int | None, slot: int | None) -> str:
    """The visit in which a run diverged.

    >>> where(3, 17, 1)
    'in round 3, in slot 1 at client 17'
    """
    if round is None:
        return "although the losses of all visits were finite"
    place = f"in slot {slot} " if slot is not None else ""
    return f"in round {round}, {place}at client {client}"


def diverged_runs(results: Results) -> list[Row]:
    """The runs that diverged; `where` says in which visit."""
    rows = to_rows(results.summary[results.summary["diverged"]])
    visit = ("broke_round", "broke_client", "broke_slot")
    return [row | {"where": where(*(row.get(name) for name in visit))} for row in rows]


def notes(results: Results) -> Iterator[str]:
    """Notes below a table: runs that diverged, and visits that were set aside."""
    runs = [f"{row['run']} {row['where']}" for row in diverged_runs(results)]
    if runs:
        more = [f"and {len(runs) - SHOWN} more"] if len(runs) > SHOWN else []
        yield f"Diverged: {'; '.join([*runs[:SHOWN], *more])}. {HELP}"
    for setting in results.settings:
        counts = []
        for label in results.labels(setting.name):
            runs_of_it = results.runs(setting.name, label)
            aside = int(runs_of_it["set_aside"].fillna(0).sum())
            visits = int(runs_of_it["rounds"].sum()) * int(setting.keys["cohort"])
            counts += [f"{label} {aside:,} of {visits:,}"] if aside else []
        if counts:
            name = f" of {setting.name}" if len(results.settings) > 1 else ""
            yield f"Visits{name} set aside, as they ended in NaN or infinity: {', '.join(counts)}."
