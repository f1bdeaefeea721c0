"""A model as it starts: by name, from a user's module, or from what makes one."""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from fedskip import models
from fedskip.input.errors import InputError, require, said
from fedskip.models.weights import read_weights
from fedskip.rng import torch_scope

Model = Mapping[str, Any] | nn.Module | Callable[..., Any]  # a name and options, a module, or what makes one


def make(model: Model, classes: int | None, init: str | None, seed: int, purpose: str) -> nn.Module:
    """The model as it starts. Only its own key decides its random weights.

    A module given as an object starts every run as it is; something that makes modules is called for
    each seed. `init` names a file of weights that replace the random ones.
    """
    with torch_scope(seed, purpose):
        if isinstance(model, nn.Module):
            module = copy.deepcopy(model)
            if purpose == "fresh":
                for part in module.modules():
                    reset = getattr(part, "reset_parameters", None)
                    if callable(reset):
                        reset()
        elif callable(model):
            module = _made(model)
        else:
            module = models.build(**{"classes": classes, **model})
    models.refuse(module)
    for name, tensor in module.named_parameters():
        rule = "has no values: it is on the device 'meta'"
        require(f"model.{name}", not tensor.is_meta, rule, fix="make it on the CPU")
    if init and purpose == "init":
        read_weights(init, module)
    return models.key_dropout(module)


def _made(maker: Callable[[], Any]) -> nn.Module:
    """What a user's function makes."""
    fix = "give an nn.Module, or a function without arguments that makes one"
    name = getattr(maker, "__name__", type(maker).__name__)
    try:
        inspect.signature(maker).bind()
    except TypeError as error:
        raise InputError("model", f"cannot be made ({error})", name, fix) from error
    try:
        module: nn.Module = maker()
    except Exception as error:  # whatever a user's function may raise
        rule = f"fails when it is made: {type(error).__name__}: {said(error)}"
        raise InputError("model", rule, name) from error
    require("model", isinstance(module, nn.Module), "must be an nn.Module", type(module).__name__, fix)
    return copy.deepcopy(module)  # it may be the user's own, and is changed here
