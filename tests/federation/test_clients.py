"""What clients remember."""

from __future__ import annotations

import numpy as np
import torch

from fedskip.federation import Memory, draw_cohort
from fedskip.methods import Scaffold
from tiny import Nudge, make_run, perceptron_task, train


def test_only_clients_that_were_visited_have_a_row() -> None:
    memory = Memory({"h": 2}, torch.zeros(0, dtype=torch.float64))
    state, first = memory.recall(np.array([7, 3]))
    assert state["h"].tolist() == [[0, 0], [0, 0]]
    assert first.tolist() == [True, True]
    memory.keep(np.array([7, 3]), {"h": torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)})
    memory.keep(np.array([900_000, 7]), {"h": torch.tensor([[5.0, 6.0], [8.0, 9.0]], dtype=torch.float64)})
    state, first = memory.recall(np.array([3, 1, 7, 900_000]))
    assert state["h"].tolist() == [[3, 4], [0, 0], [8, 9], [5, 6]]
    assert first.tolist() == [False, True, False, False]
    assert memory.save()[0]["h"].shape == (3, 2)
    assert len(memory.rows["h"]) <= 4


def test_memory_grows_in_proportion_to_the_clients() -> None:
    memory = Memory({"h": 1}, torch.zeros(0))
    for client in range(100):
        memory.keep(np.array([client]), {"h": torch.full((1, 1), float(client))})
        assert len(memory.rows["h"]) <= 2 * (client + 1)
    assert memory.recall(np.arange(100))[0]["h"][:, 0].tolist() == [*range(100)]


def test_what_is_recalled_is_a_copy() -> None:
    memory = Memory({"h": 1}, torch.zeros(0))
    memory.keep(np.array([0]), {"h": torch.ones(1, 1)})
    memory.recall(np.array([0]))[0]["h"].zero_()
    assert memory.recall(np.array([0]))[0]["h"].item() == 1


def test_a_run_remembers_the_clients_it_has_visited_and_no_others() -> None:
    task, clients = perceptron_task()
    run = make_run(task, clients, Scaffold(), slots=2)
    train(Nudge(), run, 2)
    visited = {int(client) for round in range(2) for client in draw_cohort("uniform", 0, round, 6, 2)}
    assert set(run.clients.memory.place) == visited
    assert run.clients.memory.save()[0]["c"].shape == (len(visited), task.layout.trainable)
