"""Numbers behind claims of the paper that its tables do not show: early rounds, merges, drift, slots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.text import Text

from fedskip.paper.beside import METRIC, SKIPPING, named, shown_gain
from fedskip.paper.columns import BASELINE, Column
from fedskip.paper.remarks import bracketed, labelled, lost, other, seeds
from fedskip.records.history import TAIL
from fedskip.records.table import Row, Table
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
            cells = [_early(results, label, rounds) for rounds in EARLY]
            if label in results.labels():
                name = labelled(column, _by_method(results)) if label == BASELINE else ""
                rows.append([Text(name), Text(label), *map(Text, cells)])
    headers = ["column", "method", *(f"round {rounds}" for rounds in EARLY)]
    return Sheet("test accuracy in %, in early rounds", headers, 2, rows)


@dataclass(frozen=True)
class Uneven:
    """FedAvg over the last rounds of a column, run by run: its accuracy, and both drifts."""

    seeds: int  # that have histories
    accuracy: Sequence[float]
    drift_mean: Sequence[float]  # of the slots from their mean
    drift_broadcast: Sequence[float]  # from the model that was sent out


def uneven(
    columns: Sequence[Column], studies: Sequence[Results], score: str = "mean_tail"
) -> dict[Column, Uneven]:
    """What uneven data do to FedAvg, in the columns that have histories of it; the accuracy is by `score`."""
    found = {}
    for column, results in _held(columns, studies).items():
        about = results.compared[0]
        drifts = [tails(results, BASELINE, key) for key in ("drift_mean", "drift_broadcast")]
        by_seed = [results.scores(about.name, BASELINE, score), *drifts]
        known = [[value for value in each.values() if value is not None] for each in by_seed]
        found[column] = Uneven(len(drifts[0]), *known)
    return found


def uneven_sheet(columns: Sequence[Column], studies: Sequence[Results], score: str = "mean_tail") -> Sheet:
    """FedAvg's accuracy and both drifts, over the last rounds: what uneven data do to it."""
    rows = []
    for column, seen in uneven(columns, studies, score).items():
        drifts = [f"{fmean(d):.1f}" if d else units.NONE for d in (seen.drift_mean, seen.drift_broadcast)]
        runs = {BASELINE: column.runs(studies)[BASELINE]}
        counted = seeds([seen.seeds], column.seeds(runs))
        cells = [counted, units.scores(seen.accuracy, METRIC), *drifts]
        label = bracketed(column.name, [*other(column, runs[BASELINE]), *lost(column, runs[BASELINE])])
        rows.append([Text(label), *map(Text, cells)])
    headers = ["column", "seeds", f"{named(score)} accuracy"]
    headers += ["drift from the mean", "drift from the model sent out"]
    return Sheet(f"{BASELINE}, drift over the last {TAIL:.0%} of the rounds", headers, 1, rows)


def reach_sheet(columns: Sequence[Column], studies: Sequence[Results]) -> Sheet:
    """Merges until FedAvg's best at the same seed, of methods that reach it at every seed."""
    rows = []
    for column, results in _held(columns, studies).items():
        found = results.to_target(BASELINE)
        there = {row["method"]: row for row in found if row["reached"] == row["seeds"] > 0}
        merges = {name: row["merges"] for name, row in there.items()}
        cells = [f"{merges[name]:.0f}" if name in merges else units.NONE for name in (BASELINE, *SKIPPING)]
        rival = fewest({name: some for name, some in merges.items() if name not in SKIPPING})
        cells.append(f"{merges[rival]:.0f} ({rival})" if rival else units.NONE)
        cells.append(fewest(merges) or units.NONE)
        rows.append([Text(labelled(column, _by_method(results))), *map(Text, cells)])
    headers = ["column", BASELINE, *SKIPPING, "fewest without skipping", "fewest of all"]
    return Sheet("merges until FedAvg's best", headers, 1, rows)


