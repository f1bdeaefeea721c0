"""What a curious client learns, from benchmarks/results/audit-femnist.csv."""

from files import BENCHMARKS, lines
from rich.text import Text

from fedskip.report.sheet import Sheet

FILE = f"{BENCHMARKS}/audit-femnist"


def audit_sheet() -> Sheet:
    """AUC by method and by how many visits ago a client had the model."""
    found = lines(FILE)
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
    return f"{max(float(line['spread']) / float(line['visits']) ** 0.5 for line in lines(FILE)):.3f}"


def audited(name: str) -> str:
    """METHOD:COLUMN of the client who had the model just before; METHOD is its AUC, with _ for spaces."""
    method, _, column = name.replace("_", " ").partition(":")
    [line] = [one for one in lines(FILE) if one["method"] == method and one["ago"] == "1"]
    return f"{float(line[column or 'auc']):.3f}"
