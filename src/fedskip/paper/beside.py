"""Our numbers beside the paper's: one column with gains over FedAvg, or all columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from fedskip.paper import intervals
from fedskip.paper.columns import BASELINE, Column
from fedskip.paper.remarks import bracketed, fewer, length, lost, other, precision, remarks, seeds, span
from fedskip.paper.strongest import as_long, strongest, with_all_seeds
from fedskip.records.table import Row
from fedskip.report import units
from fedskip.report.canvas import finish, new_axes
from fedskip.report.results import Results
from fedskip.report.sheet import BEST, Sheet
from fedskip.report.statistics import Difference, difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRIC = units.ACCURACY
SKIPPING = [f"FedSkip-{period}" for period in (3, 5, 7, 10)]
PAPER = "#d55e00"  # its colour
SHOWN = {"best": "best", "last": "last", "mean_tail": "tail"}
SCORES = {shown: score for score, shown in SHOWN.items()}


def named(score: str) -> str:
    """A score as tables call it.

    >>> named("mean_tail"), named("best_val")
    ('tail', 'best_val')
    """
    return SHOWN.get(score, score)


def column_sheet(column: Column, studies: list[Results]) -> Sheet:
    """A column in full: our scores, the paper's, and the gains over FedAvg, paired by seed."""
    runs = column.runs(studies)
    of = column.seeds(runs)
    some = fewer(column, runs)
    said = {
        "seeds": {name: seeds([len(rows)], of) if rows and some else "" for name, rows in runs.items()},
        "lost": {name: ", ".join(lost(column, rows)) for name, rows in runs.items()},
        "length": {name: length(column, rows) for name, rows in runs.items()},
        "precision": {name: precision(column, rows) for name, rows in runs.items()},
    }
    said = {header: words for header, words in said.items() if any(words.values())}
    several = len(runs.get(BASELINE, ())) > 1
    gains = ["gain in best", "gain in tail"] * several
    paper, theirs = ["paper"] * bool(column.published), ["paper's gain"] * bool(column.published)
    headers = ["method", *SHOWN.values(), *said, *paper, *gains, *theirs]
    rows = []
    for name, found in runs.items():
        cells = [scores(found, score) for score in SHOWN] if found else ["not run", "", ""]
        cells += [words[name] for words in said.values()]
        cells += [published(column, name) for _ in paper]
        for score in ("best", "mean_tail") if several else ():
            cells.append("" if name == BASELINE else gain(found, runs[BASELINE], score))
        cells += [published_gain(column, name) for _ in theirs]
        rows.append([Text(name), *map(Text, cells)])
    return Sheet(f"{column.table}/{column.name}", headers, 1, rows, _note(column, studies))


def _note(column: Column, studies: Sequence[Results]) -> str:
    """What makes a column less than the paper's, or other, and its clients that fill no batch."""
    return " ".join(filter(None, [units.sentences(column.marks), *in_short_batches(column, studies)]))


def in_short_batches(column: Column, studies: Sequence[Results]) -> list[str]:
    """A sentence on the clients that fill no batch, where there are any."""
    small, batch = some_short(column, studies), column.draft.keys["local"]["batch"]
    return [f"{small} clients fill no batch of {batch}, and train in one short batch."] if small else []


def table_sheet(table: str, columns: Sequence[Column], studies: list[Results], score: str = "best") -> Sheet:
    """A whole table: ours and the paper's side by side; the cells say what is missing, short or lost."""
    headers = ["method"]
    names = list(dict.fromkeys(name for column in columns for name in column.methods))
    rows = {name: [Text(name)] for name in names}
    small = [Text("(clients in a short batch)")]
    for column in columns:
        runs = column.runs(studies)
        headers += [column.name, "paper"]
        best = strongest(with_all_seeds(runs, score), score)
        for name in names:
            text = cell(column, runs.get(name), score, column.seeds(runs))
            rows[name] += [Text(text, BEST if name == best else ""), Text(published(column, name))]
        small += [Text(short(column, studies)), Text("")]
    title = f"{table}, {named(score)} test accuracy in %"
    return Sheet(title, headers, 1, [*rows.values(), *[small] * any(cell.plain for cell in small[1:])])


def gains_sheet(columns: Sequence[Column], studies: list[Results], score: str = "mean_tail") -> Sheet:
    """What skipping gains over FedAvg in each column that was run: ours, and the paper's."""
    rows = []
    for column, gained in gains(columns, studies, score).items():
        runs = column.runs(studies)
        base, compared = runs[BASELINE], [row for name in (BASELINE, *SKIPPING) for row in runs[name]]
        cells = [seeds([len(base)], column.seeds(runs)), bracketed(scores(base, score), lost(column, base))]
        for name, ours in gained.items():
            cells.append(f"{shown_gain(ours, len(base))}; paper {published_gain(column, name)}")
        rows.append([Text(bracketed(column.name, other(column, compared))), *map(Text, cells)])
    return Sheet(
        f"gain over {BASELINE} in points, by {SHOWN[score]}",
        ["column", "seeds", BASELINE, *SKIPPING],
        1,
        rows,
    )


