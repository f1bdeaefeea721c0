"""Robust merges on five slots, worked out by hand, and with slots that are far off."""

import pytest
import torch
from torch import Tensor

from fedskip.errors import InputError
from fedskip.methods import FedAvg, Median, Method, NormBounded, TrimmedMean, parse

X = torch.zeros(2, dtype=torch.float64)
W = torch.tensor([[1, 50], [2, 40], [3, 30], [4, 20], [100, -7]], dtype=torch.float64)
P = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.6], dtype=torch.float64)
UNIFORM = torch.full((5,), 0.2, dtype=torch.float64)


def merged(method: Method, w: Tensor = W, p: Tensor = P, x: Tensor = X) -> list[float]:
    found = method.merge({}, x, w, p, torch.ones(len(w), 1))
    assert found.broadcast is found.evaluated
    return [round(number, 9) for number in found.evaluated.tolist()]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (TrimmedMean(trim=0.2), [3, 30]),  # (2 + 3 + 4) / 3 and (20 + 30 + 40) / 3, whatever p says
        (TrimmedMean(trim=0.4), [3, 30]),  # the middle one
        (TrimmedMean(trim=0.19), [22, 26.6]),  # not a whole slot: the plain mean
        (Median(), [3, 30]),
    ],
    ids=lambda value: value.label if isinstance(value, Method) else "",
)
def test_by_hand(method: Method, expected: list[float]) -> None:
    assert merged(method) == expected


def test_the_median_of_four_is_between_two() -> None:
    assert merged(Median(), W[:4], P[:4]) == [2.5, 35]


def test_a_norm_is_cut_to_the_median_of_all() -> None:
    w = torch.tensor(
        [[3.0, 4.0], [0.0, 10.0], [600.0, 800.0]], dtype=torch.float64
    )  # norms 5, 10, 1000
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert merged(NormBounded(), w, third) == [3.0, round((4 + 10 + 8) / 3, 9)]
    assert merged(NormBounded(factor=0.5), w, third) == [2.0, round((4 + 5 + 4) / 3, 9)]


def test_slots_that_did_not_move_stay() -> None:
    still = torch.zeros(3, 2, dtype=torch.float64)
    assert merged(NormBounded(), still, UNIFORM[:3]) == [0, 0]


def test_without_its_knob_it_is_fedavg() -> None:
    assert merged(NormBounded(factor=1e9)) == merged(FedAvg())
    assert merged(TrimmedMean(trim=0.0), p=UNIFORM) == merged(FedAvg(), p=UNIFORM)


@pytest.mark.parametrize("method", [TrimmedMean(trim=0.2), Median()], ids=lambda m: m.label)
@pytest.mark.parametrize("bad", [1e30, -1e30, float("inf"), float("-inf")])
def test_one_slot_in_five_cannot_leave_the_range_of_the_others(method: Method, bad: float) -> None:
    w = W.clone()
    w[2] = bad
    honest = W[[0, 1, 3, 4]]
    found = torch.tensor(merged(method, w))
    assert (found >= honest.min(0).values).all()
    assert (found <= honest.max(0).values).all()
    assert not torch.tensor(merged(FedAvg(), w)).abs().max() < 1e20


def test_one_slot_moves_a_bounded_merge_by_no_more_than_its_share_of_the_bound() -> None:
    w = W.clone()
    w[4] = 1e20
    others = W[:4].norm(dim=1)
    without = torch.tensor(merged(NormBounded(), torch.cat([W[:4], X[None]]), UNIFORM))
    assert (torch.tensor(merged(NormBounded(), w, UNIFORM)) - without).norm() < 0.4 * others.max()


@pytest.mark.parametrize(
    "bad", ["trimmedmean(trim=0.5)", "trimmedmean(trim=-0.1)", "normbounded(factor=0)"]
)
def test_bad_values(bad: str) -> None:
    with pytest.raises(InputError, match="must be"):
        parse(bad)
