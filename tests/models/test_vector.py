"""A module as a vector, and back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedskip.models.vector import Layout


class Everything(nn.Module):
    """Trainable and frozen parameters out of order, a scalar, tied weights, float and integer buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.arange(2.0), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(7.0))
        self.dense = nn.Linear(2, 3)
        self.tied = self.dense
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("square", torch.full((2, 2), 0.5), persistent=False)


@pytest.fixture
def module() -> Everything:
    module = Everything()
    with torch.no_grad():
        module.dense.weight.copy_(torch.arange(10.0, 16.0).view(3, 2))
        module.dense.bias.copy_(torch.arange(20.0, 23.0))
        module.norm.running_mean.copy_(torch.arange(30.0, 33.0))  # type: ignore[union-attr]
    return module


def test_trainable_parameters_come_first_then_frozen_ones_then_float_buffers(
    module: Everything,
) -> None:
    layout = Layout.of(module)
    places = {e.name: (e.start, e.stop, e.shape) for e in layout.spans}
    assert places == {
        "scale": (0, 1, ()),
        "dense.weight": (1, 7, (3, 2)),
        "dense.bias": (7, 10, (3,)),
        "norm.weight": (10, 13, (3,)),
        "norm.bias": (13, 16, (3,)),
        "frozen": (16, 18, (2,)),
        "square": (18, 22, (2, 2)),
        "norm.running_mean": (22, 25, (3,)),
        "norm.running_var": (25, 28, (3,)),
    }
    assert (layout.trainable, layout.size) == (16, 28)


def test_pack_writes_every_number_in_its_place(module: Everything) -> None:
    expected = [
        7,
        *range(10, 16),
        *range(20, 23),
        1,
        1,
        1,
        0,
        0,
        0,
        0,
        1,
        *[0.5] * 4,
        30,
        31,
        32,
        1,
        1,
        1,
    ]
    assert Layout.of(module).pack(module).tolist() == expected


def test_pack_is_a_copy_without_gradient(module: Everything) -> None:
    vector = Layout.of(module).pack(module)
    assert not vector.requires_grad
    vector.zero_()
    assert module.scale.item() == 7


def test_load_undoes_pack_and_leaves_the_rest_alone(module: Everything) -> None:
    layout = Layout.of(module)
    other = Everything()
    other.norm.num_batches_tracked.fill_(5)  # type: ignore[union-attr]
    layout.load(other, layout.pack(module))
    assert torch.equal(layout.pack(other), layout.pack(module))
    assert other.norm.num_batches_tracked == 5
    assert other.scale.requires_grad
    assert other.tied.weight is other.dense.weight


def test_load_copies_into_the_module(module: Everything) -> None:
    layout = Layout.of(module)
    vector = layout.pack(module)
    layout.load(module, vector)
    vector.zero_()
    assert module.scale.item() == 7


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_views_share_memory_with_the_rows(module: Everything, lead: tuple[int, ...]) -> None:
    layout = Layout.of(module)
    rows = torch.arange(float(torch.Size([*lead, layout.size]).numel())).view(*lead, layout.size)
    views = layout.views(rows)
    assert {name: v.shape for name, v in views.items()} == {
        e.name: (*lead, *e.shape) for e in layout.spans
    }
    for span in layout.spans:
        part = rows[..., span.start : span.stop]
        assert torch.equal(views[span.name].reshape(part.shape), part)
    for view in views.values():
        view.fill_(-1)
    assert (rows == -1).all()


def test_views_of_a_slice_hold_the_tensors_inside_it(module: Everything) -> None:
    layout = Layout.of(module)
    rows = torch.arange(2.0 * layout.size).view(2, -1)
    whole, d = layout.views(rows), layout.trainable
    front, rest = layout.views(rows[:, :d]), layout.views(rows[:, d:], start=d)
    assert [*front, *rest] == [*whole]
    for name, view in {**front, **rest}.items():
        assert torch.equal(view, whole[name])


def test_views_follow_the_gradient(module: Everything) -> None:
    layout = Layout.of(module)
    vector = layout.pack(module).requires_grad_()
    layout.views(vector)["dense.bias"].sum().backward()
    assert vector.grad is not None
    assert vector.grad.nonzero().flatten().tolist() == [7, 8, 9]


def test_a_module_without_anything_to_carry_but_its_weights() -> None:
    layout = Layout.of(nn.Linear(2, 1, bias=False))
    assert layout.trainable == layout.size == 2
    empty: dict[str, Tensor] = layout.views(torch.zeros(3, 2)[:, 2:], start=2)
    assert empty == {}
