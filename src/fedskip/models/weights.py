"""Weights in files: trained models as safetensors, and any weights to start from.

Files may come from somebody else: nothing in them is run, and what they claim is checked before
memory is taken for it.
"""

import json
import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedskip.errors import InputError, first_line, option
from fedskip.files import digest, refuse_too_large, refuse_unreadable
from fedskip.models.forms import FLOATS
from fedskip.models.vector import Layout
from fedskip.models.zoo import build
from fedskip.parsing import is_own
from fedskip.rng import torch_scope

ABOUT = "fedskip"  # the key of a safetensors header that holds the description
DIGEST, INPUT = "digest", "input"  # of the description: a digest of the file, the shape of a sample


def packed(state: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    """The content of a file of weights, and of a description of their model, which `load` builds it by."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in state.items()}
    described = json.dumps({**about, DIGEST: _digest(tensors, about)})
    return save(tensors, metadata={ABOUT: described})  # one key: the order of several is random


def _digest(state: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    """A digest of the tensors, their names, shapes and types, and of the description."""
    parts = [digest(json.dumps(about).encode())]
    for name in sorted(state):
        tensor = state[name]
        numbers = digest(tensor.reshape(-1).view(torch.uint8).numpy().data)
        parts.append(f"{name} {tensor.dtype} {tuple(tensor.shape)} {numbers}")
    return digest("\n".join(parts).encode())


def load(path: str | os.PathLike[str], module: nn.Module | None = None) -> nn.Module:
    """Load a trained model from a file in OUT/models, in eval mode.

    Args:
        path: such as `runs/quickstart-1/models/synthetic.FedAvg.s0.best.safetensors`.
        module: what to load the weights into. Needed if the study trained your own nn.Module.
    """
    if module is None:
        module = _described_module(*read_state(path), str(path))
    read_weights(path, module, "weights")
    return module.eval()


def read_weights(path: str | os.PathLike[str], module: nn.Module, field: str = "init") -> None:
    """Load a file into a module. Every float tensor must be there, with its shape.

    Tied tensors may be there once, as a study writes them, or under all their names, as torch does.
    Buffers that are not part of a `state_dict` may be missing.
    """
    state, _ = read_state(path, field)
    _refuse_unlike(state, module, field, str(path))
    own = {**dict(module.named_buffers()), **module.state_dict()}
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)


def read_state(
    path: str | os.PathLike[str], field: str = "weights"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a .safetensors file or a torch state_dict, and the description if there is one.

    `field` is what errors call the file.
    """
    path = Path(path)
    refuse_unreadable(field, path)
    try:
        refuse_too_large(path, _size(path))
        if path.suffix == ".safetensors":
            state, about = _read_safetensors(path, field)
        else:
            state, about = _read_state_dict(path, field), {}
    except (SafetensorError, RuntimeError, EOFError, OSError, MemoryError) as error:
        why = first_line(error).split(". ")[0]  # torch adds advice for programmers
        raise InputError(field, f"cannot be read ({why})", str(path)) from None
    for name, tensor in state.items():
        odd = tensor.is_meta or tensor.is_quantized or tensor.is_complex()
        odd = odd or tensor.layout is not torch.strided
        if odd or (tensor.is_floating_point() and tensor.dtype not in FLOATS):
            kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
            rule, fix = f"holds {name!r} ({kind})", "save plain tensors of real numbers"
            raise InputError(field, rule, str(path), f"{fix}, of 16, 32 or 64 bits")
    return state, about


def _read_safetensors(path: Path, field: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        described = (file.metadata() or {}).get(ABOUT, "{}")
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    try:
        about = json.loads(described)
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict):
        rule = f"has a header that is no description of a model: {described:.60}"
        raise InputError(field, rule, str(path))
    if about.pop(DIGEST, None) not in (None, _digest(state, about)):  # exported files may have none
        fix = "bring back the file, or train it again"
        raise InputError(field, "is damaged: it is not what was written", str(path), fix)
    return state, about


def _read_state_dict(path: Path, field: str) -> dict[str, Tensor]:
    fix = "save the state_dict alone: torch.save(model.state_dict(), PATH)"
    try:
        with warnings.catch_warnings(action="ignore"):  # the checks below say what is wrong
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, MemoryError):
        raise
    except Exception:  # torch.load has many errors of its own for pickles
        raise InputError(field, "must hold nothing but tensors", str(path), fix) from None
    if not isinstance(state, dict):
        rule = f"must be a state_dict of tensors, not {type(state).__name__}"
        raise InputError(field, rule, str(path), fix)
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            rule = f"must be a state_dict of tensors; {name!r:.60} holds {type(tensor).__name__}"
            raise InputError(field, rule, str(path), fix)
    return state


