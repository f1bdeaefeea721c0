"""Client-steps per second on a GPU, and rounds of other simulators, from benchmarks/results/*-h200.csv."""

from files import BENCHMARKS, Line, lines
from rich.text import Text

from fedskip.report.sheet import Sheet

BENCH, PFL = f"{BENCHMARKS}/bench-h200", f"{BENCHMARKS}/pfl-h200"
HEADERS = [
    "command",
    "plain",
    "loop",
    "stacked",
    "ms per client-step",
    "stacked / plain",
    "commit",
    "date",
    "",
]


def pfl_sheet() -> Sheet:
    """Seconds of a round of pfl-research's CIFAR-10 benchmark."""
    found = lines(PFL)
    return Sheet("pfl", [line["who"] for line in found], 0, [[Text(line["seconds"]) for line in found]], "")


def peer(name: str) -> str:
    """WHO, with _ for spaces: seconds of such a round; WHO:ms: milliseconds."""
    who, _, what = name.replace("_", " ").partition(":")
    [line] = [one for one in lines(PFL) if one["who"] == who]
    return f"{1000 * float(line['seconds']):.0f}" if what else f"{float(line['seconds']):.2f}"


def speed_sheet() -> Sheet:
    """All that `fedskip bench` said, and what it makes a client-step and a ratio."""
    rows = []
    for line in lines(BENCH):
        rates = [f"{rate:,.0f}" if rate > 100 else f"{rate:.1f}" for rate in _rates(line)]
        cells = [*rates, _ms(line), _ratio(line), line["commit"], line["date"], line["note"]]
        rows.append([Text(cell) for cell in (f"fedskip bench {line['command']}", *cells)])
    return Sheet("speed", HEADERS, 1, rows, "")


def measured(name: str) -> str:
    """COMMAND, with _ for spaces: how many times as fast as `plain`; COMMAND:ms: a client-step."""
    command, _, what = name.replace("_", " ").partition(":")
    [line] = [one for one in lines(BENCH) if one["command"] == command]
    return {"": _ratio, "ms": _ms}[what](line)


def _rates(line: Line) -> list[float]:
    return [float(line[who]) for who in ("plain", "loop", "stacked")]


def _ms(line: Line) -> str:
    return f"{1000 / _rates(line)[2]:#.2g}"


def _ratio(line: Line) -> str:
    plain, _, stacked = _rates(line)
    return f"{stacked / plain:.{0 if stacked > 20 * plain else 1}f}"
