"""Table IV: what it takes to be where FedAvg is after all rounds, beside the paper's numbers in `table4.csv`.

The target is FedAvg's best, and its last, within the column's T rounds. A method that falls short of it may
go on to 1.5 T, as some of the paper's did: `fedskip resume OUT --rounds N`.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from fedskip.files import write_text
from fedskip.input.errors import option, told
from fedskip.methods.grammar import text
from fedskip.paper.columns import BASELINE, Column, races
from fedskip.paper.remarks import bracketed, precision, seeds
from fedskip.records.table import Row, Table
from fedskip.report import units
from fedskip.report.results import Results, first_at
from fedskip.report.sheet import Sheet

BEYOND = 1.5  # times T
HEADERS = ("method", "reached", "rounds", "merges", "sent, both ways", "speed-up")


def table4(studies: Sequence[Results], out: Path | None, whole: bool = True) -> list[RenderableType]:
    """Rounds, merges and bytes until FedAvg's best and its last accuracy are reached, column by column.

    Not `whole`: without a word on columns of which there is nothing.
    """
    shown: list[RenderableType] = []
    rows: list[Row] = []
    missing: list[str] = []
    for name, column in races().items():
        runs = column.runs(studies)
        if not whole and not any(runs.values()):
            continue
        found = {score: reached(column, studies, score) for score in ("best", "last")}
        for score, table in found.items():
            paper = {"paper_rounds": column.rounds, "paper_seeds": len(column.draft.keys["seeds"])}
            rows += [{"column": name, "of": score} | row | paper for row in table]
            if table or (score == "best" and name in published()):
                shown.append(_sheet(name, column, score, table, runs))
        missing += _missing(name, column, runs, found["best"])
    if rows and out is not None:
        write_text(out / "table4.csv", Table(rows[0], rows).csv())
    return [*shown, *map(Text, missing)]


def _missing(
    name: str, column: Column, runs: Mapping[str, Sequence[Row]], found: Sequence[Row]
) -> Iterator[str]:
    """What of a column there is not, and the command that makes it."""
    command = f"fedskip run {name}"
    if not any(runs.values()):
        yield f"not run: {name}. Make it with: {command}"
    elif runs[BASELINE] and not found:
        yield f"run, but without a history: {name}. Make it with: {command}"
    elif lacking := [text(method) for label, method in column.methods.items() if not runs[label]]:
        less = ", ".join(_less(column, found, runs))
        some = bracketed(name, [f"reduced: {less}"] * bool(less))
        only = told(option("methods", f'"{", ".join(lacking)}"'), flags=True)
        yield f"not run of {some}: {units.count(len(lacking), 'method')}. Make them with: {command} {only}"


def target_sheet(name: str, studies: Sequence[Results], score: str = "best") -> Sheet:
    """One column of the table, as far as it was run."""
    column = races()[name]
    return _sheet(name, column, score, reached(column, studies, score), column.runs(studies))


def reached(column: Column, studies: Sequence[Results], score: str = "best") -> Table:
    """When each method was first where FedAvg was within T rounds; nothing where FedAvg has no history.

    T is the column's, or fewer where FedAvg did not come so far. `late`: at how many seeds it took more
    than T. `until`: the rounds that all runs of a method had, but for those that diverged. `diverged` counts
    those that did so before they were there. `precision`: where it is not the column's. `runs`: those with a
    history, of those that were `made`.
    """
    whole, longer = column.results(studies), column.results(studies, BEYOND)
    if whole is None or longer is None or BASELINE not in whole.labels():
        return Table(())
    before = {row["method"]: row["reached"] for row in whole.to_target(BASELINE, score=score)}
    came = [row["rounds"] for row in whole.summary.where(method=BASELINE, diverged=False)]
    rounds, rows = min(column.rounds, max(came, default=whole.compared[0].rounds)), []
    goals, made = longer.scores(longer.compared[0].name, BASELINE, score), column.runs(studies)
    for row in longer.to_target(BASELINE, score=score):
        runs = longer.summary.where(method=row["method"])
        until = min(runs.where(diverged=False).column("rounds"), default=None)
        row |= {"of_rounds": rounds, "late": row["reached"] - before[row["method"]], "until": until}
        broken = _broken(longer, row["method"], goals)
        row |= {
            "precision": precision(column, runs),
            "runs": len(runs),
            "made": len(made[row["method"]]),
            "diverged": broken,
        }
        if row["method"] == BASELINE:
            row["seeds"] += broken  # where it set no goal, it did not get there
        rows.append(row)
    return Table(rows[0], rows)


@cache
def published() -> dict[str, dict[str, Mapping[str, str]]]:
    """The paper's numbers as it prints them, by column and method."""
    found: dict[str, dict[str, Mapping[str, str]]] = {}
    with Path(__file__).with_name("table4.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["column"], {})[row["method"]] = row
    return found


def _sheet(
    name: str, column: Column, score: str, found: Sequence[Row], runs: Mapping[str, Sequence[Row]]
) -> Sheet:
    """A column of the table: ours, and the paper's where it has one. The paper's target is FedAvg's best."""
    paper = published().get(name, {}) if score == "best" else {}
    headers = [*HEADERS, *["paper: merges / rounds / speed-up"] * bool(paper)]
    of = column.seeds(runs) if len({row["runs"] for row in found}) > 1 else 0
    ours = {row["method"]: _cells(row, of) for row in found}
    untold = "no history" if found else f"{BASELINE} has no history"  # of what was run
    rows = []
    for method in column.methods:
        why = untold if runs[method] else "not run"
        cells = ours.get(method, [why, *[""] * (len(HEADERS) - 2)])
        cells = [*cells, *[_printed(column, paper.get(method))] * bool(paper)]
        rows.append([Text(method), *map(Text, cells)])
    said, title = ", ".join(_less(column, found, runs)), f"{name}: to FedAvg's {score}"
    if not said:
        return Sheet(title, headers, 1, rows)
    return Sheet(f"{title}, reduced: {said}", headers, 1, rows, f"Reduced: {said}.")


def _less(column: Column, found: Sequence[Row], runs: Mapping[str, Sequence[Row]]) -> list[str]:
    """What there is less of than there should be: rounds of FedAvg, seeds and histories of any method."""
    if not found:
        return []
    rounds, counts, of = found[0]["of_rounds"], [row["runs"] for row in found], column.seeds(runs)
    fewer = [f"{rounds:,} of {column.rounds:,} rounds"] * (rounds < column.rounds)
    lost = "histories of " * any(row["runs"] < row["made"] for row in found)
    return fewer + [f"{lost}{seeds(counts, of)} seeds"] * (min(counts) < of)


def _broken(results: Results, method: str, goals: Mapping[int, float | None]) -> int:
    """How many runs diverged before they were there: of FedAvg all that did, as it sets the goals.

    Of others those at seeds at which FedAvg did not: elsewhere they have no goal.
    """
    lost = results.summary.where(method=method, diverged=True)
    if method == BASELINE:
        return len(lost)
    histories = {run[0]["run"]: run for run in results.histories(results.compared[0].name, method)}
    known = [(histories.get(run["run"], ()), goals.get(run["seed"])) for run in lost]
    return sum(goal is not None and first_at(history, goal) is None for history, goal in known)


def _cells(row: Row, of: int) -> list[str]:
    """`of`: the seeds that there should be, where not all methods have as many."""
    said = f"{row['reached']} of {row['seeds']}"
    if row["until"] is not None and row["reached"] + row["diverged"] < row["seeds"]:
        said += f" by round {row['until']:,}"
    if row["late"]:
        said += f", {row['late']} after round {row['of_rounds']:,}"
    if row["diverged"]:
        said += f", {row['diverged']} diverged before"
    if row["precision"]:
        said += f", {row['precision']}"
    if row["runs"] < of:
        said += f", {row['runs']} of {of} seeds"
    cells = [said]
    cells += [units.NONE if row[key] is None else f"{row[key]:.0f}" for key in ("rounds", "merges")]
    cells.append(units.NONE if row["bytes"] is None else units.size(row["bytes"]))
    there = row["rounds"] and row["reached"] == row["seeds"]  # else it is a mean over the lucky seeds
    cells.append(f"{row['of_rounds'] / row['rounds']:.2f}×" if there else units.NONE)
    return cells


def _printed(column: Column, row: Mapping[str, str] | None) -> str:
    """As the paper has it; a speed-up that does not follow from its rounds gets the one that does."""
    if row is None or row["rounds"] == "*":
        return "*" if row else ""
    said = f"{row['merges']} / {row['rounds']} / {row['speedup']}×"
    right = column.rounds / int(row["rounds"])
    slip = abs(right - float(row["speedup"])) > 0.01
    return f"{said} (printed; {column.rounds} / {row['rounds']} is {right:.2f}×)" if slip else said
