"""Kinds of layers in a module, and how many parameters each kind holds."""

from __future__ import annotations

from collections import Counter

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd

KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "dense": (nn.Linear, nn.Bilinear),
    "convolution": (_ConvNd,),
    "recurrent": (nn.RNNBase, nn.RNNCellBase),
    "attention": (nn.MultiheadAttention,),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
    "normalisation": (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.PReLU),
}


def kind(layer: nn.Module) -> str:
    """The kind of a layer; for a layer of no known kind, the name of its class."""
    for name, classes in KINDS.items():
        if isinstance(layer, classes):
            return name
    return type(layer).__name__


def parameter_counts(module: nn.Module) -> Counter[str]:
    """How many parameters the layers of each kind hold; shared weights count once.

    >>> parameter_counts(nn.Sequential(nn.Linear(60, 5), nn.ReLU(), nn.LayerNorm(5)))
    Counter({'dense': 305, 'normalisation': 10})
    """
    counts: Counter[str] = Counter()
    seen: set[int] = set()
    for layer in module.modules():
        own = [p for p in layer.parameters(recurse=False) if id(p) not in seen]
        seen |= {id(p) for p in own}
        if size := sum(p.numel() for p in own):
            counts[kind(layer)] += size
    return counts


def is_dense(module: nn.Module) -> bool:
    """Whether all parameters belong to dense and normalisation layers."""
    return set(parameter_counts(module)) <= {"dense", "normalisation"}


def batch_norms(module: nn.Module) -> list[_NormBase]:
    """The layers whose output or state depends on the other samples in a batch."""
    return [
        layer
        for layer in module.modules()
        if isinstance(layer, _BatchNorm)
        or (isinstance(layer, _NormBase) and layer.track_running_stats)
    ]
