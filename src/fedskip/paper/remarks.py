"""What has to be said of runs beside their numbers: seeds that are missing, runs lost, length, precision."""

from collections.abc import Iterable, Mapping, Sequence

from fedskip.paper.columns import Column
from fedskip.records.table import Row


def bracketed(text: str, said: Sequence[str]) -> str:
    """A text, and in brackets what has to be said of it.

    >>> bracketed("50.00", ["1 of 3 diverged"]), bracketed("50.00", [])
    ('50.00 (1 of 3 diverged)', '50.00')
    """
    return f"{text} ({', '.join(said)})".strip() if said else text


def remarks(column: Column, runs: Sequence[Row], of: int = 0) -> list[str]:
    """All that is to be said of the runs of one method; `of`: the seeds that it should have."""
    said = [f"{len(runs)} of {of} seeds"] * (0 < len(runs) < of)
    return [*said, *lost(column, runs), *filter(None, [length(column, runs), precision(column, runs)])]


def lost(column: Column, runs: Sequence[Row]) -> list[str]:
    """How many runs came to nothing: those that diverged have no score, those at chance have."""
    counts = {
        "diverged": sum(bool(row["diverged"]) for row in runs),
        "at chance": sum(map(column.at_chance, runs)),
    }
    return [f"{count} of {len(runs)} {what}" for what, count in counts.items() if count]


def length(column: Column, runs: Iterable[Row]) -> str:
    """Where runs are not of the column's rounds, how many they have.

    Of longer ones its own rounds count, unless no history was kept.
    """
    found = [int(row["rounds"]) for row in runs if not row["diverged"]]
    if min(found, default=column.rounds) < column.rounds:
        return f"{span(min(rounds, column.rounds) for rounds in found)} of {column.rounds:,} rounds"
    most = max(found, default=0)
    return f"{most:,} rounds, not {column.rounds:,}" if most > column.rounds else ""


def precision(column: Column, runs: Sequence[Row]) -> str:
    """Where runs were made in another precision than the column's, in which."""
    others = [str(row["precision"]) for row in runs if not column.is_usual(row)]
    some = "" if len(others) == len(runs) else f"{len(others)} of {len(runs)} "
    return f"{some}in {' and '.join(dict.fromkeys(others))}" if others else ""


def seeds(counts: Iterable[int], of: int) -> str:
    """How many seeds there are of methods that were run, and of how many where some lack any.

    >>> seeds([3, 3, 0], 3), seeds([1, 2], 3)
    ('3', '1 to 2 of 3')
    """
    found = [count for count in counts if count]
    return f"{span(found)} of {of}" if min(found, default=of) < of else str(of)


def fewer(column: Column, runs: Mapping[str, Sequence[Row]]) -> list[str]:
    """How many seeds the methods have that were run, where some lack any."""
    counts, of = [len(rows) for rows in runs.values() if rows], column.seeds(runs)
    return [f"{seeds(counts, of)} seeds"] * (min(counts, default=of) < of)


def other(column: Column, runs: Sequence[Row]) -> list[str]:
    """What makes runs less than the paper's, or other."""
    return [*column.marks, *filter(None, [length(column, runs), precision(column, runs)])]


def labelled(column: Column, runs: Mapping[str, Sequence[Row]]) -> str:
    """The name of a column, and in brackets what makes its runs less than the paper's, or other."""
    every = [row for rows in runs.values() for row in rows]
    return bracketed(column.name, [*other(column, every), *fewer(column, runs)])


def span(values: Iterable[int]) -> str:
    """From the least to the most.

    >>> span([9, 99, 50]), span([3, 3])
    ('9 to 99', '3')
    """
    found = sorted(values)
    return " to ".join(dict.fromkeys(f"{value:,}" for value in (found[0], found[-1])))
