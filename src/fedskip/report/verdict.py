"""How the methods of a study differ from a baseline: as a table, and in words that follow from it."""

from statistics import fmean

from rich.text import Text

from fedskip.records.table import Row
from fedskip.report import units
from fedskip.report.closing import SCORES, described
from fedskip.report.recorded import About
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet
from fedskip.report.sweep import looked_at

COLOURS = {"better": "green", "worse": "red"}


def compared(results: Results, baseline: str | None = None, score: str = "mean_tail") -> Sheet:
    """Differences seed by seed, their intervals, wins, losses and ranks."""
    label = results.find(baseline or results.baseline)
    metrics = {setting.name: setting.metric for setting in results.compared}
    names = ["setting"] * (len(metrics) > 1) + ["method"]
    headers = [*names, "difference", "95% interval", "won", "lost", "rank", "verdict"]
    rows, shown = [], ""
    for row in results.compare(label, score=score):
        place = [Text("" if row["setting"] == shown else row["setting"])] * (len(metrics) > 1)
        shown = row["setting"]
        style = COLOURS.get(row["verdict"], "")
        cells = [Text(text, style) for text in _cells(row, metrics.get(shown, units.ACCURACY))]
        rows.append([*place, Text(row["method"]), *cells])
    metric = " and ".join(dict.fromkeys(one.words for one in metrics.values()))
    note = (
        f"differences in test {metric} from {label}, seed by seed: {SCORES[score][0]}, "
        f"{described(score, results)}; Student's 95% intervals; seeds won and lost; mean rank, 1 is the "
        f"{units.best(metrics.values())}"
    )
    said = units.sentences([note, *results.marks])
    return Sheet(f"{SCORES[score][0]}, against {label}", headers, len(names), rows, said)


def _cells(row: Row, metric: units.Metric) -> list[str]:
    rank = units.NONE if row["rank"] is None else f"{row['rank']:.2f}"
    if row["verdict"] == "baseline":
        return [*[units.NONE] * 4, rank, "baseline"]
    apart, low, high = (units.difference(row[name], metric) for name in ("difference", "low", "high"))
    interval = units.NONE if row["low"] is None else f"{low} to {high}"
    return [apart, interval, str(row["wins"]), str(row["losses"]), rank, row["verdict"] or ""]


def in_words(results: Results, baseline: str | None = None, score: str = "mean_tail") -> list[str]:
    """For each setting: who is best, who is better or worse than the baseline, who is not told apart."""
    label = results.find(baseline or results.baseline)
    found = results.compare(label, score=score)
    sentences = []
    for setting in looked_at(results):
        rows = [row for row in found if row["setting"] == setting.name and row["verdict"] != "baseline"]
        if not rows:
            if label not in results.labels(setting.name) and results.labels(setting.name):
                sentences.append(f"{setting.name}: nothing is compared, as {label} was not run.")
            continue
        start = f"{setting.name}: " if len(results.compared) > 1 else ""
        start += _best(results, setting, score)
        said = [
            f"{units.listed([_with(row, setting.metric) for row in chosen])} {verb} {words}"
            for verdict, words in (
                ("better", f"better than {label}"), ("worse", f"worse than {label}"),
                ("not told apart", f"not told apart from {label}"),
            )
            if (chosen := [row for row in rows if row["verdict"] == verdict])
            for verb in ["is" if len(chosen) == 1 else "are"]
        ]  # fmt: skip
        lacking = [row for row in rows if row["verdict"].startswith(("diverged", "has no score"))]
        said += [f"{row['method']} {row['verdict']}" for row in lacking]
        alone = [row["method"] for row in rows if row["verdict"] == "one seed tells nothing"]
        if alone:
            of = "" if len(alone) == len(rows) else f" of {units.listed(alone)}"
            said.append(f"one seed{of} does not tell a difference from {label} from chance")
        none = [row["method"] for row in rows if row["verdict"] == "no seed to compare"]
        said += [f"{units.listed(none)} cannot be compared: no seed has a score of both"] if none else []
        sentences.append(start + "; ".join(said) + ".")
        seeds = max(row["seeds"] for row in rows)
        if seeds > 1:
            sentences[-1] += f" (95% intervals of differences seed by seed, {seeds} seeds"
            sentences[-1] += f"; {len(rows)} comparisons, none corrected for.)" if len(rows) > 1 else ".)"
        if seeds == 2:
            sentences[-1] += " Two seeds tell little: run more before you rely on this."
    return sentences


def _best(results: Results, setting: About, score: str) -> str:
    """Who has the best mean, and who is not told apart from it."""
    known = {label: results.scores(setting.name, label, score) for label in results.labels(setting.name)}
    leaders = results.leaders(setting.name, score)
    if not leaders:
        return f"By {SCORES[score][0]} ({described(score, results)}): "
    first, *others = sorted(
        leaders,
        key=lambda label: fmean(v for v in known[label].values() if v is not None),
        reverse=setting.metric.higher,
    )
    mean = units.scores([v for v in known[first].values() if v is not None], setting.metric)
    ties = f", not told apart from {units.listed(others)}" if others else ""
    called, meaning = SCORES[score][0], described(score, results)
    start = f"{setting.metric.best.capitalize()} by {called} ({meaning}) is {first} with {mean}{ties}."
    return f"{start} Against the baseline: "


def _with(row: Row, metric: units.Metric) -> str:
    if row["verdict"] == "not told apart":
        return str(row["method"])
    points = " points" if metric.percent else ""
    return f"{row['method']} ({units.difference(row['difference'], metric)}{points})"
