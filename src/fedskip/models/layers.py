"""What a module is made of: kinds of layers, and how many numbers each kind holds."""

from __future__ import annotations

from collections import Counter

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "dense": (nn.Linear, nn.Bilinear),
    "convolution": (_ConvNd,),
    "recurrent": (nn.RNNBase, nn.RNNCellBase),
    "attention": (nn.MultiheadAttention,),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
    "normalisation": (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.PReLU),
}


def numbers(module: nn.Module) -> Counter[str]:
    """The numbers that layers of each kind hold; those of an unknown kind go by the name of its class.

    >>> numbers(nn.Sequential(nn.Linear(60, 5), nn.ReLU(), nn.LayerNorm(5)))
    Counter({'dense': 305, 'normalisation': 10})
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()  # weights may be shared
    for layer in module.modules():
        own = [one for one in layer.parameters(recurse=False) if id(one) not in seen]
        seen |= {id(one) for one in own}
        size = sum(one.numel() for one in own)
        if size:
            found[kind(layer)] += size
    return found


def kind(layer: nn.Module) -> str:
    """The kind of a layer, or the name of its class."""
    for name, classes in KINDS.items():
        if isinstance(layer, classes):
            return name
    return type(layer).__name__


def is_dense(module: nn.Module) -> bool:
    """Whether its numbers are those of dense layers, and of normalisations between them, alone."""
    return set(numbers(module)) <= {"dense", "normalisation"}
