"""The paper's formula, and the whole measurement at a tiny size. Seconds are never judged."""

import csv
from pathlib import Path

from rich.console import Console

from fedskip.paper import complexity as room
from fedskip.paper.complexity import complexity, predicted
from fedskip.paper.costs import Case

TINY = Case("perceptron", (4,), steps=2, options=(("inputs", 4), ("classes", 3)))


def test_formula() -> None:
    assert predicted(1, 100, 3.0, 7.0) == 0
    assert predicted(10, 100, 3.0, 7.0) == 0.9 * 100 * -4
    assert predicted(3, 30, 7.0, 1.0) > 0  # a shuffle that takes longer than an aggregation


def test_all_methods_and_each_with_skipping() -> None:
    labels = [method.label for method in room.everything()]
    assert len(labels) == len(set(labels)) == 12
    assert {"FedAvg", "FedSkip-5", "MOON", "MOON+skip-5"} <= set(labels)


def test_everything_at_a_tiny_size(tmp_path: Path) -> None:
    shown = complexity(tmp_path, cases=[TINY], slots=(2, 3), rounds=30, turns=1)
    tables = {file.stem: [*csv.DictReader(file.open())] for file in tmp_path.glob("*.csv")}
    expected = {
        "server": room.SERVER, "rounds": room.ROUNDS, "clients": room.CLIENTS, "memory": room.MEMORY,
        "about": room.ABOUT,
    }  # fmt: skip
    assert {name: tuple(rows[0]) for name, rows in tables.items()} == expected
    assert [row["slots"] for row in tables["server"]] == ["2", "3"]
    assert len(tables["rounds"]) == 2 * len(room.PERIODS)
    assert all(float(row["difference"]) == 0 for row in tables["rounds"] if row["period"] == "1")
    assert len(tables["clients"]) == 12
    assert [float(row["ratio"]) for row in tables["clients"] if row["method"] == "FedAvg"] == [1]
    assert {file.stem for file in tmp_path.glob("*.svg")} == {"rounds", "clients"}
    console = Console(width=100)
    with console.capture() as capture:
        console.print(shown)
    assert "FedDyn+skip-5" in capture.get()
