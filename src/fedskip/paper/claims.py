"""Numbers behind claims of the paper that its tables do not show: early rounds, merges, drift, slots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.text import Text

from fedskip.paper.beside import METRIC, SKIPPING, length, shown_gain
from fedskip.paper.columns import BASELINE, Column
from fedskip.records.history import TAIL
from fedskip.records.table import Table
from fedskip.report import units
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet
from fedskip.report.statistics import difference

EARLY = (10, 20, 50)  # rounds


def early_sheet(columns: Sequence[Column], studies: Sequence[Results]) -> Sheet:
    """Accuracy at the last merge up to some early rounds, mean over seeds."""
    rows = []
    for column, results in _held(columns, studies).items():
        for label in (BASELINE, *SKIPPING):
            runs = results.histories(results.compared[0].name, label)
            cells = [_mean([_at(run, rounds) for run in runs]) for rounds in EARLY]
            if runs:
                rows.append([Text(column.name if label == BASELINE else ""), Text(label), *map(Text, cells)])
    headers = ["column", "method", *(f"round {rounds}" for rounds in EARLY)]
    return Sheet("test accuracy in %, in early rounds", headers, 2, rows)


@dataclass(frozen=True)
class Uneven:
    """FedAvg over the last rounds of a column, run by run: its accuracy, and both drifts."""

    seeds: int
    accuracy: Sequence[float]
    drift_mean: Sequence[float]  # of the slots from their mean
    drift_broadcast: Sequence[float]  # from the model that was sent out


def uneven(columns: Sequence[Column], studies: Sequence[Results]) -> dict[Column, Uneven]:
    """What uneven data do to FedAvg, in the columns that have histories of it."""
    found = {}
    for column, results in _held(columns, studies).items():
        about = results.compared[0]
        scores = results.scores(about.name, BASELINE, "mean_tail").values()
        runs = results.histories(about.name, BASELINE)
        drifts = (
            [_tail(run, key, about.rounds) for run in runs] for key in ("drift_mean", "drift_broadcast")
        )
        mean, broadcast = ([drift for drift in each if drift is not None] for each in drifts)
        found[column] = Uneven(len(runs), [s for s in scores if s is not None], mean, broadcast)
    return found


def uneven_sheet(columns: Sequence[Column], studies: Sequence[Results]) -> Sheet:
    """FedAvg's accuracy and both drifts, over the last rounds: what uneven data do to it."""
    rows = []
    for column, seen in uneven(columns, studies).items():
        drifts = [f"{fmean(d):.1f}" if d else units.NONE for d in (seen.drift_mean, seen.drift_broadcast)]
        cells = [str(seen.seeds), units.scores(seen.accuracy, METRIC), *drifts]
        less = length(column, column.runs(studies)[BASELINE])
        rows.append([Text(f"{column.name} ({less})" if less else column.name), *map(Text, cells)])
    headers = ["column", "seeds", "accuracy", "drift from the mean", "drift from the model sent out"]
    return Sheet(f"{BASELINE}, over the last {TAIL:.0%} of the rounds", headers, 1, rows)


def reach_sheet(columns: Sequence[Column], studies: Sequence[Results]) -> Sheet:
    """Merges until FedAvg's best at the same seed, of methods that reach it at every seed."""
    rows = []
    for column, results in _held(columns, studies).items():
        found = results.to_target(BASELINE)
        there = {row["method"]: row for row in found if row["reached"] == row["seeds"] > 0}
        fewest = min(there.values(), key=lambda row: row["merges"])
        cells = [
            f"{there[name]['merges']:.0f}" if name in there else units.NONE for name in (BASELINE, *SKIPPING)
        ]
        others = [
            f"{row['merges']:.0f} ({name})"
            for name, row in there.items()
            if name not in (BASELINE, *SKIPPING)
        ]
        others.sort(key=lambda text: int(text.partition(" ")[0]))
        cells += [others[0] if others else units.NONE, fewest["method"]]
        rows.append([Text(column.name), *map(Text, cells)])
    headers = ["column", BASELINE, *SKIPPING, "fewest of the others", "fewest of all"]
    return Sheet("merges until FedAvg's best", headers, 1, rows)


def slots_sheet(columns: Sequence[Column], studies: Sequence[Results]) -> Sheet:
    """The accuracy of single slots before they merge, over the last rounds, and its gain over FedAvg's."""
    rows = []
    for column, results in _held(columns, studies).items():
        about, base = results.compared[0], dict[int, float | None]()
        name = about.name
        for label in (BASELINE, *SKIPPING):
            runs = {run[0]["seed"]: run for run in results.histories(name, label)}
            known = {seed: _tail(run, "slot_accuracy", about.rounds) for seed, run in runs.items()}
            if not known:
                continue
            base = base or dict(known)
            gain = "" if label == BASELINE else shown_gain(difference(known, base))
            merged = [v for v in results.scores(name, label, "mean_tail").values() if v is not None]
            slots = [score for score in known.values() if score is not None]
            cells = [units.scores(slots, METRIC), gain, units.scores(merged, METRIC)]
            rows.append([Text(column.name if label == BASELINE else ""), Text(label), *map(Text, cells)])
    headers = ["column", "method", "single slots", f"gain over {BASELINE}", "after the merge"]
    return Sheet(f"slots before a merge, over the last {TAIL:.0%} of the rounds", headers, 2, rows)


def _held(columns: Sequence[Column], studies: Sequence[Results]) -> Mapping[Column, Results]:
    """The columns that have histories of FedAvg."""
    found = {column: column.results(studies) for column in columns}
    return {column: one for column, one in found.items() if one is not None and BASELINE in one.labels()}


def _at(run: Table, rounds: int) -> float | None:
    """The accuracy at the last merge up to a round, or None before the first."""
    known = [row["test_accuracy"] for row in run if row["round"] <= rounds]
    return known[-1] if known else None


def _tail(run: Table, key: str, rounds: int) -> float | None:
    """The mean over the last rounds; None where a run did not come so far, or nobody measured it."""
    known = [row[key] for row in run if row["round"] > (1 - TAIL) * rounds and row[key] is not None]
    return fmean(known) if known else None


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return units.score(fmean(known) if known else None, METRIC)
