"""Models in files: what users came for, as safetensors, and any weights to start from."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedskip import models
from fedskip.files import write_bytes
from fedskip.input.errors import InputError
from fedskip.models.vector import Layout
from fedskip.rng import torch_scope


def write_weights(path: Path, state: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Named tensors, with a description in the header that says how to build their module."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in state.items()}
    write_bytes(path, save(tensors, metadata={"fedskip": json.dumps(about)}))


def read_state(
    path: str | os.PathLike[str], field: str = "weights"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a .safetensors file or of a torch state_dict, and the description if there is one.

    `field`: what errors are to call it.
    """
    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("fedskip", "{}"))
                return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(field, "must be an existing file", str(path)) from None
    except (SafetensorError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise InputError(field, f"cannot be read ({error})", str(path)) from None
    except Exception:  # torch.load raises pickle errors of its own
        raise InputError(field, "must hold nothing but tensors", str(path), "save a state_dict") from None
    if not isinstance(loaded, dict) or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise InputError(field, "must be a state_dict of tensors", str(path))
    return loaded, {}


def read_weights(path: str | os.PathLike[str], module: nn.Module, field: str = "init") -> None:
    """Load a file into a module; every float tensor must be there with its shape.

    Tied tensors may be there once, as a study writes them, or under all their names, as torch does; buffers
    that are not part of a `state_dict` may be there or not.
    """
    state, _ = read_state(path, field)
    lasting = module.state_dict()
    needed = {span.name for span in Layout.of(module).spans} & lasting.keys()
    own = {**dict(module.named_buffers()), **lasting}
    missing = sorted(needed - state.keys())
    extra = sorted(state.keys() - own.keys())
    wrong = sorted(name for name in own if name in state and state[name].shape != own[name].shape)
    for names, what in ((missing, "lacks"), (extra, "has an unknown"), (wrong, "has another shape for")):
        if names:
            raise InputError(
                field, f"{what} {names[0]!r} ({len(names)} in all)", str(path), "use this model's weights"
            )
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)


def load(path: str | os.PathLike[str], module: nn.Module | None = None) -> nn.Module:
    """The trained model of a file in OUT/models, in eval mode.

    Args:
        path: such as `runs/quickstart-1/models/synthetic.FedAvg.s0.best.safetensors`.
        module: what to load it into; needed where the study had an nn.Module of your own.
    """
    if module is None:
        state, about = read_state(path)
        if not about.get("model"):
            fix = "give the module: fedskip.load(path, module=MyNet())"
            raise InputError("weights", "do not say which model they are of", str(path), fix)
        with torch_scope(0, "load"):  # its random weights are about to be replaced
            module = models.build(**{"classes": about["classes"], **about["model"]})
        module.to(next(iter(state.values())).dtype)  # all of a study's numbers have its precision
    read_weights(path, module, "weights")
    return module.eval()
