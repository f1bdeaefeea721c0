"""Dropout with keyed randomness: a mask is a function of a random word and the layer, on every device.

torch's own dropout draws from a global generator, so its masks depend on the device, on the rows that
are computed together and on interruptions. Here an engine gives each row a new 32-bit word at each
step: the loop engine writes the `word` buffer, the stacked engine substitutes it by `functional_call`.
"""

from itertools import count
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedskip import rng

# torch's dropouts with a keyed form -> whether they drop whole channels
KEYED: dict[type[nn.Module], bool] = {
    nn.Dropout: False,
    nn.Dropout1d: True,
    nn.Dropout2d: True,
    nn.Dropout3d: True,
}
FIRST = (
    1 << 31
)  # the number of the first layer; augmentation uses small numbers for the samples of a batch


class Dropout(nn.Module):
    """Zeroes each element or channel with probability `p` in training, and scales the rest.

    The i-th one is kept if `uniform(mix(word, FIRST + layer), i) >= p`. A layer that is called twice in
    one forward pass draws the same mask twice, so give each place its own layer.
    """

    word: Tensor  # (), int64

    def __init__(self, p: float = 0.5, layer: int = 0, channels: bool = False) -> None:
        super().__init__()
        self.p, self.layer, self.channels = p, layer, channels
        self.register_buffer("word", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        # one draw for each element, or for each channel of a batch (B, C, ...)
        shape = x.shape[:2] + (1,) * (x.dim() - 2) if self.channels else x.shape
        i = torch.arange(prod(shape), device=x.device).reshape(shape)
        keep = rng.uniform(rng.mix(self.word, FIRST + self.layer), i) >= self.p
        scale = 1 / (1 - self.p) if self.p < 1 else 0.0
        return torch.where(keep, x * scale, 0.0)

    def extra_repr(self) -> str:
        return f"p={self.p}, layer={self.layer}, channels={self.channels}"


def key_dropout(module: nn.Module) -> nn.Module:
    """Replace every torch dropout that has a keyed form, in place; returns the module.

    Layers are numbered in the order of `named_modules`, after those that are keyed already.
    """
    taken = [layer.layer for layer in module.modules() if isinstance(layer, Dropout)]
    number = count(max(taken, default=-1) + 1)
    for path, old in list(module.named_modules(remove_duplicate=False)):
        if isinstance(old, _DropoutNd) and type(old) in KEYED:
            new = Dropout(old.p, next(number), KEYED[type(old)]).train(old.training)
            if not path:  # the module itself is a dropout
                return new
            module.set_submodule(path, new)
    return module


def words(module: nn.Module) -> list[str]:
    """The dotted names of the `word` buffers of all keyed dropouts."""
    return [
        f"{path}.word".lstrip(".") for path, m in module.named_modules() if isinstance(m, Dropout)
    ]
