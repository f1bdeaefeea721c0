"""The closing table of a study: a row per method and setting, over seeds."""

from __future__ import annotations

import html
import io
from collections.abc import Collection, Iterable, Sequence
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.text import Text

from fedskip.records.history import TAIL
from fedskip.records.table import Row
from fedskip.report import broken, units
from fedskip.report.looked import Looked
from fedskip.report.recorded import About
from fedskip.report.sheet import BEST, Sheet
from fedskip.report.warned import warnings

# column of summary.csv -> its header, and which number it is
SCORES = {
    "last": ("last", "at the last evaluation"),
    "best": ("best", "the {best} of a run, chosen by the test set"),
    "mean_tail": ("tail", f"mean over the last {TAIL:.0%} of the rounds"),
    "best_val": ("by val.", "where the validation {validated} was {chosen}"),
    "full_test": ("full test", "the last model on all test samples"),
    "worst_clients": ("worst 10%", "the last model, for the tenth of the clients where it is worst"),
    "final": ("final", "after an extra merge at the end, where the period does not divide the rounds"),
}


def closing(results: Looked) -> RenderableType:
    """The tables of a finished study, what their numbers are, and what is odd about them."""
    said = [Text(words, "yellow") for words in warnings(results)]
    return Group(scored(results), *further(results), Text("\n".join(notes(results)), "dim"), *said)


def further(results: Looked) -> list[Sheet]:
    """A table for each further metric: its scores."""
    return [scored(results.by(name), costs=False) for name in results.further]


def described(name: str, results: Looked) -> str:
    """Which number a score is."""
    headlines = [setting.metrics[0] for setting in results.settings]  # which are validated
    validated = {setting.metrics[0].words for setting in results.settings if setting.by} or {"score"}
    return SCORES[name][1].format(
        best=best(results), chosen=units.best(headlines), validated=" or ".join(sorted(validated))
    )


def best(results: Looked) -> str:
    """The word for the best of a column, in all tables that are shown."""
    shown = [m for one in results.settings for m in ([one.metric] if one.by else one.metrics)]
    return units.best(shown)


def as_text(results: Looked, width: int = 120) -> str:
    """The same as plain text, where a star marks what is bold elsewhere."""
    sheet = scored(results)
    cells = [cell for row in sheet.rows for cell in row]
    best = {i for row in sheet.rows for i, cell in enumerate(row) if cell.style == BEST}
    for row in sheet.rows:
        for i in best if row else ():
            row[i].append("*" if row[i].style == BEST else " ")
    for cell in cells:
        cell.style = ""
    to = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    to.print(sheet, *notes(results, "Star"), sep="\n", markup=False, highlight=False, emoji=False)
    return "\n".join(line.rstrip() for line in to.file.getvalue().strip("\n").splitlines())  # type: ignore[attr-defined]


def as_html(results: Looked) -> str:
    """The same for a notebook: a table without colours of its own, and no scripts."""
    below = "".join(f"<div>{html.escape(note)}</div>" for note in notes(results))
    return f"<b>{html.escape(results.name)}</b>{scored(results).html('style=font-weight:bold')}{below}"


def scored(results: Looked, *, costs: bool = True) -> Sheet:
    """All scores, and what they cost."""
    scores = shown_scores(results)
    several, diverged = len(results.compared) > 1, any(results.summary.column("diverged"))
    names, diverged = ["setting"] * several + ["method"], costs and diverged
    paid = [*["bytes", "merges"] * costs, *["diverged"] * diverged]
    headers = [*names, *(SCORES[name][0] for name in scores), *paid]
    rows: list[list[Text]] = []
    for setting in results.compared:
        labels = results.labels(setting.name)
        # `final` is not a race: only methods in the middle of a period have one
        races = [name for name in scores if name != "final" and len(labels) > 1]
        leaders = {name: set(results.leaders(setting.name, name)) for name in races}
        for index, label in enumerate(labels):
            place = [Text("" if index else setting.name)] * several
            shown = [_score(results, setting, label, name, leaders.get(name, ())) for name in scores]
            bill = _costs(results, setting, label, diverged) if costs else []
            rows.append([*place, Text(label), *shown, *bill])
        rows.append([])
    for setting in results.settings:
        if setting.reference:  # what it sends means nothing
            for label in results.labels(setting.name):
                shown = [_score(results, setting, label, name) for name in scores]
                row = [*[Text()] * several, Text(f"{setting.name} ({label})"), *shown]
                rows.append([*row, *(Text() for _ in paid)])
                for cell in rows[-1]:
                    cell.style = "italic cyan"
    rows = rows[:-1] if rows and not rows[-1] else rows
    by = {setting.metric.with_unit(" in %") for setting in results.settings if setting.by}
    title = f"{results.name}, by {' and '.join(sorted(by))}" if by else results.name
    return Sheet(title, headers, len(names), rows, " ".join(notes(results)))


