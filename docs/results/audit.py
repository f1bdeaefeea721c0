"""What a curious client learns, from benchmarks/results: all seeds together, and each alone."""

from files import BENCHMARKS, Line, lines
from rich.text import Text

from fedskip.report.sheet import Sheet
from fedskip.report.statistics import Difference, difference

FILE, SEEDS = f"{BENCHMARKS}/audit-femnist", f"{BENCHMARKS}/audit-seeds"


def together(file: str = FILE) -> list[Line]:
    """The rows of all seeds together, which come first."""
    found = lines(file)
    return [line for line in found if line["seeds"] == found[0]["seeds"]]


def alone(method: str) -> dict[int, float]:
    """The AUC of each seed alone, of the client who had the model just before."""
    mine = [line for line in lines(SEEDS) if line["method"] == method and line["ago"] == "1"]
    return {int(line["seeds"]): float(line["auc"]) for line in mine if line["seeds"].isdecimal()}


def told(name: str) -> str:
    """What METHOD tells more than FedAvg, in AUC, paired by seed, with Student's interval."""
    found: Difference = difference(alone(_spaced(name)), alone("fedavg"))
    return f"{found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def audit_sheet() -> Sheet:
    """AUC by method and by how many visits ago a client had the model."""
    found = together()
    back = list(dict.fromkeys(line["ago"] for line in found))
    headers = ["method", *(f"{ago} ago" for ago in back), "found at 1 % false", "accuracy"]
    rows = []
    for method in dict.fromkeys(line["method"] for line in found):
        mine = {line["ago"]: line for line in found if line["method"] == method}
        aucs = [f"{float(mine[ago]['auc']):.3f}" for ago in back]
        shares = [f"{100 * float(mine['1'][name]):.1f} %" for name in ("tpr", "accuracy")]
        rows.append([Text(cell) for cell in (method, *aucs, *shares)])
    return Sheet("audit", headers, 1, rows, "")


def error() -> str:
    """The largest standard error of an AUC, over visits."""
    return f"{max(float(line['spread']) / float(line['visits']) ** 0.5 for line in together()):.3f}"


def audited(name: str, file: str = FILE) -> str:
    """METHOD:COLUMN of the client who had the model just before; METHOD is its AUC, with _ for spaces."""
    method, _, column = _spaced(name).partition(":")
    [line] = [one for one in together(file) if one["method"] == method and one["ago"] == "1"]
    return f"{float(line[column or 'auc']):.3f}"


def _spaced(name: str) -> str:
    """On pages names have _ for spaces."""
    return name.replace("_", " ")
