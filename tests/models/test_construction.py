"""Models as they start, by name: ours, and those of a user's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedskip.errors import InputError
from fedskip.models.construction import initial_model

NETS = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, inputs: int, classes: int = 9, rate: float = 0.1, hidden: int = 8) -> None:
        super().__init__(nn.Linear(inputs, hidden), nn.Linear(hidden, classes))
        self.rate = rate

class Unsure(nn.Linear):
    def __init__(self, depth, later: "NotThere" = None):
        super().__init__(depth, depth)

def free(**options):
    return nn.Linear(options["a"], 1)

def number():
    return 3

def failing():
    raise KeyError("lost")

def unsigned():
    return nn.Linear(2, 2)

unsigned.__signature__ = "none"
ready = nn.Linear(2, 2)
NUMBER = 3
"""
SIZES = {"inputs": 4, "classes": 3}


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "their_nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("their_nets", None)


def made(name: str, seed: int = 0, **options: Any) -> Any:
    return initial_model({"name": name, **options}, SIZES, None, seed, "init")


def shapes(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in module.parameters() if p.dim() == 2]


def test_sizes_come_from_the_data_unless_they_are_given() -> None:
    assert shapes(made("linear")) == [(3, 4)]
    assert shapes(made("mlp", hidden=[7, 5], classes=2)) == [(7, 4), (5, 7), (2, 5)]
    assert shapes(made("perceptron")) == [(3, 4)]
    assert shapes(made("perceptron", inputs=6)) == [(3, 6)]
    assert made("cnn", side=16).classify.out_features == 3  # it takes no inputs
    assert shapes(initial_model({"name": "linear"}, {"inputs": 2}, None, 0, "init")) == [(5, 2)]


def test_own_class_with_options() -> None:
    assert shapes(made("their_nets:Net")) == [(8, 4), (3, 8)]
    net = made("their_nets:Net", hidden="5", classes=2, rate=1)
    assert shapes(net) == [(5, 4), (2, 5)]
    assert type(net.rate) is float
    assert shapes(made("their_nets:Unsure", depth=2)) == [(2, 2)]
    assert shapes(made("their_nets:free", a=2)) == [(1, 2)]


def test_the_seed_decides_how_an_own_class_starts() -> None:
    # `ready` draws when the module is imported, which is the first time only
    one, again, other = (next(made("their_nets:Net", seed).parameters()) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("nowhere:Net", {}, r"^model nowhere:Net: nowhere cannot be imported: .* without \.py"),
        (
            "their_nets:Nett",
            {},
            r"^model their_nets:Nett: their_nets has no 'Nett'\. Check the name",
        ),
        (
            "their_nets:Net",
            {"hiden": 5},
            r"^model\.hiden is not an option of 'their_nets:Net', .*'hidden'",
        ),
        ("their_nets:Net", {"hidden": "x"}, r"^model\.hidden must be a whole number, got 'x'"),
        (
            "their_nets:Net",
            {"hidden": -1},
            r"^model their_nets:Net fails when it is made: RuntimeError",
        ),
        (
            "their_nets:Unsure",
            {},
            r"^model their_nets:Unsure cannot be made \(missing .*'depth'\).*OPTION",
        ),
        (
            "their_nets:number",
            {},
            r"^model their_nets:number must be an nn\.Module, got 'int'\. Return an nn\.Module",
        ),
        ("their_nets:number", {"a": 1}, r"^model\.a is not an option of .*It takes none"),
        (
            "their_nets:failing",
            {},
            r"^model their_nets:failing fails when it is made: KeyError: 'lost'",
        ),
        (
            "their_nets:NUMBER",
            {},
            r"^model their_nets:NUMBER must be a class or a function .*'int'",
        ),
        (
            "their_nets:ready",
            {},
            r"^model their_nets:ready must be a class .* start all seeds alike",
        ),
        ("torch:load", {"f": "x"}, r"^model torch:load must be a class or a function"),
        ("torch.hub:load", {}, r"^model torch\.hub:load must be a class or a function"),
        ("torch.nn:Linear.forward", {}, r"^model torch.* must be a class or a function"),
        ("fedskip.files:write_text", {}, r"^model fedskip.* must be a class or a function"),
        ("numpy:memmap", {}, r"^model numpy:memmap must be a class .*'memmap'"),
        (
            "their_nets:unsigned",
            {},
            r"^model their_nets:unsigned cannot be made: .* Write a function",
        ),
    ],
)
def test_own_class_that_cannot_be_made(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        made(name, **options)
