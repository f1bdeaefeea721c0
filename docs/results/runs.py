"""Where the numbers come from: `runs.csv` has a row for each folder of a study, `computed.csv` for the rest;
`again.csv` for each study that was run again.

To add a study: its folder here, with study.yaml, summary.csv and history.csv, a row in runs.csv, and
`python docs/results/write.py`. A test compares the rows with what the folders say of themselves.
"""

from collections.abc import Sequence

from files import Line, lines

from fedskip.paper.columns import settings
from fedskip.report import units
from fedskip.report.results import Results

FEW = 3  # methods that are named
HEADERS = {
    "folder": "folder", "seeds": "seeds", "command": "command", "commit": "commit", "date": "date",
    "device": "device", "minutes": "minutes", "note": "", "result": "what came out",
}  # fmt: skip


def table(name: str = "runs") -> str:
    """All rows, with links and with commands to copy."""
    found = lines(name)
    headers = {key: words for key, words in HEADERS.items() if key in found[0]}
    written = ["| " + " | ".join(headers.values()) + " |", "|" + " --- |" * len(headers)]
    for row in found:
        shown = row | {"folder": f"[{row['folder']}]({row['folder']})", "command": f"`{row['command']}`"}
        written.append("| " + " | ".join(shown[key] for key in headers) + " |")
    return "\n".join(written) + "\n"


def sources(place: str, kept: Sequence[Results]) -> str:
    """The folders that a column's runs come from, as links: which seeds, and which methods if not all.

    A folder whose runs are all in those with more of the column's methods is left out.
    """
    column, held, known = settings()[place], dict[str, list[str]](), set[tuple[str, int]]()
    for part in column.parts(kept):
        mine = {(row["method"], row["seed"]) for row in part.summary}
        if not mine <= known or len(part.labels()) == len(column.methods):
            held.setdefault(part.out.name, []).extend(part.summary.column("method"))
        known |= mine
    links = []
    for row in lines("runs"):
        if row["folder"] in held:
            mine = [name for name in column.methods if name in held[row["folder"]]]
            links.append(f"[{seeds(row)}{some(mine, len(column.methods))}]({row['folder']})")
    return ", ".join(links)


def some(mine: Sequence[str], of: int) -> str:
    """The methods of a folder in words, where it has not all.

    >>> some(["FedAvg", "SCAFFOLD"], 2), some(["FedAvg", "SCAFFOLD"], 10), some(["FedAvg"] * 9, 24)
    ('', ': FedAvg and SCAFFOLD', ', 9 of 24 methods')
    """
    if len(mine) == of:
        return ""
    return f": {units.listed(mine)}" if len(mine) <= FEW else f", {len(mine)} of {of} methods"


def seeds(row: Line) -> str:
    """The seeds of a folder in words.

    >>> seeds({"seeds": "0"}), seeds({"seeds": "1, 2"}), seeds({"seeds": "0, 1, 2"})
    ('seed 0', 'seeds 1 and 2', 'seeds 0 to 2')
    """
    found = row["seeds"].split(", ")
    if len(found) == 1:
        return f"seed {found[0]}"
    return f"seeds {found[0]} {'and' if len(found) == 2 else 'to'} {found[-1]}"