def fewest(merges: Mapping[str, float]) -> str | None:
    """The method that needs the fewest merges; None where none gets there."""
    return min(merges, key=merges.__getitem__, default=None)


def slot_scores(results: Results, label: str) -> dict[int, float | None]:
    """The accuracy of single slots before they merge, over the last rounds, by seed."""
    return tails(results, label, "slot_accuracy")


def slots_sheet(columns: Sequence[Column], studies: Sequence[Results]) -> Sheet:
    """The accuracy of single slots before they merge, over the last rounds, and its gain over FedAvg's."""
    rows = []
    for column, results in _held(columns, studies).items():
        name, base = results.compared[0].name, dict[int, float | None]()
        for label in (BASELINE, *SKIPPING):
            known = slot_scores(results, label)
            if not known:
                continue
            base = base or dict(known)
            gain = "" if label == BASELINE else shown_gain(difference(known, base))
            merged = [v for v in results.scores(name, label, "mean_tail").values() if v is not None]
            slots = [score for score in known.values() if score is not None]
            cells = [units.scores(slots, METRIC), gain, units.scores(merged, METRIC)]
            called = labelled(column, _by_method(results)) if label == BASELINE else ""
            of_label = bracketed(label, lost(column, results.summary.where(method=label)))
            rows.append([Text(called), Text(of_label), *map(Text, cells)])
    headers = ["column", "method", "single slots", f"gain over {BASELINE}", "after the merge"]
    return Sheet(f"slots before a merge, over the last {TAIL:.0%} of the rounds", headers, 2, rows)


def _held(columns: Sequence[Column], studies: Sequence[Results]) -> Mapping[Column, Results]:
    """The columns that have histories of FedAvg."""
    found = {column: column.results(studies) for column in columns}
    return {column: one for column, one in found.items() if one is not None and BASELINE in one.labels()}


def _by_method(results: Results) -> dict[str, Table]:
    return {label: results.summary.where(method=label) for label in results.labels()}


def _early(results: Results, label: str, rounds: int) -> str:
    """The mean at the last merge up to a round, over the runs that came so far; says which did not."""
    histories = {run[0]["run"]: run for run in results.histories(results.compared[0].name, label)}
    runs = results.summary.where(method=label)
    there = [row for row in runs if _came(row) >= rounds]
    broken = sum(bool(row["diverged"]) for row in runs if _came(row) < rounds)
    counts = {"diverged": broken, "shorter": len(runs) - len(there) - broken}
    notes = [f"{count} of {len(runs)} {what}" for what, count in counts.items() if count]
    said = _mean([at(row, histories.get(row["run"], ()), rounds) for row in there])
    return f"{said} ({', '.join(notes)})" if notes else said


def _came(run: Row) -> int:
    """The last round of a run; of one that diverged, the last before it did."""
    return int(run["broke_round"] - 1 if run["diverged"] and run.get("broke_round") else run["rounds"])


def at(run: Row, history: Sequence[Row], rounds: int) -> float | None:
    """A run's accuracy at the last merge up to a round; None before the first, and past the run's end."""
    known = [row["test_accuracy"] for row in history if row["round"] <= rounds]
    return known[-1] if known and _came(run) >= rounds else None


def tails(results: Results, label: str, key: str) -> dict[int, float | None]:
    """The mean of a method's `key` over the last rounds, by seed; None where a run diverged."""
    about = results.compared[0]
    broken = results.summary.where(method=label, diverged=True).column("run")
    runs = results.histories(about.name, label)
    return {run[0]["seed"]: None if run[0]["run"] in broken else tail(run, key, about.rounds) for run in runs}


def tail(run: Table, key: str, rounds: int) -> float | None:
    """The mean over the last rounds; None where a run did not come so far, or nobody measured it."""
    known = [row[key] for row in run if row["round"] > (1 - TAIL) * rounds and row[key] is not None]
    return fmean(known) if known else None


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return units.score(fmean(known) if known else None, METRIC)
