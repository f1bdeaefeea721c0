"""Does the command of a row of runs.csv give its numbers again?

    python docs/results/again.py synthetic       # trains it, in runs/again/synthetic, and compares
    python docs/results/again.py synthetic DIR   # compares with a folder that the command has made

All columns that were kept are compared, but the seconds. On the same device, with the same versions, they are
the same to the last bit (docs/determinism.md). Elsewhere it says what differs and by how much, and shows each
method's mean beside its standard deviation over seeds; it then ends with 1.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from files import HERE, lines

from fedskip.records.table import Row, Table
from fedskip.report.results import Results

ROOT = HERE.parent.parent
TIMED = "seconds"  # the one column that no contract covers
KEYS = {"history.csv": ("run", "round"), "summary.csv": ("run",)}


def train(folder: str, out: Path) -> None:
    """Run the command of a folder, into `out`."""
    [row] = [row for row in lines("runs") if row["folder"] == folder]
    _, *words = shlex.split(row["command"])
    subprocess.run([sys.executable, "-m", "fedskip", *words, "--out", out], cwd=ROOT, check=True)


def differences(ours: Table, theirs: Table, keys: Sequence[str]) -> list[str]:
    """What of our table differs from theirs, in words, column by column; they may have columns that are new.

    >>> ours = Table(("run", "last"), [{"run": "a", "last": 0.5}, {"run": "b", "last": 0.25}])
    >>> differences(ours, ours, ["run"])
    []
    >>> differences(ours, Table(("run", "last"), [{"run": "a", "last": 0.75}]), ["run"])
    ['1 of 2 rows are in one of them only', 'last differs in 1 of 1 rows, by up to 0.25']
    >>> differences(ours, Table(("run", "new"), [{"run": "a", "new": 1}, {"run": "b", "new": 2}]), ["run"])
    ['last is not there any more']
    """
    mine, other = ({tuple(row[key] for key in keys): row for row in table} for table in (ours, theirs))
    both = mine.keys() & other.keys()
    found = []
    if alone := mine.keys() ^ other.keys():
        found.append(f"{len(alone):,} of {len(mine.keys() | other.keys()):,} rows are in one of them only")
    for column in ours.columns:
        if column == TIMED:
            continue
        if column not in theirs.columns:
            found.append(f"{column} is not there any more")
            continue
        pairs = [(mine[key][column], other[key][column]) for key in both]
        if unequal := [(a, b) for a, b in pairs if repr(a) != repr(b)]:  # NaN is NaN, here
            gaps = [abs(a - b) for a, b in unequal if {type(a), type(b)} <= {int, float}]
            most = f", by up to {max(gaps):.2g}" if gaps else ""
            found.append(f"{column} differs in {len(unequal):,} of {len(both):,} rows{most}")
    return found


def spreads(ours: Results, theirs: Results) -> list[str]:
    """Of each method the mean by tail, ours with its spread over seeds, and theirs."""
    written = ["by tail, in %: ours, with its standard deviation over seeds, and what came out now"]
    again: dict[tuple[str, str], Row] = {(row["setting"], row["method"]): row for row in theirs.table()}
    for row in ours.table():
        now = again.get((row["setting"], row["method"]))
        means = [None if one is None else one["mean_tail"] for one in (row, now)]
        here, there = ("–" if mean is None else f"{100 * mean:.2f}" for mean in means)
        spread = "" if row["mean_tail_std"] is None else f" ± {100 * row['mean_tail_std']:.2f}"
        written.append(f"  {row['setting']} {row['method']}: {here}{spread}, {there}")
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", choices=[row["folder"] for row in lines("runs")], metavar="FOLDER")
    parser.add_argument("made", type=Path, nargs="?", help="a folder that the command has made")
    given = parser.parse_args()
    made = given.made or ROOT / "runs" / "again" / given.folder
    if given.made is None:
        if made.exists():
            parser.error(f"{made} is there: delete it, or compare with it by naming it")
        train(given.folder, made)
    elif not (made / "summary.csv").exists():
        parser.error(f"{made} holds no study that has ended")
    same = True
    for name, keys in KEYS.items():
        if not (HERE / given.folder / name).exists():
            print(f"{name}: not kept")
            continue
        ours, theirs = Table.read(HERE / given.folder / name), Table.read(made / name)
        found = differences(ours, theirs, keys)
        same = same and not found
        print(f"{name}: {'; '.join(found) or f'the same, {len(ours):,} rows'}")
    if not same:
        print("\n".join(spreads(Results.read(HERE / given.folder), Results.read(made))))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
