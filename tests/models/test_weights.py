"""Models in files: what a study writes is what a user loads."""

from copy import deepcopy

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedskip
from fedskip import models
from fedskip.errors import InputError
from fedskip.models.vector import Layout
from fedskip.models.weights import packed, read_state, read_weights
from fedskip.rng import torch_scope

THIN = {"name": "resnet50", "width": 4, "blocks": [1, 1], "head": False}


def trained(description, classes=10):
    """A model with numbers of its own, also in its BatchNorm statistics."""
    module = models.build(**{"classes": classes, **description})
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + 0.5)
    return module.eval()


def written(path, module, **about):
    """The file that a study would leave: a vector cut into named views."""
    layout = Layout.of(module)
    path.write_bytes(packed(layout.views(layout.pack(module)), about))
    return path


@pytest.mark.parametrize(
    "description", [{"name": "perceptron"}, {"name": "cnn", "head": False}, THIN]
)
def test_load_gives_the_module_back(tmp_path, description):
    module = trained(description, classes=7)
    loaded = fedskip.load(written(tmp_path / "m.safetensors", module, model=description, classes=7))
    x = torch.rand((2, 60) if description["name"] == "perceptron" else (2, 3, 32, 32))
    assert not loaded.training
    assert loaded(x).shape == (2, 7)
    assert torch.equal(loaded(x), module(x))


def test_load_leaves_the_global_generator_alone(tmp_path):
    path = written(
        tmp_path / "m.safetensors",
        trained({"name": "perceptron"}),
        model={"name": "perceptron"},
        classes=10,
    )
    before = torch.get_rng_state()
    fedskip.load(path)
    assert torch.equal(torch.get_rng_state(), before)


def test_double_precision_stays_double(tmp_path):
    module = trained({"name": "perceptron"}).double()
    path = written(tmp_path / "m.safetensors", module, model={"name": "perceptron"}, classes=10)
    loaded = fedskip.load(path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in module.state_dict().items())
    assert {tensor.dtype for tensor in loaded.values()} == {torch.float64}


def test_a_module_of_ones_own_is_passed_in(tmp_path):
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    path = written(tmp_path / "m.safetensors", module, model=None, classes=2)
    with pytest.raises(InputError, match=r"do not say which model.*module=MyNet"):
        fedskip.load(path)
    own = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    assert fedskip.load(path, module=own) is own
    assert torch.equal(own[0].weight, module[0].weight)
    assert not own.training


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Sequential(nn.Linear(3, 4)), "another shape for '0.bias'"),
        (nn.Sequential(nn.Linear(3, 2, bias=False)), "unknown '0.bias'"),
        (nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), "lacks '1.bias'"),
    ],
)
def test_weights_of_another_module_are_refused_whole(tmp_path, other, message):
    path = written(tmp_path / "m.safetensors", nn.Sequential(nn.Linear(3, 2)))
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(InputError, match=message):
        read_weights(path, other)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())


def test_unreadable_files(tmp_path):
    with pytest.raises(InputError, match="weights must be an existing file"):
        read_state(tmp_path / "none.safetensors")
    path = written(tmp_path / "m.safetensors", trained({"name": "perceptron"}))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="cannot be read"):
        read_state(path)
    torch.save(nn.Linear(1, 1), tmp_path / "whole.pt")  # a pickled module, not a state_dict
    with pytest.raises(InputError, match="weights must hold nothing but tensors"):
        read_state(tmp_path / "whole.pt")
    torch.save({"epoch": 3}, tmp_path / "other.pt")
    with pytest.raises(InputError, match="state_dict of tensors"):
        read_state(tmp_path / "other.pt")


def test_every_flipped_bit_is_found_or_harms_nothing(tmp_path):
    path = written(
        tmp_path / "m.safetensors", module := trained({"name": "perceptron", "inputs": 2}, 2)
    )
    whole, state = path.read_bytes(), module.state_dict()
    found = 0
    for bit in range(0, 8 * len(whole), 7):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            read, _ = read_state(path)
        except InputError:
            found += 1
        else:  # in the name of the digest itself, or in what fills up the header
            assert all(torch.equal(read[name], tensor) for name, tensor in state.items())
    assert found > 0.9 * 8 * len(whole) / 7


def test_a_file_without_a_digest_is_read(tmp_path):
    state = {"weight": torch.ones(2)}
    save_file(state, tmp_path / "m.safetensors", metadata={"fedskip": '{"classes": 2}'})
    read, about = read_state(tmp_path / "m.safetensors")
    assert torch.equal(read["weight"], state["weight"])
    assert about == {"classes": 2}


class Tied(nn.Module):
    """Two layers that share a weight, and a buffer that is part of no state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        self.b.weight = self.a.weight
        self.register_buffer("place", torch.zeros(3), persistent=False)


def test_tied_weights_and_passing_buffers_come_back(tmp_path):
    with torch_scope("tied"):
        one, other = Tied(), Tied()
    one.place += 1
    layout = Layout.of(one)
    (tmp_path / "ours.safetensors").write_bytes(packed(layout.views(layout.pack(one)), {}))
    torch.save(one.state_dict(), tmp_path / "theirs.pt")
    for file, place in (("ours.safetensors", 1.0), ("theirs.pt", 0.0)):
        module = deepcopy(other)
        read_weights(tmp_path / file, module)
        assert torch.equal(module.b.weight, one.a.weight)
        assert module.b.weight is module.a.weight
        assert torch.equal(module.b.bias, one.b.bias)
        assert (module.place == place).all()
