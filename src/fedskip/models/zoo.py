"""The bundled models by name: `build("cnn")` gives an `nn.Module`."""

from collections.abc import Callable, Collection
from inspect import signature
from typing import Any

from torch import nn

from fedskip.errors import InputError, first_line, unknown
from fedskip.models.cnn import CNN, femnist
from fedskip.models.lstm import CharLSTM
from fedskip.models.mlp import MLP, Perceptron, linear
from fedskip.models.resnet import ResNet
from fedskip.parsing import MOST

# name -> class or function; its arguments are the model's options. Where a study does not set
# `inputs` (numbers in a sample) or `classes` (outputs), the data set does.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": MLP,
    "perceptron": Perceptron,
    "cnn": CNN,
    "cnn-femnist": femnist,
    "resnet50": ResNet,
    "lstm": CharLSTM,
}


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST


def _is_counts(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_count, value))


# type of an option's default -> what its values must be
RULES: dict[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("must be true or false", lambda value: isinstance(value, bool)),
    int: (f"must be a whole number from 1 to {MOST:,}", _is_count),
    float: ("must be a number", lambda value: type(value) in (int, float)),
    tuple: (f"must be a list of whole numbers from 1 to {MOST:,}", _is_counts),
}


def build(name: str, *, classes: int | None = None, **options: Any) -> nn.Module:
    """Build a bundled model with random weights.

    The weights are drawn from torch's global generator, so call this inside `rng.torch_scope`.

    Args:
        name: a key of `MODELS`.
        classes: the number of outputs; by default that of the data set the model was made for.
        options: the model's own options, `model.*` in a study. Defaults are the paper's.

    >>> sum(p.numel() for p in build("cnn", head=False).parameters())
    62006
    """
    if name not in MODELS:
        raise unknown("model.name", name, MODELS)
    if classes is not None:
        options["classes"] = classes
    parameters = signature(MODELS[name]).parameters
    for option, value in options.items():
        if option not in parameters:
            raise unknown_option(name, option, value, parameters)
        rule, holds = RULES[type(parameters[option].default)]
        if not holds(value):
            raise InputError(f"model.{option}", rule, value)
    try:
        return MODELS[name](**options)
    except (RuntimeError, MemoryError) as error:  # not enough memory
        chosen = ", ".join(f"{key}={value}" for key, value in options.items())
        raise InputError(
            "model", f"cannot be made: {first_line(error)}", f"{name}({chosen})"
        ) from error


def unknown_option(name: str, option: str, value: Any, known: Collection[str]) -> InputError:
    """The error for an option that the model `name` does not take."""
    fix = unknown("model", option, known).fix if known else "it takes none"
    return InputError(f"model.{option}", f"is not an option of {name!r}", value, fix)
