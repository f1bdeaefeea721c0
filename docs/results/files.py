"""The CSV files of this folder and of benchmarks/results, line by line."""

import csv
from pathlib import Path

HERE = Path(__file__).parent
BENCHMARKS = "../../benchmarks/results"

Line = dict[str, str]


def lines(name: str) -> list[Line]:
    """A file by its name without .csv."""
    with (HERE / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
