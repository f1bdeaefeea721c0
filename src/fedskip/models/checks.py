"""Checks of a module before training: can it be trained, can many copies be stacked, does it draw?"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from fedskip.errors import InputError, first_line
from fedskip.models.dropout import KEYED

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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


def stacking_obstacles(module: nn.Module) -> str | None:
    """Why the stacked engine cannot train the module, or None if it can.

    >>> stacking_obstacles(nn.Sequential(nn.Linear(2, 2), nn.RReLU()))
    "layer '1' (RReLU) draws from torch's global generator"
    """
    try:
        check_trainable(module)
    except InputError as error:
        return str(error)
    stackable = getattr(module, "stackable", None)
    try:
        form = stackable() if callable(stackable) else module
    except Exception as error:  # a user's module may raise anything
        return f"its stackable() fails: {first_line(error)}"
    if not isinstance(form, nn.Module):
        return f"its stackable() must give an nn.Module, and gives {type(form).__name__}"
    for path, layer in form.named_modules():
        where = f"layer {path!r} ({type(layer).__name__})"
        if isinstance(layer, nn.RNNBase):
            return f"{where} cannot be batched over models; give the module a `stackable()` form"
        if _has_own_randomness(layer):
            return f"{where} draws from torch's global generator"
    return None


def uses_torch_randomness(module: nn.Module, inputs: Tensor) -> bool:
    """Whether a forward pass in training mode draws from torch's global generator."""
    module = copy.deepcopy(module).cpu().train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        module(inputs.cpu())
        return not torch.equal(before, torch.get_rng_state())


def _has_own_randomness(layer: nn.Module) -> bool:
    """Whether a layer draws random numbers that `key_dropout` does not replace."""
    if isinstance(layer, nn.MultiheadAttention):
        return bool(layer.dropout)
    if isinstance(layer, _DropoutNd):  # AlphaDropout, FeatureAlphaDropout, a user's own kind
        return type(layer) not in KEYED
    return isinstance(layer, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)