def shown_scores(results: Looked) -> list[str]:
    """The scores that have something to say."""
    scores = [name for name in SCORES if any(value is not None for value in results.summary.column(name))]
    if "full_test" in scores and not looked_at(results):
        scores.remove("full_test")  # every test was one
    return scores


def notes(results: Looked, mark: str = "Bold") -> list[str]:
    """What the numbers of the table are; `mark` is what marks the highest."""
    scores = shown_scores(results)
    found = [] if results.finished else ["Not finished: these are the numbers so far."]
    found.append(caption(results))
    if scores:
        found.append("; ".join(f"{SCORES[name][0]}: {described(name, results)}" for name in scores) + ".")
    if any(len(results.labels(setting.name)) > 1 for setting in results.compared):
        found.append(meaning(results, mark))
    if any(last_round(results, s, label) for s in results.compared for label in results.labels(s.name)):
        found.append("In brackets: the round of `last`, where it is not the last round.")
    if early := [row for row in results.summary if row.get("ended")]:
        at = sorted({row["rounds"] for row in early})
        span = f"round {at[0]}" if len(at) == 1 else f"rounds {at[0]} to {at[-1]}"
        which = " or ".join(sorted({row["ended"] for row in early}))
        found.append(f"{len(early)} of {len(results.summary)} runs ended early, at {span} ({which}).")
    return [*found, *broken.notes(results)]


def meaning(results: Looked, mark: str = "Bold") -> str:
    """What it means that a number is bold."""
    if len(set(results.summary.column("seed"))) < 2:
        return f"{mark}: the {best(results)}; one seed tells nothing of chance."
    by = "by Student's 95% interval of differences seed by seed"
    return f"{mark}: not told apart from the {best(results)}, {by}."


def caption(results: Looked) -> str:
    """What was measured, on what, and how often."""
    measured = " and ".join(dict.fromkeys(one.metric.with_unit(" in %") for one in results.settings))
    seeds = sorted(set(results.summary.column("seed")))
    over = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean ± standard deviation over {len(seeds)} seeds"
    if 1 < len(seeds) <= 10:
        over += f" ({', '.join(map(str, seeds))})"
    subsets = looked_at(results)
    partly = f", {' or '.join(f'{size:,}' for size in subsets)} of them while training" if subsets else ""
    less = "".join(f"; {words}" for words in results.marks)
    return f"Test {measured}, {over}; {tested(results.settings)}{partly}; bytes and merges of one run{less}."


def looked_at(results: Looked) -> list[int]:
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


def last_round(results: Looked, setting: About, label: str) -> int | None:
    """The round of a method's last evaluation, if that is not the setting's last round."""
    last = max((run[-1]["round"] for run in results.histories(setting.name, label)), default=setting.rounds)
    return last if last < setting.rounds else None


def _score(results: Looked, setting: About, label: str, name: str, leaders: Collection[str] = ()) -> Text:
    """Over seeds; bold where no other method is known to be better."""
    known = [v for v in results.scores(setting.name, label, name).values() if v is not None]
    text = units.scores(known, setting.metric)
    at = last_round(results, setting, label) if name == "last" and not setting.reference else None
    return Text(f"{text} ({at})" if at and known else text, BEST if label in leaders else "")


def _costs(results: Looked, setting: About, label: str, diverged: bool) -> list[Text]:
    """What a run sends, how often it merges, and how many runs diverged."""
    runs: Sequence[Row] = results.summary.where(setting=setting.name, method=label)
    lost = sum(bool(run["diverged"]) for run in runs)
    return [
        Text(units.size(fmean(run["bytes_total"] for run in runs))),
        Text(f"{fmean(run['merges'] for run in runs):.0f}"),
        *[Text(f"{lost} of {len(runs)}" if lost else "", "red")] * diverged,
    ]
