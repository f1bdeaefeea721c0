"""Client-steps per second on a GPU, from benchmarks/results/bench-h200.csv."""

import csv
from pathlib import Path

from rich.text import Text

from fedskip.report.sheet import Sheet

FILE = Path(__file__).parents[2] / "benchmarks" / "results" / "bench-h200.csv"


def lines() -> list[dict[str, str]]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def speed_sheet() -> Sheet:
    """All that `fedskip bench` said, and what it makes a client-step and a ratio."""
    headers = ["command", "plain", "loop", "stacked", "ms per client-step", "stacked / plain", "commit", ""]
    rows = []
    for line in lines():
        plain, loop, stacked = (float(line[who]) for who in ("plain", "loop", "stacked"))
        rates = [f"{rate:,.0f}" if rate > 100 else f"{rate:.1f}" for rate in (plain, loop, stacked)]
        step, ratio = f"{1000 / stacked:.2g}", stacked / plain
        cells = [*rates, step, f"{ratio:.{0 if ratio > 20 else 1}f}", line["commit"], line["note"]]
        rows.append([Text(cell) for cell in (f"fedskip bench {line['command']}", *cells)])
    return Sheet("speed", headers, 1, rows, "")


def measured(name: str) -> str:
    """COMMAND, with _ for spaces: how many times as fast as `plain`; COMMAND:ms: a client-step."""
    command, _, what = name.replace("_", " ").partition(":")
    [line] = [one for one in lines() if one["command"] == command]
    plain, stacked = float(line["plain"]), float(line["stacked"])
    if what == "ms":
        return f"{1000 / stacked:.2g}"
    return f"{stacked / plain:.{0 if stacked / plain > 20 else 1}f}"