def gains_figure(columns: Sequence[Column], studies: list[Results], score: str = "mean_tail") -> Axes:
    """The same as a picture: means with intervals, and the paper's gains as hollow diamonds."""
    axes, found = new_axes(), gains(columns, studies, score)
    rows = {_tick(column, studies): gained for column, gained in found.items()}
    intervals.draw(axes, rows)
    for number, (column, gained) in enumerate(found.items()):
        base = column.published.get(BASELINE)
        for name, y in intervals.heights(number, list(gained)).items():
            theirs = column.published.get(name)
            if theirs is not None and base is not None:
                axes.plot(100 * (theirs - base), y, "D", markersize=5, fillstyle="none", color=PAPER)
    axes.plot([], [], "D", fillstyle="none", color=PAPER, label="the paper")
    intervals.fit(axes)
    axes.set_xlabel(f"gain over {BASELINE} (points of test accuracy)")
    notes = [f"by {SHOWN[score]}, {intervals.NOTE}", *intervals.cautions(rows)]
    return finish(axes, "What skipping gains", notes)


def _tick(column: Column, studies: list[Results]) -> str:
    """The name of a column in a picture, and below it what makes its runs less than the paper's, or other."""
    runs = column.runs(studies)
    compared = {name: runs[name] for name in (BASELINE, *SKIPPING) if runs[name]}
    said = other(column, [row for rows in compared.values() for row in rows])
    return "\n".join([column.name, *said, *fewer(column, compared)])


def gains(
    columns: Sequence[Column], studies: list[Results], score: str
) -> dict[Column, dict[str, Difference]]:
    """How FedSkip differs from FedAvg, by period, in each column of which there is something."""
    found = {}
    for column in columns:
        runs = column.runs(studies)
        base = runs.get(BASELINE, [])
        if base and any(runs.get(name) for name in SKIPPING):
            found[column] = {name: apart(runs[name], base, score) for name in SKIPPING}
    return found


def cell(column: Column, runs: Sequence[Row] | None, score: str, of: int = 0) -> str:
    """Our number, or why there is none; `of`: the seeds that there should be."""
    if runs is None:
        return ""
    if not runs:
        return "not run"
    notes = remarks(column, runs, of)
    whole = [row for row in runs if not row["diverged"]]
    return bracketed(scores(whole, score) if whole else "", notes)


def short(column: Column, studies: Sequence[Results]) -> str:
    """How many clients `local.small_clients: short` concerned, of how many; nothing where there are no runs.

    Where seeds differ, the fewest and the most.
    """
    settings = [setting for part in column.parts(studies) for setting in part.settings]
    found = [
        (number, setting.divisions[seed]["clients"])
        for setting in settings
        for seed, number in setting.short.items()
    ]
    return " of ".join(map(span, zip(*found, strict=True))) if found else "not noted" * bool(settings)


def some_short(column: Column, studies: Sequence[Results]) -> str:
    """The same, where there are any, as far as it was noted."""
    number = short(column, studies)
    return "" if number.startswith(("0 of ", "not noted")) else number


def scores(runs: Sequence[Row], score: str) -> str:
    """The mean and spread of the runs that did not diverge; none of runs of different lengths."""
    whole = [row for row in runs if not row["diverged"]]
    most = max((row["rounds"] for row in whole), default=0)
    alike = all(as_long(row, most) for row in whole)
    return units.scores(known(whole, score), METRIC) if alike else units.NONE


def gain(runs: Sequence[Row], others: Sequence[Row], score: str, of: int = 0) -> str:
    """What runs gain over others, paired by seed; `of`: the seeds that there should be."""
    return shown_gain(apart(runs, others, score), of)


def known(runs: Sequence[Row], score: str) -> list[float]:
    """The scores of the runs that did not diverge."""
    return [row[score] for row in runs if row.get(score) is not None and not row["diverged"]]


def apart(runs: Sequence[Row], others: Sequence[Row], score: str) -> Difference:
    """How runs differ from others, paired by seed; one of another length is nothing to compare with."""
    mine, theirs = (
        {row["seed"]: None if row["diverged"] else row.get(score) for row in some} for some in (runs, others)
    )
    lengths = {row["seed"]: row["rounds"] for row in others}
    for row in runs:
        if row["seed"] in theirs and not row["diverged"] and not as_long(row, lengths[row["seed"]]):
            theirs[row["seed"]] = None
    return difference(mine, theirs)


def shown_gain(found: Difference, of: int = 0) -> str:
    """In points, with Student's 95 % interval; at how many seeds, where some have nothing to compare with.

    `of`: the seeds that there should be.

    >>> shown_gain(Difference(2, 0.03, 0.01, 0.05, 2, 0, unmatched=1))
    '+3.00 (+1.00 to +5.00) at 2 of 3 seeds'
    """
    if found.mean is None or found.missing:
        return units.NONE
    mean, low, high = (units.difference(value, METRIC) for value in (found.mean, found.low, found.high))
    said = mean if found.low is None else f"{mean} ({low} to {high})"
    most = max(of, found.seeds + found.unmatched)
    return f"{said} at {found.seeds} of {most} seeds" if found.seeds < most else said


def published(column: Column, name: str) -> str:
    """The paper's number; a star where it has one."""
    if name not in column.published:
        return ""
    score = column.published[name]
    return "*" if score is None else units.score(score, METRIC)


def published_gain(column: Column, name: str) -> str:
    """The paper's gain over FedAvg."""
    score, base = column.published.get(name), column.published.get(BASELINE)
    return "" if score is None or base is None or name == BASELINE else units.difference(score - base, METRIC)
