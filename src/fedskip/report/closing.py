"""The closing table of a study: a row per method and setting, over seeds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedskip.records.history import TAIL
from fedskip.records.provenance import Folder
from fedskip.records.table import Row
from fedskip.report import units
from fedskip.report.results import About, Results

# column of summary.csv -> its header, and which number it is
SCORES = {
    "last": ("last", "at the last evaluation"),
    "best": ("best", "the highest of a run"),
    "mean_tail": ("tail", f"mean over the last {TAIL:.0%} of the rounds"),
    "best_val": ("by val.", "where the validation score was highest"),
    "full_test": ("full test", "the last model on all test samples"),
    "final": ("final", "after an extra merge at the end, where the period does not divide the rounds"),
}
BEST = "bold green"
GAP = 2  # between columns, and at the edges


@dataclass(frozen=True)
class Sheet:
    """Cells under headers; the first columns name a row. Too wide a sheet is folded between columns."""

    title: str
    headers: Sequence[str]
    names: int  # how many columns name a row
    rows: Sequence[Sequence[Text]]  # an empty one is a gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        parts = self.folded(options.max_width)
        for number, columns in enumerate(parts):
            yield self._part(columns, self.title if not number else None)

    def folded(self, width: int) -> list[list[int]]:
        """The columns of each part: as many as fit beside the names, and at least one."""
        room = [
            GAP + max(cell_len(header), *(row[i].cell_len for row in self.rows if row))
            for i, header in enumerate(self.headers)
        ]
        parts: list[list[int]] = []
        left = 0
        for i in range(self.names, len(self.headers)):
            if not parts or room[i] > left:
                parts.append([*range(self.names)])
                left = width - sum(room[: self.names]) - GAP
            parts[-1].append(i)
            left -= room[i]
        return parts or [[*range(self.names)]]

    def _part(self, columns: Sequence[int], title: str | None) -> Table:
        table = Table(box=box.SIMPLE_HEAD, title=title, title_style="bold", title_justify="left")
        for i in columns:
            names = i < self.names
            table.add_column(
                self.headers[i], justify="left" if names else "right", no_wrap=not names, overflow="fold"
            )
        for row in self.rows:
            if row:
                table.add_row(*(row[i] for i in columns))
            else:
                table.add_section()
        return table


def closing(results: Results) -> RenderableType:
    """The table of a finished study, and what its numbers are."""
    scores = shown_scores(results)
    several, diverged = len(results.compared) > 1, any(results.summary.column("diverged"))
    names = ["setting"] * several + ["method"]
    headers = [*names, *(SCORES[name][0] for name in scores), "bytes", "merges", *["diverged"] * diverged]
    rows: list[list[Text]] = []
    for setting in results.compared:
        for index, label in enumerate(results.labels(setting.name)):
            place = [Text("" if index else setting.name)] * several
            shown = [_score(results, setting, label, name) for name in scores]
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
    sheet = Sheet(results.name, headers, len(names), rows[:-1] if rows and not rows[-1] else rows)
    return Group(sheet, Text("\n".join(notes(results, scores)), "dim"))


def shown_scores(results: Results) -> list[str]:
    """The scores that have something to say."""
    scores = [name for name in SCORES if any(value is not None for value in results.summary.column(name))]
    if "full_test" in scores and not looked_at(results.out):
        scores.remove("full_test")  # every test was one
    return scores


def notes(results: Results, scores: Sequence[str]) -> list[str]:
    """What the numbers of the table are."""
    found = [] if results.finished else ["Not finished: these are the numbers so far."]
    found.append(caption(results))
    if scores:
        found.append("; ".join(f"{SCORES[name][0]}: {SCORES[name][1]}" for name in scores) + ".")
    if any(len(results.labels(setting.name)) > 1 for setting in results.compared):
        found.append(meaning(results))
    if any(last_round(results, s, label) for s in results.compared for label in results.labels(s.name)):
        found.append("In brackets: the round of `last`, where it is not the last round.")
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
    subsets = looked_at(results.out)
    partly = f", {' or '.join(f'{size:,}' for size in subsets)} of them while training" if subsets else ""
    return f"Test {measured}, {over}; {tested(results.out)}{partly}; bytes and merges of one run."


def looked_at(out: Path) -> list[int]:
    """How many test samples were evaluated while training, where these were not all."""
    divisions = [division for found in _divisions(out).values() for division in found]
    return sorted({d["evaluated"] for d in divisions if d["evaluated"] < d["test"]})


def tested(out: Path) -> str:
    """How large the test sets are, as the study's folder has it."""
    sizes = {}
    for name, divisions in _divisions(out).items():
        found = {division["test"] for division in divisions}
        sizes[name] = " to ".join(f"{size:,}" for size in sorted({min(found), max(found)}))
    if len(set(sizes.values())) == 1:
        return f"{sizes.popitem()[1]} test samples"
    return f"test samples: {', '.join(f'{name} {size}' for name, size in sizes.items())}"


def last_round(results: Results, setting: About, label: str) -> int | None:
    """The round of a method's last evaluation, if that is not the setting's last round."""
    rounds = results.history.where(setting=setting.name, method=label).column("round")
    return max(rounds) if rounds and max(rounds) < setting.rounds else None


def _divisions(out: Path) -> dict[str, list[dict[str, int]]]:
    """What a study has noted of each setting's divisions."""
    settings = Folder(out).record().get("settings") or {}
    return {name: list(facts["divisions"].values()) for name, facts in settings.items()}


def _metric(setting: About) -> str:
    name = setting.metric.rpartition(".")[2]  # of a user's own, the name of the function
    return name.replace("_", " ") + (" in %" if setting.metric in units.PERCENT else "")


def _score(results: Results, setting: About, label: str, name: str) -> Text:
    """Over seeds; bold where no other method is known to be higher."""
    runs = results.summary.where(setting=setting.name, method=label)
    known = [value for value in runs.column(name) if value is not None]
    text = units.scores(known, setting.metric)
    at = last_round(results, setting, label) if name == "last" and not setting.reference else None
    # `final` is not a race: only methods in the middle of a period have one
    race = name != "final" and not setting.reference and len(results.labels(setting.name)) > 1
    best = race and label in results.leaders(setting.name, name)
    return Text(f"{text} ({at})" if at and known else text, BEST if best else "")


def _costs(results: Results, setting: About, label: str, diverged: bool) -> list[Text]:
    """What a run sends, how often it merges, and how many runs diverged."""
    runs: Sequence[Row] = results.summary.where(setting=setting.name, method=label)
    lost = sum(bool(run["diverged"]) for run in runs)
    return [
        Text(units.size(fmean(run["bytes_total"] for run in runs))),
        Text(f"{fmean(run['merges'] for run in runs):.0f}"),
        *[Text(f"{lost} of {len(runs)}" if lost else "", "red")] * diverged,
    ]
