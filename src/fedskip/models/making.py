"""A model as it starts: by name, from a user's module, or from what makes one."""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from torch import nn

from fedskip import models
from fedskip.input.errors import InputError, require, said
from fedskip.input.fit import fit
from fedskip.input.named import is_own, load
from fedskip.models.weights import read_weights
from fedskip.rng import torch_scope

NO_ARGUMENTS = "give an nn.Module, or a function without arguments that makes one"

Model = Mapping[str, Any] | nn.Module | Callable[..., Any]  # a name and options, a module, or what makes one


def make(model: Model, sizes: Mapping[str, int], init: str | None, seed: int, purpose: str) -> nn.Module:
    """The model as it starts. Only its own key decides its random weights.

    A module given as an object starts every run as it is; something that makes modules is called for
    each seed. A model by name gets from `sizes`, the data's, what it takes and was not given. `init` names a
    file of weights that replace the random ones.
    """
    name = model["name"] if isinstance(model, Mapping) else ""
    own = _load(name) if is_own(name) else None  # out here: what is imported may draw
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
        elif own:
            module = _own(own, model, sizes)
        else:
            maker = models.MODELS.get(model["name"])
            module = models.build(**{**_wanted(maker, sizes), **model})
    models.refuse(module)
    for name, tensor in module.named_parameters():
        rule = "has no values: it is on the device 'meta'"
        require(f"model.{name}", not tensor.is_meta, rule, fix="make it on the CPU")
    if init and purpose == "init":
        read_weights(init, module)
    return models.key_dropout(module)


def _wanted(maker: Callable[..., Any] | None, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Those of the sizes that a class or function takes."""
    takes = inspect.signature(maker).parameters if maker else {}
    return {name: size for name, size in sizes.items() if name in takes}


def _own(maker: Callable[..., Any], model: Mapping[str, Any], sizes: Mapping[str, int]) -> nn.Module:
    """What a user's class or function, named in a study, makes of its options."""
    name: str = model["name"]
    options, hints = _wanted(maker, sizes), hints_for(maker)
    takes = inspect.signature(maker).parameters
    free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    for option, value in model.items():
        if option == "name":
            continue
        if option not in takes and not free:
            raise models.no_option(name, option, value, takes)
        options[option] = fit(f"model.{option}", copy.deepcopy(value), hints.get(option, Any))
    fix = f"let it give an nn.Module, and write what it takes as model: {{name: {name!r}, OPTION: VALUE}}"
    return _made(maker, f"model {name}", fix, **options)


def _load(name: str) -> Callable[..., Any]:
    """A class or function of a user's own, which can say what it takes."""
    found: Callable[..., Any] = load(name, "model")
    field, rule = f"model {name}", "must be a class or a function that makes an nn.Module"
    fix = "a module that is there already would start all seeds alike" * isinstance(found, nn.Module)
    require(field, callable(found) and not isinstance(found, nn.Module), rule, type(found).__name__, fix)
    try:
        inspect.signature(found)
    except (TypeError, ValueError) as error:
        fix = "write a function that calls it"
        raise InputError(field, f"cannot be made: {said(error)}", fix=fix) from error
    return found


def maker_of(name: str) -> Callable[..., Any] | None:
    """The class or function that makes the model of that name, a user's own or one of ours."""
    return _load(name) if is_own(name) else models.MODELS.get(name)


def hints_for(maker: Callable[..., Any]) -> dict[str, Any]:
    """The types that a class or function declares for what it takes, as far as they are known."""
    try:
        return get_type_hints(maker.__init__ if isinstance(maker, type) else maker)  # type: ignore[misc]
    except Exception:  # names that exist for type checkers only
        return {}


def _made(
    maker: Callable[..., Any], field: str = "model", fix: str = NO_ARGUMENTS, /, **options: Any
) -> nn.Module:
    """What a user's class or function makes."""
    name = getattr(maker, "__name__", type(maker).__name__)
    try:
        inspect.signature(maker).bind(**options)
    except TypeError as error:
        raise InputError(field, f"cannot be made ({error})", name, fix) from error
    try:
        module: nn.Module = maker(**options)
    except Exception as error:  # whatever a user's function may raise
        rule = f"fails when it is made: {type(error).__name__}: {said(error)}"
        raise InputError(field, rule, name) from error
    require(field, isinstance(module, nn.Module), "must be an nn.Module", type(module).__name__, fix)
    return copy.deepcopy(module)  # it may be the user's own, and is changed here
