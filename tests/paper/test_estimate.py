"""How long things take: measured, or estimated from steps."""

from __future__ import annotations

import pytest

from fedskip.paper import estimate as room
from fedskip.paper.columns import settings
from fedskip.paper.estimate import DEVICE, START, _read, client_steps, estimate, rates, time


def test_times_are_of_things_that_exist() -> None:
    assert {row["name"] for row in _read("times")} <= settings().keys()


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("table2/cifar10-beta0.5", 10 * 3 * 200 * 10 * 10 * 78),  # 5,000 samples are 78 batches of 64
        ("table3/cifar10-p100", 10 * 3 * 800 * 20 * 10 * 7),
        ("table3/shakespeare", 10 * 3 * 200 * 10 * 10 * 87),
        ("tune/feddyn", 5 * 3 * 200 * 10 * 10 * 70),  # a tenth is for validation
    ],
)
def test_work_is_counted_in_steps_of_clients(name: str, steps: int) -> None:
    assert client_steps(settings()[name]) == steps


def test_the_rule() -> None:
    column = settings()["table2/cifar100-iid"]
    assert estimate(column) == START + client_steps(column) * 6.6 / 60_000
    assert estimate(settings()["table3/synthetic"]) is None, "a perceptron was never timed on an H200"


def test_estimates_agree_with_what_was_measured() -> None:
    """Within a third: by model they are fitted, but columns differ."""
    for row in _read("times"):
        column = settings()[row["name"]]
        if row["device"] == DEVICE and not row["note"]:
            ms = rates()[column.draft.keys["model"]["name"], "tf32"]
            minutes = START + client_steps(column, int(row["runs"])) * ms / 60_000
            assert minutes == pytest.approx(float(row["minutes"]), rel=0.33), row["name"]


def test_in_words() -> None:
    assert time("table3/femnist") == "2 min"
    assert time("table2/cifar10-iid") == "15 min"
    assert time("table3/synthetic") == "4 min, two CPU cores"
    assert time("table2/cifar100-iid") == "about 86 h (49 h in bf16)"
    assert time("fig1/beta0.9") == "7 min, beside other studies"
    assert time("fig1/beta0.9", 0.5) == "about 2 min", "alone"
    assert time("resnet50/cifar100-beta0.5", 0.5) == "about 11 min", "in its own precision"


def test_a_share_of_what_was_measured_at_fewer_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ten runs of a seed took ten minutes: half of all thirty take fifteen, and one to load."""
    row = {"name": "table3/synthetic", "runs": "10", "device": "a CPU", "minutes": "11", "note": ""}
    monkeypatch.setattr(room, "_read", lambda name: [row])
    assert time("table3/synthetic") == "11 min, 10 of 30 runs, a CPU"
    assert time("table3/synthetic", 0.5) == "about 16 min, a CPU"
