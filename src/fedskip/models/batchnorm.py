"""Layers that keep statistics of their batches."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase


def batch_statistics(module: nn.Module) -> list[_NormBase]:
    """Those whose output or state depends on which samples are in the batch."""
    return [
        part
        for part in module.modules()
        if isinstance(part, _BatchNorm) or (isinstance(part, _NormBase) and part.track_running_stats)
    ]