def _size(path: Path) -> int:
    """The bytes that a file takes in memory. torch writes zip files, which may be compressed."""
    if not zipfile.is_zipfile(path):
        return path.stat().st_size
    try:
        with zipfile.ZipFile(path) as file:
            return sum(member.file_size for member in file.infolist())
    except zipfile.BadZipFile as error:
        raise OSError(first_line(error)) from None


def _refuse_unlike(state: Mapping[str, Tensor], module: nn.Module, field: str, path: str) -> None:
    """Refuse tensors that do not fit a module: by name, shape, type, or not finite."""
    saved = module.state_dict()
    needed = {span.name for span in Layout.of(module).spans} & saved.keys()
    own = {**dict(module.named_buffers()), **saved}
    shared = {name: (state[name], own[name]) for name in own.keys() & state.keys()}
    trained = {name for name, _ in module.named_parameters(remove_duplicate=False)} & state.keys()
    faults = {
        "lacks": needed - state.keys(),
        "has an unknown": state.keys() - own.keys(),
        "has another shape for": {n for n, (a, b) in shared.items() if a.shape != b.shape},
        "has another kind of numbers for": {
            n for n, (a, b) in shared.items() if a.is_floating_point() != b.is_floating_point()
        },
        "has NaN, or numbers too large for the model, in": {
            n for n in trained if not bool(torch.isfinite(state[n].to(own[n].dtype)).all())
        },
    }
    for fault, names in faults.items():
        if names:
            rule = f"{fault} {min(names)!r} ({len(names)} in all)"
            raise InputError(field, rule, path, "use this model's weights")


# --- build the module that a header describes -----------------------------------------------------


def names_own(about: Mapping[str, Any]) -> bool:
    """Whether a header names a user's own module. It is never imported because a file names it."""
    model = about.get("model")
    return isinstance(model, dict) and isinstance(model.get("name"), str) and is_own(model["name"])


def _described_module(
    state: Mapping[str, Tensor], about: Mapping[str, Any], path: str
) -> nn.Module:
    """The bundled model that a header describes, with random weights."""
    model = about.get("model")
    fix = f"give the module: {option('module', 'MODULE:CLASS', 'MyNet()')}"
    if not isinstance(model, dict) or not isinstance(model.get("name"), str):
        raise InputError("weights", "do not say which model they are of", path, fix)
    if names_own(about):
        maker = model["name"]
        fix = f"give it: {option('module', maker, maker.partition(':')[2] + '(...)')}"
        raise InputError("weights", f"are of a module of your own, {maker}", path, fix)
    options = {"classes": about.get("classes"), **model}
    values = [v for o in options.values() for v in (o if isinstance(o, list) else [o])]
    held = sum(tensor.numel() for tensor in state.values())
    if any(isinstance(v, int) and v > held for v in values):  # no size exceeds the weights
        rule = f"have a header for a larger model than their {held:,} numbers"
        raise InputError("weights", rule, path, fix)
    try:
        with torch.device("meta"):  # takes no memory: the header may not fit these weights
            _refuse_unlike(state, build(**options), "weights", path)
    except InputError as error:
        if error.field == "weights":
            raise
        rule = f"have a header that fits no model ({error})"
        raise InputError("weights", rule, path, fix) from error
    with torch_scope(0, "load"):  # these random weights are about to be replaced
        module = build(**options)
    floats = [tensor.dtype for tensor in state.values() if tensor.is_floating_point()]
    return module.to(floats[0])  # a study trains all numbers in one precision
