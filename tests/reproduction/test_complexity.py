"""The paper's formula and counts of bytes. Seconds are never judged."""

from __future__ import annotations

import pytest
import torch

from fedskip.engine import Loop
from fedskip.methods import FedAvg, FedDyn, FedNova, FedProx, Method, Moon, Scaffold
from reproduction import complexity
from reproduction.complexity import (
    Case,
    Party,
    Peak,
    client_costs,
    make_server,
    parts,
    play,
    predicted,
    server_memory,
    server_times,
)

TINY = Case("perceptron", (4,), steps=2, options=(("inputs", 4), ("classes", 3)))
MODEL = 4 * (4 * 3 + 3)  # bytes


@pytest.mark.parametrize(
    ("method", "remembered", "visit", "down", "up"),
    [
        (FedAvg(), 0, 0, 1, 1),
        (FedAvg(period=5), 0, 0, 1, 1),
        (FedProx(), 0, 1, 1, 1),
        (Scaffold(), 1, 1, 2, 2),
        (Scaffold(period=5), 1, 1, 2, 2),
        (Moon(), 1, 2, 1, 1),
        (FedNova(), 0, 0, 1, 1),
        (FedDyn(), 1, 2, 1, 1),
    ],
    ids=lambda value: value.label if isinstance(value, Method) else "",
)
def test_bytes_of_a_client(method: Method, remembered: int, visit: int, down: int, up: int) -> None:
    task = TINY.task()
    party = Party(task, method, Loop(task))
    party.visit()
    assert list(party.bytes().values()) == [MODEL * n for n in (remembered, visit, down, up)]


def test_the_server_holds_its_slots() -> None:
    task = TINY.task()
    average, skipping = (server_memory(task, FedAvg(period=period), 7) for period in (1, 3))
    assert average["held"] == skipping["held"] == 8  # ours: K slots and the model last sent out
    assert average["needed"] == 2
    assert skipping["needed"] == 8
    assert average["peak_merge"] > average["held"]
    variates = server_memory(task, Scaffold(period=3), 7)
    assert (variates["held"], variates["needed"]) == (9, 9)


def test_peak_counts_what_lives_at_once() -> None:
    given = torch.zeros(100)
    with Peak([given]) as peak:
        one = given + 1  # 400 bytes each
        two = one * 2
        del one
        three = two.view(10, 10) + 3
    assert peak.most == 3 * 400
    assert three[0, 0] == 5


def test_a_server_plays_its_rounds() -> None:
    server = make_server(TINY.task(), FedAvg(period=2), 3)
    whole, merging = play(server, 4)
    assert server.merges == 2
    assert 0 <= merging <= whole
    assert parts(server, 4).keys() == {"draw", "move", "average"}
    assert torch.equal(server.w[0], server.x)  # nobody trained, and so nothing has changed


def test_formula() -> None:
    assert predicted(1, 100, 3.0, 7.0) == 0
    assert predicted(10, 100, 3.0, 7.0) == 0.9 * 100 * -4
    assert predicted(3, 30, 7.0, 1.0) > 0  # a shuffle that takes longer than an aggregation


def test_all_methods_and_each_with_skipping() -> None:
    labels = [method.label for method in complexity.everything()]
    assert len(labels) == len(set(labels)) == 12
    assert {"FedAvg", "FedSkip-5", "MOON", "MOON+skip-5"} <= set(labels)


def test_everything_at_a_tiny_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complexity, "CASES", (TINY,))
    found = complexity.check(slots=(2, 3), rounds=30, turns=1)
    assert found["server"]["slots"].tolist() == [2, 3]
    assert len(found["rounds"]) == 2 * len(complexity.PERIODS)
    assert (found["rounds"].query("period == 1")["difference"] == 0).all()
    clients = found["clients"].set_index("method")
    assert len(clients) == 12
    assert clients["ratio"]["FedAvg"] == 1
    beside = complexity.beside(found["clients"]).set_index("method")
    assert beside.loc["SCAFFOLD", ["remembered", "visit", "down", "up"]].tolist() == [1, 1, 2, 2]


def test_the_server_over_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge takes 2 s, a draw 0.1 and a move 0.3; a run of 10 rounds takes 12 s, by its period less."""
    monkeypatch.setattr(complexity, "make_server", lambda task, method, slots: method.period)
    monkeypatch.setattr(
        complexity, "parts", lambda server, round: {"draw": 0.1, "move": 0.3, "average": 0.2}
    )
    monkeypatch.setattr(complexity, "play", lambda period, rounds: (12.0 / period, 20.0 / period))
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

    monkeypatch.setattr(complexity, "Party", Visitor)
    ratios = {row["method"]: row["ratio"] for row in client_costs(TINY, TINY.task(), 3)}
    assert (ratios["FedAvg"], ratios["MOON"], ratios["FedDyn"]) == (1.0, 3.0, 0.5)
