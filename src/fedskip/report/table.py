"""The closing table of a study: a row per method and setting, over seeds."""

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedskip.records.history import TAIL
from fedskip.records.provenance import Folder
from fedskip.records.results import Results, Row
from fedskip.report import units
from fedskip.spec.setting import Setting

# column of summary.csv -> its header, and which number it is
SCORES = {
    "last": ("last", "at the last evaluation"),
    "best": ("best", "the highest of a run"),
    "mean_tail": ("tail", f"mean over the last {TAIL:.0%} of the rounds"),
    "best_val": ("by val.", "where the validation score was highest"),
    "full_test": ("full test", "the last model on all test samples"),
    "final": ("final", "after an extra merge at the end, where the period does not divide the rounds"),
}


def closing(results: Results) -> RenderableType:
    """The table of a finished study, and what its numbers are."""
    summary = results.summary
    scores = [name for name in SCORES if any(value is not None for value in summary.column(name))]
    if "full_test" in scores and not looked_at(results.out):
        scores.remove("full_test")  # every test was one
    compared = [setting for setting in results.settings if not setting.reference]
    several, diverged = len(compared) > 1, any(summary.column("diverged"))

    table = Table(box=box.SIMPLE_HEAD, title=results.name, title_style="bold", title_justify="left")
    for header in ["setting"] * several + ["method"]:
        table.add_column(header, no_wrap=True)
    for header in [*(SCORES[name][0] for name in scores), "bytes", "merges"] + ["diverged"] * diverged:
        table.add_column(header, justify="right", no_wrap=True)

    for setting in compared:
        methods = by_method(summary.where(setting=setting.name))
        # `final` is not a race: only methods in the middle of a period have one
        raced = [name for name in scores if name != "final" and len(methods) > 1]
        highest = {name: _highest(methods.values(), name) for name in raced}
        for index, (label, runs) in enumerate(methods.items()):
            place = ["" if index else setting.name] * several
            shown = [_score(runs, name, setting, highest.get(name)) for name in scores]
            table.add_row(*place, Text(label), *shown, *_costs(runs))
        table.add_section()
    for setting in results.settings:
        if setting.reference:  # what it sends means nothing
            for label, runs in by_method(summary.where(setting=setting.name)).items():
                shown = [_score(runs, name, setting) for name in scores]
                table.add_row(*[""] * several, Text(f"{setting.name} ({label})"), *shown, style="italic cyan")

    legend = "; ".join(f"{SCORES[name][0]}: {SCORES[name][1]}" for name in scores)
    below = [caption(results), f"{legend}."] if scores else [caption(results)]
    return Group(table, Text("\n".join(below), "dim"))


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


def _divisions(out: Path) -> dict[str, list[dict[str, int]]]:
    """What a study has noted of each setting's divisions."""
    settings = Folder(out).record()["settings"]
    return {name: list(facts["divisions"].values()) for name, facts in settings.items()}


def by_method(runs: Iterable[Row]) -> dict[str, list[Row]]:
    """The runs of each method, one per seed."""
    found: dict[str, list[Row]] = {}
    for row in runs:
        found.setdefault(row["method"], []).append(row)
    return found


def _metric(setting: Setting) -> str:
    metric = setting.metric
    name = metric if isinstance(metric, str) else getattr(metric, "__name__", "metric")
    return name.replace("_", " ") + (" in %" if metric in units.PERCENT else "")


def _score(runs: list[Row], column: str, setting: Setting, highest: float | None = None) -> Text:
    """Over seeds; bold where no other method has a higher one."""
    known = _known(runs, column)
    style = "bold green" if known and fmean(known) == highest else ""
    return Text(units.scores(known, setting.metric), style)


def _costs(runs: list[Row]) -> list[Text]:
    """What a run sends, how often it merges, and how many runs diverged."""
    lost = sum(_known(runs, "diverged"))
    return [
        Text(units.size(fmean(_known(runs, "bytes_total")))),
        Text(f"{fmean(_known(runs, 'merges')):.0f}"),
        *([Text(f"{lost:.0f} of {len(runs)}", "red")] if lost else []),
    ]


def _highest(methods: Iterable[list[Row]], column: str) -> float | None:
    return max((fmean(known) for runs in methods if (known := _known(runs, column))), default=None)


def _known(runs: Iterable[Row], column: str) -> list[float]:
    return [row[column] for row in runs if row.get(column) is not None]
