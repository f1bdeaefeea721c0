"""What it takes to reach a target: as a table, and in words that follow from it."""

from rich.text import Text

from fedskip.records.table import Row
from fedskip.report import units
from fedskip.report.recorded import About
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet
from fedskip.report.sweep import looked_at

Target = float | str | None  # a score, a method whose best it is, or what the settings say
COSTS = ("rounds", "merges", "bytes")
NOTE = "until a method is first there, seed by seed; mean ± standard deviation over the seeds that get there"


def reached(results: Results, target: Target = None) -> Sheet:
    """Rounds, merges and bytes of every method until it is first where it is to be, over seeds."""
    found = results.to_target(target)
    several, words = (
        len(results.compared) > 1,
        [_words(row["target"], _metric(results, row)) for row in found],
    )
    same = len(set(words)) == 1
    names = ["setting"] * several + ["method"]
    headers = [*names, *["target"] * (not same), "reached", "rounds", "merges", "sent, both ways"]
    rows, shown = [], ""
    for row, goal in zip(found, words, strict=True):
        place = [Text("" if row["setting"] == shown else row["setting"])] * several
        shown = row["setting"]
        cells = [f"{row['reached']} of {row['seeds']}", *(_cost(row, name) for name in COSTS)]
        cells = cells if same else [goal, *cells]
        rows.append([*place, Text(row["method"]), *map(Text, cells)])
    title = f"To reach {words[0]}" if same and words else "To reach the target"
    return Sheet(title, headers, len(names), rows, units.sentences([NOTE, *results.marks]))


def reachable(results: Results, target: Target = None) -> bool:
    """Whether there is something to compare: several methods, and histories that say when they were where."""
    return len(results.labels()) > 1 and any(row["seeds"] for row in results.to_target(target))


def in_words(results: Results, target: Target = None) -> list[str]:
    """For each setting, who is there first, and who with the fewest merges."""
    found, sentences = results.to_target(target), []
    for setting in looked_at(results):
        rows = [row for row in found if row["setting"] == setting.name]
        there = [row for row in rows if row["reached"] == row["seeds"] > 0]
        own = next((row for row in there if row["method"] == row["target"]), None)
        others = [row for row in there if row is not own]
        if len(rows) < 2 or not there:
            continue
        start = f"{setting.name}: " if len(results.compared) > 1 else ""
        sentences.append(start + _sentence(_words(rows[0]["target"], setting.metric), own, others))
    return sentences


def _sentence(goal: str, own: Row | None, others: list[Row]) -> str:
    if not others:
        return f"No other method reaches {goal} at every seed."
    soonest = min(others, key=lambda row: row["rounds"])
    said = f"{goal} is reached soonest by {soonest['method']}: {_bill(soonest)}"
    for cost, words in (("merges", "fewest merges"), ("bytes", "fewest bytes")):
        least = min(others, key=lambda row: row[cost])
        if least[cost] < soonest[cost]:
            said += f"; with the {words} by {least['method']}: {_bill(least)}"
    return said + (f". {own['method']} itself: {_bill(own)}." if own else ".")


def _bill(row: Row) -> str:
    """What it took, on average.

    >>> _bill({"rounds": 20.4, "merges": 4, "bytes": 2e6})
    '20 rounds, 4 merges, 2 MB'
    """
    rounds, merges = (units.count(round(row[name]), name[:-1]) for name in ("rounds", "merges"))
    return f"{rounds}, {merges}, {units.size(row['bytes'])}"


def _words(target: float | str, metric: units.Metric) -> str:
    """A target as people say it.

    >>> _words("FedAvg", units.ACCURACY), _words(0.68, units.ACCURACY)
    ("FedAvg's best", '68.00 %')
    """
    if isinstance(target, str):
        return f"{target}'s best"
    return units.score(target, metric) + " %" * metric.percent


def _metric(results: Results, row: Row) -> units.Metric:
    setting: About = next(one for one in results.compared if one.name == row["setting"])
    return setting.metric


def _cost(row: Row, name: str) -> str:
    mean, spread = row[name], row[f"{name}_std"]
    if mean is None:
        return units.NONE
    shown = units.size if name == "bytes" else "{:.0f}".format
    return shown(mean) + (f" ± {shown(spread)}" if spread is not None else "")
