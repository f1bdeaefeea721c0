"""Dense layers of many models at once: W xᵀ instead of x Wᵀ, which batched takes half the time."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fedskip.models.patches import hooked


class Tall(nn.Linear):
    """An `nn.Linear` with all that it has; of a batch of vectors it computes the transposed product."""

    def __init__(self, dense: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(dense.__dict__)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            return F.linear(x, self.weight, self.bias)
        y = self.weight @ x.T  # (O, B)
        return (y if self.bias is None else y + self.bias[:, None]).T


def as_tall(module: nn.Module) -> nn.Module:
    """The module with its dense layers as `Tall`; changed in place, unless it is one itself."""
    tall: dict[nn.Module, Tall] = {}
    for path, layer in list(module.named_modules(remove_duplicate=False)):
        if type(layer) is nn.Linear and not hooked(layer):
            tall.setdefault(layer, Tall(layer))
            if not path:
                return tall[layer]
            module.set_submodule(path, tall[layer])
    return module
