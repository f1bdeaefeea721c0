"""Models in files: what users came for, as safetensors, and any weights to start from."""

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

from fedskip import models
from fedskip.files import digest, refuse_too_large, refuse_unreadable, write_bytes
from fedskip.input.errors import InputError, option, said
from fedskip.input.named import is_own
from fedskip.models.vector import Layout
from fedskip.rng import torch_scope

ABOUT, DIGEST = "fedskip", "digest"  # a key of a file's header, and one of what it describes
INPUT = "input"  # another one: shape and kind of a sample, as the model takes it
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def write_weights(path: Path, state: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Named tensors; the header says how to build their module, and has a digest of it all."""
    write_bytes(path, packed(state, about))


def packed(state: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    """The content of such a file."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in state.items()}
    described = json.dumps({**about, DIGEST: _digest(tensors, about)})
    return save(tensors, metadata={ABOUT: described})  # of several keys the order would be random


def read_state(
    path: str | os.PathLike[str], field: str = "weights"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a .safetensors file or of a torch state_dict, and the description if there is one.

    `field`: what errors are to call it.
    """
    path = Path(path)
    refuse_unreadable(field, path)
    try:
        refuse_too_large(path, _size(path))
        if path.suffix == ".safetensors":
            state, about = _safetensors(path, field)
        else:
            state, about = _state_dict(path, field), {}
    except (SafetensorError, RuntimeError, EOFError, OSError, MemoryError) as error:
        why = said(error).split(". ")[0]  # torch goes on with advice for another caller
        raise InputError(field, f"cannot be read ({why})", str(path)) from None
    for name, tensor in state.items():
        if wrong := _unusable(tensor):
            fix = "save plain tensors of real numbers"
            raise InputError(field, f"holds {name!r}, which {wrong}", str(path), fix)
    return state, about


def _safetensors(path: Path, field: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    described = header.get(ABOUT, "{}")
    try:
        about = json.loads(described)
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict):
        raise InputError(field, f"has a header that is no description of a model: {described:.60}", str(path))
    if about.pop(DIGEST, None) not in (None, _digest(state, about)):  # older files have none
        fix = "bring back the file, or train it again"
        raise InputError(field, "is damaged: it is not what was written", str(path), fix)
    return state, about


def _state_dict(path: Path, field: str) -> dict[str, Tensor]:
    fix = "save the state_dict alone: torch.save(model.state_dict(), PATH)"
    try:
        with warnings.catch_warnings(action="ignore"):  # what is wrong is said below
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, MemoryError):
        raise
    except Exception:  # torch.load raises pickle errors of its own
        raise InputError(field, "must hold nothing but tensors", str(path), fix) from None
    if not isinstance(loaded, dict):
        raise InputError(
            field, f"must be a state_dict of tensors, not {type(loaded).__name__}", str(path), fix
        )
    for name, tensor in loaded.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            rule = f"must be a state_dict of tensors; {name!r:.60} holds {type(tensor).__name__}"
            raise InputError(field, rule, str(path), fix)
    return loaded


def _size(path: Path) -> int:
    """The bytes that a file takes in memory; torch's are zip files, which may be compressed."""
    if not zipfile.is_zipfile(path):
        return path.stat().st_size
    try:
        with zipfile.ZipFile(path) as file:
            return sum(member.file_size for member in file.infolist())
    except zipfile.BadZipFile as error:
        raise OSError(said(error)) from None


def _unusable(tensor: Tensor) -> str:
    """Why a tensor cannot be copied into a module as it is; empty if it can."""
    if tensor.is_meta:
        return "has no values"
    if tensor.layout is not torch.strided:
        return "is sparse"
    if tensor.is_quantized:
        return "is quantised"
    if tensor.is_complex():
        return "has complex numbers"
    if tensor.is_floating_point() and tensor.dtype not in FLOATS:
        return f"has numbers of too few bits ({tensor.dtype})"
    return ""


def _digest(state: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    """Of names, shapes, kinds and numbers of tensors, and of their description."""
    parts = [digest(json.dumps(about).encode())]
    for name in sorted(state):
        tensor = state[name]
        numbers = digest(tensor.reshape(-1).view(torch.uint8).numpy().data)
        parts.append(f"{name} {tensor.dtype} {tuple(tensor.shape)} {numbers}")
    return digest("\n".join(parts).encode())


def read_weights(path: str | os.PathLike[str], module: nn.Module, field: str = "init") -> None:
    """Load a file into a module; every float tensor must be there with its shape.

    Tied tensors may be there once, as a study writes them, or under all their names, as torch does; buffers
    that are not part of a `state_dict` may be there or not.
    """
    state, _ = read_state(path, field)
    _refuse_unlike(state, module, field, str(path))
    own = {**dict(module.named_buffers()), **module.state_dict()}
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)


def _refuse_unlike(state: Mapping[str, Tensor], module: nn.Module, field: str, path: str) -> None:
    """Refuse tensors that are not those of a module: other names, shapes, kinds, or no numbers to train."""
    lasting = module.state_dict()
    needed = {span.name for span in Layout.of(module).spans} & lasting.keys()
    own = {**dict(module.named_buffers()), **lasting}
    shared = sorted(own.keys() & state.keys())
    trained = {name for name, _ in module.named_parameters(remove_duplicate=False)} & state.keys()
    unlike = {
        "lacks": needed - state.keys(),
        "has an unknown": state.keys() - own.keys(),
        "has another shape for": {name for name in shared if state[name].shape != own[name].shape},
        "has another kind of numbers for": {
            name for name in shared if state[name].is_floating_point() != own[name].is_floating_point()
        },
        "has NaN, or numbers too large for the model, in": {
            name for name in trained if not bool(torch.isfinite(state[name].to(own[name].dtype)).all())
        },
    }
    for what, names in unlike.items():
        if names:
            rule = f"{what} {min(names)!r} ({len(names)} in all)"
            raise InputError(field, rule, path, "use this model's weights")


def load(path: str | os.PathLike[str], module: nn.Module | None = None) -> nn.Module:
    """The trained model of a file in OUT/models, in eval mode.

    Args:
        path: such as `runs/quickstart-1/models/synthetic.FedAvg.s0.best.safetensors`.
        module: what to load it into; needed where the study had an nn.Module of your own.
    """
    if module is None:
        module = _described(*read_state(path), str(path))
    read_weights(path, module, "weights")
    return module.eval()


def names_own(about: Mapping[str, Any]) -> bool:
    """Whether a header names a module of somebody's own, which is never imported because of that."""
    model = about.get("model")
    return isinstance(model, dict) and isinstance(model.get("name"), str) and is_own(model["name"])


def _described(state: Mapping[str, Tensor], about: Mapping[str, Any], path: str) -> nn.Module:
    """The module that a header describes, with random weights."""
    model, fix = about.get("model"), f"give the module: {option('module', 'MODULE:CLASS', 'MyNet()')}"
    if not isinstance(model, dict) or not isinstance(model.get("name"), str):
        raise InputError("weights", "do not say which model they are of", path, fix)
    if names_own(about):
        maker = model["name"]
        fix = f"give it: {option('module', maker, maker.partition(':')[2] + '(...)')}"
        raise InputError("weights", f"are of a module of your own, {maker}", path, fix)
    options = {"classes": about.get("classes"), **model}
    numbers = [n for value in options.values() for n in (value if isinstance(value, list) else [value])]
    held = sum(tensor.numel() for tensor in state.values())
    if any(isinstance(n, int) and n > held for n in numbers):  # no size of a model exceeds its weights
        raise InputError(
            "weights", f"have a header for a larger model than their {held:,} numbers", path, fix
        )
    try:
        with torch.device("meta"):  # no memory yet: it may not be the model of these weights
            _refuse_unlike(state, models.build(**options), "weights", path)
    except InputError as error:
        if error.field == "weights":
            raise
        raise InputError("weights", f"have a header that fits no model ({error})", path, fix) from error
    with torch_scope(0, "load"):  # its random weights are about to be replaced
        module = models.build(**options)
    floats = [tensor.dtype for tensor in state.values() if tensor.is_floating_point()]
    return module.to(floats[0])  # all of a study's numbers have its precision
