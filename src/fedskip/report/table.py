"""The closing table of a study: a row per method and setting, over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedskip.config import RECORD
from fedskip.history import TAIL, Row
from fedskip.report import units
from fedskip.spec import Setting, StudySpec
from fedskip.study import Results

# column of summary.csv -> its header, and which number it is
SCORES = {
    "last": ("last", "at the last evaluation"),
    "best": ("best", "the highest of a run"),
    "mean_tail": ("tail", f"mean over the last {TAIL:.0%} of the rounds"),
    "best_val": ("by val.", "where the validation score was highest"),
    "final": ("final", "after an extra merge at the end, where the period does not divide the rounds"),
}


def closing(results: Results, spec: StudySpec) -> RenderableType:
    """The table of a finished study, and what its numbers are."""
    by_setting = {s.name: methods(results.summary.where(setting=s.name)) for s in spec.settings}
    rows = list(results.summary)
    shown = [name for name in SCORES if any(row.get(name) is not None for row in rows)]
    compared = [setting for setting in spec.settings if not setting.reference]
    diverged = any(row["diverged"] for row in rows)

    table = Table(box=box.SIMPLE_HEAD, title=spec.name, title_style="bold", title_justify="left")
    if len(compared) > 1:
        table.add_column("setting", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for header in [*(SCORES[name][0] for name in shown), "bytes", "merges", *["diverged"] * diverged]:
        table.add_column(header, justify="right", no_wrap=True)
    for setting in compared:
        best = {name: _highest(by_setting[setting.name].values(), name) for name in shown}
        for index, (label, runs) in enumerate(by_setting[setting.name].items()):
            first = [setting.name if index == 0 else ""] if len(compared) > 1 else []
            numbers = [_score(runs, name, setting.metric, best[name]) for name in shown]
            lost = sum(row["diverged"] for row in runs)
            table.add_row(
                *first, Text(label), *numbers,
                units.size(_mean(runs, "bytes_total") or 0), f"{_mean(runs, 'merges'):.0f}",
                Text(f"{lost} of {len(runs)}", "red") if lost else "",
            )  # fmt: skip
        table.add_section()
    for setting in spec.settings:
        if setting.reference:  # a line to compare with: what it sends means nothing
            for label, runs in by_setting[setting.name].items():
                name = [setting.name, label] if len(compared) > 1 else [f"{setting.name} ({label})"]
                table.add_row(*name, *(_score(runs, c, setting.metric) for c in shown), style="italic cyan")
    legend = "; ".join(f"{SCORES[name][0]}: {SCORES[name][1]}" for name in shown)
    return Group(table, Text("\n".join([caption(spec, results.out), f"{legend}."]), "dim"))


def methods(runs: Iterable[Row]) -> dict[str, list[Row]]:
    """The runs of each method, one per seed."""
    found: dict[str, list[Row]] = {}
    for row in runs:
        found.setdefault(row["method"], []).append(row)
    return found


def caption(spec: StudySpec, out: Path) -> str:
    """What was measured, on what, and how often."""
    measured = list(dict.fromkeys(map(_metric, spec.settings)))
    seeds = list(dict.fromkeys(setting.seeds for setting in spec.settings))
    over = " and ".join(", ".join(map(str, chosen)) for chosen in seeds)
    many = any(len(chosen) > 1 for chosen in seeds)
    tested = " and ".join(f"{count:,}" for count in test_sizes(out))
    return (
        f"Test {' and '.join(measured)}{', mean ± standard deviation over' if many else ','} "
        f"{'seeds' if many else 'seed'} {over}{f'; {tested} test samples' if tested else ''}; "
        "bytes and merges of one run."
    )


def test_sizes(out: Path) -> list[int]:
    """The sizes of the test sets of a study, as its folder has them."""
    settings = yaml.safe_load((out / "study.yaml").read_text()).get(RECORD, {}).get("settings", {})
    return sorted({division["test"] for s in settings.values() for division in s["divisions"].values()})


def _metric(setting: Setting) -> str:
    metric: Any = setting.metric
    name = metric if isinstance(metric, str) else getattr(metric, "__name__", "metric")
    return name.replace("_", " ") + (" in %" if metric in units.PERCENT else "")


def _mean(runs: Iterable[Row], column: str) -> float | None:
    known = [row[column] for row in runs if row.get(column) is not None]
    return fmean(known) if known else None


def _highest(methods: Iterable[list[Row]], column: str) -> float | None:
    return max((mean for runs in methods if (mean := _mean(runs, column)) is not None), default=None)


def _score(
    runs: list[Row], column: str, metric: str | Callable[..., Any], highest: float | None = None
) -> Text:
    known = [row[column] for row in runs if row.get(column) is not None]
    return Text(units.scores(known, metric), "bold green" if known and _mean(runs, column) == highest else "")
