"""Single visits, FedNova's weights, SYNTHETIC's sigmoid, and what a curious client learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedskip.methods import FedNova
from fedskip.study.machine import prepared_setting
from reproduction import evidence_tables, fednova_weights, membership, sigmoid
from reproduction.visits import watched


def test_a_slot_takes_on_what_it_left() -> None:
    """Two rounds of FedSkip-2: the models of the first are received in the second, each by its slot."""
    rows = watched("table3/synthetic", "fedskip(period=2)", seed=1, rounds=2)
    first, second = rows[:10], rows[10:]
    assert [(row["round"], row["slot"]) for row in rows] == [
        (t, k) for t in (1, 2) for k in range(10)
    ]
    for what in ("told", "active"):
        assert [row[f"{what}_after"] for row in first] == [row[f"{what}_before"] for row in second]
    assert [row["after"] for row in first] == [row["before"] for row in second]
    assert len({row["before"] for row in first}) == 1, "all begin with the same model"
    for row in rows:
        assert 0 < row["gradient"] <= row["largest"]
        assert row["steps"] == 10 * (row["samples"] // 64)
        assert row["told_after"] > 0


def test_a_client_with_the_samples_of_another() -> None:
    """All else is the same: also the visits of the others in the first round."""
    arguments = ("table3/synthetic", "fedavg", 0, 1)
    usual = watched(*arguments)
    one, other = (row["client"] for row in usual[:2])
    swapped = watched(*arguments, f"{one}:{other}")
    assert swapped[0]["client"] == one
    assert swapped[0]["samples"] == usual[1]["samples"] != usual[0]["samples"]
    assert swapped[1:] == usual[1:]


def test_clipped_gradients_and_fewer_slots() -> None:
    rows = watched("table3/synthetic", "fedavg", 0, 1, cohort=3, clip=0.01)
    assert len(rows) == 3
    assert [round(row["largest"], 6) for row in rows] == [0.01] * 3


def test_fednovas_weights_are_those_of_its_merge() -> None:
    """Where every slot has moved by 1, FedNova moves by the sum of its weights, with the routes' own a."""
    prepared, _ = prepared_setting(
        {"data": "synthetic", "cohort": 4, "methods": "fednova", "seeds": [2], "rounds": 3}
    )
    [run] = prepared.runs()
    orders = run.server.orders(1)
    a = torch.tensor([[route.a] for route in run.clients.begin(orders)[1]], dtype=torch.float64)
    sizes = torch.tensor(
        [run.clients.sizes[client] for client in orders.clients], dtype=torch.float64
    )
    x, w = torch.zeros(1, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
    moved = float(FedNova().merge({}, x, w, sizes / sizes.sum(), a).evaluated)
    assert fednova_weights.weights(prepared, run, 1) == pytest.approx(moved, rel=1e-3)
    assert moved > 1.1


def test_the_sigmoid_leads_away_from_the_rule_of_the_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one epoch, to a lower loss; the rule's own score is the one that the committed file has."""
    monkeypatch.setattr(sigmoid, "EPOCHS", 1)
    before, after = sigmoid.rows(0, "rule", sigmoid=True)
    assert float(after["train_loss"]) < float(before["train_loss"])
    assert float(after["test_accuracy"]) < float(before["test_accuracy"]) - 0.04
    kept = evidence_tables.evidence("sigmoid").query("start == 'rule' and epoch == 0 and seed == 0")
    assert kept["test_accuracy"].unique() == pytest.approx([float(before["test_accuracy"])])


def test_what_losses_tell_of_members() -> None:
    members, others = np.array([0.1, 0.2, 0.3]), np.array([0.25, 0.4])
    assert membership.auc(members, others) == pytest.approx(5 / 6)
    assert membership.auc(np.ones(2), np.ones(3)) == 0.5
    assert membership.found_at(members, others, 0.5) == 1.0
