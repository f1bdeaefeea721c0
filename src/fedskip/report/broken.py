"""Runs that diverged and visits that were set aside, in words: where it happened, and what helps."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from fedskip.records.table import Row
from fedskip.report.looked import Looked

HELPS = (
    "What helps: a smaller local.lr, a local.clip (largest norm of a gradient; 10, say), "
    "or guard=nonfinite, which sets visits aside that end in NaN or infinity."
)
SHOWN = 3  # runs


def where(round: int | None, client: int | None, slot: int | None) -> str:
    """The visit that broke a run.

    >>> where(3, 17, 1)
    'in round 3, in slot 1 at client 17'
    """
    if round is None:
        return "although the losses of all visits were finite"
    return f"in round {round}, " + (f"in slot {slot} " if slot is not None else "") + f"at client {client}"


def diverged(results: Looked) -> list[str]:
    """Each run that diverged, and where."""
    return [f"{row['run']} {_where(row)}" for row in results.summary if row["diverged"]]


def notes(results: Looked) -> Iterator[str]:
    """What a table says below of runs that diverged, and of visits that were set aside."""
    lost = diverged(results)
    if lost:
        more = [f"and {len(lost) - SHOWN} more"] if len(lost) > SHOWN else []
        yield f"Diverged: {'; '.join([*lost[:SHOWN], *more])}. {HELPS}"
    for setting in results.settings:
        found = []
        for label in results.labels(setting.name):
            runs = results.summary.where(setting=setting.name, method=label)
            aside = [row["set_aside"] for row in runs if row.get("set_aside")]
            visits = fmean(row["rounds"] for row in runs) * len(runs) * int(setting.keys["cohort"])
            found += [f"{label} {sum(aside):,} of {visits:,.0f}"] if aside else []
        if found:
            name = f" of {setting.name}" if len(results.settings) > 1 else ""
            yield f"Visits{name} set aside, as they ended in NaN or infinity: {', '.join(found)}."


def _where(row: Row) -> str:
    return where(*(row.get(f"broke_{name}") for name in ("round", "client", "slot")))
