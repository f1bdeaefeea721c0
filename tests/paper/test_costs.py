"""Counting bytes: what clients keep, what travels, what the server holds. Nothing is timed."""

import pytest
import torch

from fedskip.engine import Loop
from fedskip.methods import FedAvg, FedDyn, FedNova, FedProx, Method, Moon, Scaffold
from fedskip.paper.costs import Case, Party, Peak, make_server, parts, play, server_memory

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
