"""What layers a module has: their kinds, how many parameters each kind holds, and whether it can be trained."""

from collections import Counter

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from fedskip.errors import InputError

KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "dense": (nn.Linear, nn.Bilinear),
    "convolution": (_ConvNd,),
    "recurrent": (nn.RNNBase, nn.RNNCellBase),
    "attention": (nn.MultiheadAttention,),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
    "normalisation": (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.PReLU),
}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def parameter_counts(module: nn.Module) -> Counter[str]:
    """How many parameters the layers of each kind hold; shared weights count once.

    A layer of no known kind goes by the name of its class.

    >>> parameter_counts(nn.Sequential(nn.Linear(60, 5), nn.ReLU(), nn.LayerNorm(5)))
    Counter({'dense': 305, 'normalisation': 10})
    """
    counts: Counter[str] = Counter()
    seen: set[int] = set()
    for layer in module.modules():
        own = [p for p in layer.parameters(recurse=False) if id(p) not in seen]
        seen |= {id(p) for p in own}
        if size := sum(p.numel() for p in own):
            kinds = (kind for kind, classes in KINDS.items() if isinstance(layer, classes))
            counts[next(kinds, type(layer).__name__)] += size
    return counts


def batch_norms(module: nn.Module) -> list[_NormBase]:
    """The layers whose output or state depends on the other samples in a batch."""
    norms = (layer for layer in module.modules() if isinstance(layer, _NormBase))
    return [norm for norm in norms if isinstance(norm, _BatchNorm) or norm.track_running_stats]


def check_trainable(module: nn.Module) -> None:
    """Raise an `InputError` if no engine can train the module."""
    for path, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.momentum is None:
            # a cumulative average needs the counter `num_batches_tracked`, which is not part of the
            # vector that travels
            field = f"model.{path}.momentum".replace("..", ".")
            raise InputError(field, "of a BatchNorm must be a number", None, "set momentum=0.1")
    floats = [(name, b) for name, b in module.named_buffers() if b.is_floating_point()]
    for name, tensor in [*module.named_parameters(), *floats]:
        if is_lazy(tensor):
            fix = "run the module once on a batch, so that its lazy layers know their shapes"
            raise InputError(f"model.{name}", "has no values yet", fix=fix)
        if tensor.dtype not in FLOATS:
            rule = "must be real numbers of 16, 32 or 64 bits"
            raise InputError(f"model.{name}", rule, tensor.dtype)
