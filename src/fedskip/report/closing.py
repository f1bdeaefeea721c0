"""The closing table of a study: a row per method and setting, over seeds."""

from collections.abc import Collection, Iterable, Sequence
from statistics import fmean

from rich.console import Group, RenderableType
from rich.text import Text

from fedskip.records.history import TAIL
from fedskip.records.table import Row
from fedskip.report import units
from fedskip.report.recorded import About
from fedskip.report.results import Results
from fedskip.report.sheet import BEST, Sheet

# column of summary.csv -> its header, and which number it is
SCORES = {
    "last": ("last", "at the last evaluation"),
    "best": ("best", "the highest of a run, chosen by the test set"),
    "mean_tail": ("tail", f"mean over the last {TAIL:.0%} of the rounds"),
    "best_val": ("by val.", "where the validation score was highest"),
    "full_test": ("full test", "the last model on all test samples"),
    "final": ("final", "after an extra merge at the end, where the period does not divide the rounds"),
}


def closing(results: Results) -> RenderableType:
    """The table of a finished study, and what its numbers are."""
    return Group(scored(results), Text("\n".join(notes(results)), "dim"))


def scored(results: Results) -> Sheet:
    """All scores and costs."""
    scores = shown_scores(results)
    several, diverged = len(results.compared) > 1, any(results.summary.column("diverged"))
    names = ["setting"] * several + ["method"]
    headers = [*names, *(SCORES[name][0] for name in scores), "bytes", "merges", *["diverged"] * diverged]
    rows: list[list[Text]] = []
    for setting in results.compared:
        labels = results.labels(setting.name)
        # `final` is not a race: only methods in the middle of a period have one
        races = [name for name in scores if name != "final" and len(labels) > 1]
        leaders = {name: set(results.leaders(setting.name, name)) for name in races}
        for index, label in enumerate(labels):
            place = [Text("" if index else setting.name)] * several
            shown = [_score(results, setting, label, name, leaders.get(name, ())) for name in scores]
            rows.append([*place, Text(label), *shown, *_costs(results, setting, label, diverged)])
        rows.append([])
    for setting in results.settings:
        if setting.reference:  # what it sends means nothing
            for label in results.labels(setting.name):
                shown = [_score(results, setting, label, name) for name in scores]
                row = [*[Text()] * several, Text(f"{setting.name} ({label})"), *shown, Text(), Text()]
                rows.append([*row, *[Text()] * diverged])
                for cell in rows[-1]:
                    cell.style = "italic cyan"
    rows = rows[:-1] if rows and not rows[-1] else rows
    return Sheet(results.name, headers, len(names), rows, " ".join(notes(results)))


def shown_scores(results: Results) -> list[str]:
    """The scores that have something to say."""
    scores = [name for name in SCORES if any(value is not None for value in results.summary.column(name))]
    if "full_test" in scores and not looked_at(results):
        scores.remove("full_test")  # every test was one
    return scores


def notes(results: Results) -> list[str]:
    """What the numbers of the table are."""
    scores = shown_scores(results)
    found = [] if results.finished else ["Not finished: these are the numbers so far."]
    found.append(caption(results))
    if scores:
        found.append("; ".join(f"{SCORES[name][0]}: {SCORES[name][1]}" for name in scores) + ".")
    if any(len(results.labels(setting.name)) > 1 for setting in results.compared):
        found.append(meaning(results))
    if any(last_round(results, s, label) for s in results.compared for label in results.labels(s.name)):
        found.append("In brackets: the round of `last`, where it is not the last round.")
    if early := [row for row in results.summary if row.get("ended")]:
        at = sorted({row["rounds"] for row in early})
        span = f"round {at[0]}" if len(at) == 1 else f"rounds {at[0]} to {at[-1]}"
        which = " or ".join(sorted({row["ended"] for row in early}))
        found.append(f"{len(early)} of {len(results.summary)} runs ended early, at {span} ({which}).")
    return found


def meaning(results: Results) -> str:
    """What it means that a number is bold."""
    if len(set(results.summary.column("seed"))) < 2:
        return "Bold: the highest; one seed tells nothing of chance."
    return "Bold: not told apart from the highest, by Student's 95% interval of differences seed by seed."


def caption(results: Results) -> str:
    """What was measured, on what, and how often."""
    measured = " and ".join(dict.fromkeys(map(_metric, results.settings)))
    seeds = sorted(set(results.summary.column("seed")))
    over = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean ± standard deviation over {len(seeds)} seeds"
    if 1 < len(seeds) <= 10:
        over += f" ({', '.join(map(str, seeds))})"
    subsets = looked_at(results)
    partly = f", {' or '.join(f'{size:,}' for size in subsets)} of them while training" if subsets else ""
    less = "".join(
        f"; {words}" for words in dict.fromkeys(words for s in results.settings for words in s.marks)
    )
    return f"Test {measured}, {over}; {tested(results.settings)}{partly}; bytes and merges of one run{less}."


def looked_at(results: Results) -> list[int]:
    """How many test samples were evaluated while training, where these were not all."""
    divisions = [division for setting in results.settings for division in setting.divisions.values()]
    sizes = [(d["evaluated"], d["test"]) for d in divisions if "evaluated" in d and "test" in d]
    return sorted({evaluated for evaluated, test in sizes if evaluated < test})


def tested(settings: Iterable[About]) -> str:
    """How large the test sets are, as the study's folder has it."""
    sizes = {}
    for setting in settings:
        found = {division["test"] for division in setting.divisions.values() if "test" in division}
        if found:
            sizes[setting.name] = " to ".join(f"{size:,}" for size in sorted({min(found), max(found)}))
    if not sizes:
        return "an unknown number of test samples"
    if len(set(sizes.values())) == 1:
        return f"{sizes.popitem()[1]} test samples"
    return f"test samples: {', '.join(f'{name} {size}' for name, size in sizes.items())}"


def last_round(results: Results, setting: About, label: str) -> int | None:
    """The round of a method's last evaluation, if that is not the setting's last round."""
    last = max((run[-1]["round"] for run in results.histories(setting.name, label)), default=setting.rounds)
    return last if last < setting.rounds else None


def _metric(setting: About) -> str:
    return units.metric(setting.metric) + (" in %" if setting.metric in units.PERCENT else "")


def _score(results: Results, setting: About, label: str, name: str, leaders: Collection[str] = ()) -> Text:
    """Over seeds; bold where no other method is known to be higher."""
    known = [v for v in results.scores(setting.name, label, name).values() if v is not None]
    text = units.scores(known, setting.metric)
    at = last_round(results, setting, label) if name == "last" and not setting.reference else None
    return Text(f"{text} ({at})" if at and known else text, BEST if label in leaders else "")


def _costs(results: Results, setting: About, label: str, diverged: bool) -> list[Text]:
    """What a run sends, how often it merges, and how many runs diverged."""
    runs: Sequence[Row] = results.summary.where(setting=setting.name, method=label)
    lost = sum(bool(run["diverged"]) for run in runs)
    return [
        Text(units.size(fmean(run["bytes_total"] for run in runs))),
        Text(f"{fmean(run['merges'] for run in runs):.0f}"),
        *[Text(f"{lost} of {len(runs)}" if lost else "", "red")] * diverged,
    ]
