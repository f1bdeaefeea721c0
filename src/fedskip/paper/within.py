"""Runs that were made longer than the paper's, as they stood after its rounds."""

import math
from collections.abc import Sequence
from dataclasses import replace

from fedskip.records.history import summarise
from fedskip.records.table import Row, Table
from fedskip.report.results import Results


def within(study: Results, rounds: int, beyond: float = 1.0) -> Results:
    """One setting as it stood after `rounds`; histories, and `rounds` of a run, go on to `beyond` times that.

    A longer run of which no history was kept stays as it is: how it stood then is not known.
    """
    [setting] = study.settings
    if setting.rounds <= rounds or not study.history:
        return study
    limit = math.floor(beyond * rounds)
    history = Table(study.history.columns, [row for row in study.history if row["round"] <= limit])
    runs: dict[str, list[Row]] = {}
    for row in study.history:
        runs.setdefault(row["run"], []).append(row)
    rows = [
        row | _stood(row, runs[row["run"]], rounds, limit) if row["run"] in runs else row
        for row in study.summary
    ]
    about = replace(setting, keys=setting.keys | {"rounds": rounds})
    return replace(study, history=history, summary=Table(study.summary.columns, rows), settings=(about,))


def _stood(run: Row, history: Sequence[Row], rounds: int, limit: int) -> Row:
    """What of a run's summary was different after fewer rounds; bytes are those up to the last merge."""
    now = summarise([row for row in history if row["round"] <= rounds], rounds=rounds)
    now |= {"final": None, "full_test": None, "worst_clients": None}  # nobody looked
    came, broke = run["rounds"], run.get("broke_round") or history[-1]["round"] + 1
    if run["diverged"] and broke > rounds:
        now |= {"diverged": False, "broke_round": None, "broke_client": None, "broke_slot": None}
        came = broke - 1  # its rounds are those of its last merge
    return now | {"rounds": min(came, limit)}
