"""Models in files: what users came for, as safetensors, and any weights to start from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedskip.errors import InputError
from fedskip.files import write_bytes


def write_weights(path: Path, state: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Named tensors, with a description in the header that says how to build their module."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in state.items()}
    write_bytes(path, save(tensors, metadata={"fedskip": json.dumps(about)}))


def read_state(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a .safetensors file or of a torch state_dict, and the description if there is one."""
    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("fedskip", "{}"))
                return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError("weights", "must be an existing file", str(path)) from None
    except (SafetensorError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise InputError("weights", f"cannot be read ({error})", str(path)) from None
    except Exception as error:  # torch.load raises pickle errors of its own
        raise InputError(
            "weights", f"hold more than tensors ({error})", str(path), "save a state_dict"
        ) from None
    if not isinstance(loaded, dict) or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise InputError("weights", "must be a state_dict of tensors", str(path))
    return loaded, {}


def read_weights(path: str | os.PathLike[str], module: nn.Module) -> None:
    """Load a file into a module; every trainable tensor must be there with its shape."""
    state, _ = read_state(path)
    own = module.state_dict()
    missing = sorted(name for name, t in own.items() if name not in state and t.is_floating_point())
    extra = sorted(name for name in state if name not in own)
    wrong = sorted(name for name in own if name in state and state[name].shape != own[name].shape)
    for names, what in ((missing, "lacks"), (extra, "has an unknown"), (wrong, "has another shape for")):
        if names:
            raise InputError(
                "init", f"{what} {names[0]!r} ({len(names)} in all)", str(path), "use this model's weights"
            )
    module.load_state_dict(state, strict=False)
