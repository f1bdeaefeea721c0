"""Makes the model of a run: a bundled one, or a user's class, function or module."""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from torch import nn

from fedskip.errors import InputError, first_line, require
from fedskip.models.forms import check_trainable, key_dropout
from fedskip.models.weights import read_weights
from fedskip.models.zoo import MODELS, build, unknown_option
from fedskip.parsing import fit, is_own, load, package_of
from fedskip.rng import torch_scope

# a name with options, a module, or a function that makes one
Model = Mapping[str, Any] | nn.Module | Callable[..., Any]


def initial_model(
    model: Model, sizes: Mapping[str, int], init: str | None, seed: int, purpose: str
) -> nn.Module:
    """The model with its initial weights, which depend on `seed` and `purpose` alone.

    Args:
        model: a name with options, as `{"name": "mlp", "hidden": [64]}` or
            `{"name": "my_nets:Net"}`; a module, which starts every run as it is; or a function
            without arguments, which is called for each seed.
        sizes: `inputs` and `classes` of the data set. A model by name gets those that it takes and
            that `model` does not set.
        init: a file of weights that replace the random ones, or None.
        seed: of the run.
        purpose: "init" for the model of a run; "fresh" for other random weights (SCAFFOLD's option).
    """
    name = model["name"] if isinstance(model, Mapping) else ""
    maker = maker_of(name)  # before the scope: an import may draw
    with torch_scope(seed, purpose):
        if isinstance(model, nn.Module):
            module = copy.deepcopy(model)
            if purpose == "fresh":
                for part in module.modules():
                    reset = getattr(part, "reset_parameters", None)
                    if callable(reset):
                        reset()
        elif callable(model):
            fix = "give an nn.Module, or a function without arguments that makes one"
            module = _call_maker(model, "model", {}, fix)
        else:
            takes = inspect.signature(maker).parameters if maker else {}
            options = {**{key: size for key, size in sizes.items() if key in takes}, **model}
            module = _own_model(maker, options) if maker and is_own(name) else build(**options)
    check_trainable(module)
    for path, tensor in module.named_parameters():
        rule = "has no values: it is on the device 'meta'"
        require(f"model.{path}", not tensor.is_meta, rule, fix="make it on the CPU")
    if init and purpose == "init":
        read_weights(init, module)
    return key_dropout(module)


def maker_of(name: str) -> Callable[..., Any] | None:
    """The class or function that makes the model called `name`, bundled or a user's own."""
    if not is_own(name):
        return MODELS.get(name)
    maker: Callable[..., Any] = load(name, "model")
    is_class, is_module = isinstance(maker, type), isinstance(maker, nn.Module)
    made_for_it = is_class and issubclass(maker, nn.Module)  # type: ignore[arg-type]
    if callable(maker) and not is_class and not is_module:  # torch:load would unpickle a file
        made_for_it = package_of(maker) not in ("torch", "fedskip")
    rule = "must be a class or a function that makes an nn.Module"
    fix = "a ready-made module would start all seeds alike" * is_module
    field = f"model {name}"
    require(field, made_for_it, rule, maker.__name__ if is_class else type(maker).__name__, fix)
    try:
        inspect.signature(maker)
    except (TypeError, ValueError) as error:
        fix = "write a function that calls it"
        raise InputError(field, f"cannot be made: {first_line(error)}", fix=fix) from error
    return maker


def hints_for(maker: Callable[..., Any]) -> dict[str, Any]:
    """The declared types of a class's or function's arguments, as far as they can be resolved."""
    try:
        return get_type_hints(maker.__init__ if isinstance(maker, type) else maker)  # type: ignore[misc]
    except Exception:  # names that exist for type checkers only
        return {}


def _own_model(maker: Callable[..., Any], model: Mapping[str, Any]) -> nn.Module:
    """Call a user's class or function with the options of a study."""
    name, hints = model["name"], hints_for(maker)
    parameters = inspect.signature(maker).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    options = {}
    for option, value in model.items():
        if option == "name":
            continue
        if option not in parameters and not takes_any:
            raise unknown_option(name, option, value, parameters)
        options[option] = fit(f"model.{option}", copy.deepcopy(value), hints.get(option, Any))
    fix = (
        f"return an nn.Module, and write the arguments as model: {{name: {name!r}, OPTION: VALUE}}"
    )
    return _call_maker(maker, f"model {name}", options, fix)


def _call_maker(
    maker: Callable[..., Any], field: str, options: Mapping[str, Any], fix: str
) -> nn.Module:
    """Call a user's class or function; an error says whether its arguments or its code are wrong."""
    name = getattr(maker, "__name__", type(maker).__name__)
    try:
        inspect.signature(maker).bind(**options)
    except TypeError as error:
        raise InputError(field, f"cannot be made ({error})", name, fix) from error
    try:
        module: nn.Module = maker(**options)
    except Exception as error:  # a user's function may raise anything
        rule = f"fails when it is made: {type(error).__name__}: {first_line(error)}"
        raise InputError(field, rule, name) from error
    is_module = isinstance(module, nn.Module)
    require(field, is_module, "must be an nn.Module", type(module).__name__, fix)
    return copy.deepcopy(module)  # it may be the user's own object, and is changed here
