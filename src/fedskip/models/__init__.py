"""Models by name: `build("cnn")` gives an `nn.Module`; and what keeps a module from being trained here.

Besides `forward(x)`, every model has `features(x) -> (output, z)`: in one pass the output and the
representation z that MOON contrasts. A model with a `stackable()` form is trained through it when
rows are stacked.
"""

import copy
from collections.abc import Callable, Collection
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from fedskip.input.errors import InputError, said, unknown
from fedskip.input.fit import MOST
from fedskip.models.cnn import CNN, femnist
from fedskip.models.dropout import KEYED, Dropout, key_dropout, words
from fedskip.models.lstm import CharLSTM
from fedskip.models.mlp import MLP, linear
from fedskip.models.perceptron import Perceptron
from fedskip.models.resnet import ResNet

__all__ = [
    "MODELS", "Dropout", "build", "draws", "key_dropout", "no_option", "refuse", "stacking_obstacles",
    "words",
]  # fmt: skip

# name -> what makes it; its arguments are the model's options, with their defaults. Two of them come from the
# data of a study that does not say them: `inputs`, the numbers of a sample, and `classes`, the outputs.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": MLP,
    "perceptron": Perceptron,
    "cnn": CNN,
    "cnn-femnist": femnist,
    "resnet50": ResNet,
    "lstm": CharLSTM,
}


def _count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST


# kind of an option's default -> what its values must be
RULES: dict[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("must be true or false", lambda value: isinstance(value, bool)),
    int: (f"must be a whole number from 1 to {MOST:,}", _count),
    float: ("must be a number", lambda value: type(value) in (int, float)),
    tuple: (
        f"must be a list of whole numbers from 1 to {MOST:,}",
        lambda value: isinstance(value, list | tuple) and len(value) > 0 and all(map(_count, value)),
    ),
}


def build(name: str, *, classes: int | None = None, **options: Any) -> nn.Module:
    """The model called `name`, with its own options (`model.*` in a study).

    `classes` and all options default to the paper's. The weights come from torch's generator, so
    call it inside `rng.torch_scope`.

    >>> sum(p.numel() for p in build("cnn", head=False).parameters())
    62006
    """
    if name not in MODELS:
        raise unknown("model.name", name, MODELS)
    if classes is not None:
        options["classes"] = classes
    known = signature(MODELS[name]).parameters
    for option, value in options.items():
        if option not in known:
            raise no_option(name, option, value, known)
        rule, holds = RULES[type(known[option].default)]
        if not holds(value):
            raise InputError(f"model.{option}", rule, value)
    try:
        return MODELS[name](**options)
    except (RuntimeError, MemoryError) as error:  # of torch, when there is not enough memory
        chosen = ", ".join(f"{key}={value}" for key, value in options.items())
        raise InputError("model", f"cannot be made: {said(error)}", f"{name}({chosen})") from error


def no_option(name: str, option: str, value: Any, known: Collection[str]) -> InputError:
    """An option that the model called `name` does not take."""
    fix = unknown("model", option, known).fix if known else "it takes none"
    return InputError(f"model.{option}", f"is not an option of {name!r}", value, fix)


def refuse(module: nn.Module) -> None:
    """Raise an `InputError` if no engine can train the module."""
    for path, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.momentum is None:
            # a cumulative average needs `num_batches_tracked`, a counter that does not travel
            field = f"model.{path}.momentum".replace("..", ".")
            raise InputError(field, "of a BatchNorm must be a number", None, "set momentum=0.1")
    floats = [(name, buffer) for name, buffer in module.named_buffers() if buffer.is_floating_point()]
    for name, tensor in [*module.named_parameters(), *floats]:
        if is_lazy(tensor):
            fix = "run the module once on a batch, so that its lazy layers know their shapes"
            raise InputError(f"model.{name}", "has no values yet", fix=fix)
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise InputError(f"model.{name}", "must be real numbers of 16, 32 or 64 bits", tensor.dtype)


def stacking_obstacles(module: nn.Module) -> str | None:
    """Why the stacked engine cannot train the module, or None if it can.

    >>> stacking_obstacles(nn.Sequential(nn.Linear(2, 2), nn.RReLU()))
    "layer '1' (RReLU) draws from torch's global generator"
    """
    try:
        refuse(module)
    except InputError as error:
        return str(error)
    unrolled = getattr(module, "stackable", None)
    try:
        form = unrolled() if callable(unrolled) else module
    except Exception as error:  # whatever a user's module may raise
        return f"its stackable() fails: {said(error)}"
    if not isinstance(form, nn.Module):
        return f"its stackable() must give an nn.Module, and gives {type(form).__name__}"
    for path, layer in form.named_modules():
        where = f"layer {path!r} ({type(layer).__name__})"
        if isinstance(layer, nn.RNNBase):
            return f"{where} cannot be batched over models; give the module a `stackable()` form"
        if _draws(layer):
            return f"{where} draws from torch's global generator"
    return None


def draws(module: nn.Module, inputs: Tensor) -> bool:
    """Whether a module, in training, draws from torch's own generator."""
    module = copy.deepcopy(module).cpu().train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        module(inputs.cpu())
        return not torch.equal(before, torch.get_rng_state())


def _draws(layer: nn.Module) -> bool:
    """Whether a layer has randomness of its own that `key_dropout` does not replace."""
    if isinstance(layer, nn.MultiheadAttention):
        return bool(layer.dropout)
    if isinstance(layer, _DropoutNd):  # AlphaDropout, FeatureAlphaDropout, a user's own kind
        return type(layer) not in KEYED
    return isinstance(layer, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)
