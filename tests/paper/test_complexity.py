"""The paper's formula, and the whole measurement at a tiny size. Seconds are never judged."""

import csv
from pathlib import Path

import pytest
from rich.console import Console

from fedskip.methods import Method
from fedskip.paper import complexity as room
from fedskip.paper.complexity import client_costs, complexity, predicted, server_times
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


def test_the_server_over_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge takes 2 s, a draw 0.1 and a move 0.3; a run of 10 rounds takes 12 s, by its period less."""
    monkeypatch.setattr(room, "make_server", lambda task, method, slots: method.period)
    monkeypatch.setattr(room, "parts", lambda server, round: {"draw": 0.1, "move": 0.3, "average": 0.2})
    monkeypatch.setattr(room, "play", lambda period, rounds: (12.0 / period, 20.0 / period))
    facts, lines = server_times("some", TINY.task(), 2, 10, 1)
    assert (facts["draw"], facts["move"], facts["merge"]) == (0.1, 0.3, 2.0)
    [third] = [line for line in lines if line["period"] == 3]
    assert (third["seconds"], third["difference"]) == (4.0, -8.0)
    assert third["predicted"] == pytest.approx(2 / 3 * 10 * (0.1 - 2))
    assert third["predicted_moving"] == pytest.approx(2 / 3 * 10 * (0.3 - 2))


def test_a_visit_is_a_multiple_of_fedavgs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Visitor:
        def __init__(self, task: object, method: Method, engine: object) -> None:
            self.took = {"FedAvg": 2.0, "MOON": 6.0}.get(method.label, 1.0)

        def visit(self) -> float:
            return self.took

        def bytes(self) -> dict[str, int]:
            return {}

    monkeypatch.setattr(room, "Party", Visitor)
    ratios = {row["method"]: row["ratio"] for row in client_costs(TINY, TINY.task(), 3)}
    assert (ratios["FedAvg"], ratios["MOON"], ratios["FedDyn"]) == (1.0, 3.0, 0.5)
