"""Trained models for other programs: a state_dict, safetensors, TorchScript or ONNX, by the suffix."""

from __future__ import annotations

import io
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedskip.files import refuse_existing, write_bytes
from fedskip.input.errors import InputError, require, said
from fedskip.models.making import make
from fedskip.models.weights import INPUT, load, names_own, packed, read_state

LARGEST = 1 << 28  # numbers of a sample; more is no sample
BATCHES = (2, 1, 5)  # tried with what was made; the first is shown to torch
FAR = 1e-3  # how far outputs may be apart: other kernels, another order of sums


def export(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    module: nn.Module | str | None = None,
    inputs: Tensor | None = None,
    force: bool = False,
) -> Path:
    """Write a trained model for other programs; the suffix of `out` says what it becomes.

    `.pt`, `.pth` and `.safetensors` hold a `state_dict`, `.ts` and `.torchscript` TorchScript, `.onnx` ONNX
    (`pip install "fedskip[onnx]"`). The last two compute: they take a batch of any size.

    Args:
        model: a file in OUT/models.
        out: the file to write.
        module: what the weights are of, where the study had an nn.Module of your own; or what makes it, as
            `MODULE:CLASS`.
        inputs: a batch as the model takes it, where the file does not say what that is.
        force: also over a file that is there.
    """
    path, to = Path(model), Path(out)
    write = KINDS.get(to.suffix)
    if write is None or to.is_dir():
        raise InputError("OUT", f"must be a file that ends in {', '.join(KINDS)}", str(to))
    if to.exists() and path.exists() and to.samefile(path):
        raise InputError("OUT", "must not be the model itself", str(to), "choose another name")
    refuse_existing("OUT", to, force)
    write_bytes(to, write(Trained(path, *read_state(path), module, inputs)))
    return to


@dataclass(frozen=True)
class Trained:
    """A file of weights, and what is known of their model."""

    path: Path
    weights: Mapping[str, Tensor]
    about: Mapping[str, Any]
    given: nn.Module | str | None
    inputs: Tensor | None

    def module(self) -> nn.Module:
        """The trained model. A header may name any code: only what the caller names is imported."""
        if not isinstance(self.given, str):
            return load(self.path, self.given)
        written, sample = self.about.get("model"), self._sample()
        sizes = {"classes": self.about.get("classes"), "inputs": None if sample is None else sample.numel()}
        model = {**(written if isinstance(written, dict) else {}), "name": self.given}
        known = {name: size for name, size in sizes.items() if type(size) is int}
        return load(self.path, make(model, known, None, 0, "load"))

    def state(self) -> Mapping[str, Tensor]:
        """With BatchNorm's counters, which a study leaves out, where the module is known."""
        if self.given is None and (not self.about.get("model") or names_own(self.about)):
            return self.weights
        return self.module().state_dict()

    def batches(self, module: nn.Module) -> list[Tensor]:
        """Batches of several sizes, like those that the model was trained on."""
        sample = self._sample() if self.inputs is None else self.inputs
        if sample is None:
            fix = "give a batch, in Python: fedskip.export(MODEL, OUT, inputs=torch.zeros(1, ...))"
            raise InputError("weights", "do not say what their model takes", str(self.path), fix)
        ok = isinstance(sample, Tensor) and sample.dim() > 0 and len(sample) > 0
        require("inputs", ok, "must be a batch of samples, a tensor", sample)
        batches = [sample[:1].repeat(size, *[1] * (sample.dim() - 1)) for size in BATCHES]
        try:
            with torch.no_grad():
                module(batches[0])
        except Exception as error:  # whatever a user's module does
            rule = f"does not take samples of the shape {tuple(sample.shape[1:])} ({said(error)})"
            raise InputError("model", rule, type(module).__name__) from error
        return batches

    def _sample(self) -> Tensor | None:
        """A batch of one sample as the file describes it; None if it does not."""
        found = self.about.get(INPUT)
        if found is None:
            return None
        shape: Any = found.get("shape") if isinstance(found, dict) else None
        kind = found.get("dtype") if isinstance(found, dict) else None
        dtype = getattr(torch, str(kind), None)
        sized = isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape)
        if not sized or math.prod(shape) > LARGEST or not isinstance(dtype, torch.dtype):
            rule = f"have a header with inputs that cannot be: {found!r:.60}"
            raise InputError("weights", rule, str(self.path))
        if not dtype.is_floating_point:
            return torch.zeros(1, *shape, dtype=dtype)  # an id that every model knows
        return torch.randn(1, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _state_dict(trained: Trained) -> bytes:
    content = io.BytesIO()
    torch.save(dict(trained.state()), content)
    return content.getvalue()


def _safetensors(trained: Trained) -> bytes:
    """Tensors that share memory are written out, each under its own name."""
    return packed({name: tensor.clone() for name, tensor in trained.state().items()}, trained.about)


def _torchscript(trained: Trained) -> bytes:
    """Scripted, which keeps every branch; or else traced, where there are none."""
    module = trained.module()
    batches = trained.batches(module)
    why = ""
    for way in (torch.jit.script, lambda module: _traced(module, batches[0])):
        try:
            with _quiet():
                made = way(module)
                _refuse_other(made, module, batches)
                content = io.BytesIO()
                torch.jit.save(made, content)
            return content.getvalue()
        except Exception as error:  # whatever torch says of a user's module
            why = said(error)
    fix = "write .onnx or .pt instead"
    raise InputError("model", f"cannot be made TorchScript ({why})", type(module).__name__, fix)


def _traced(module: nn.Module, inputs: Tensor) -> Any:
    """The operations of one pass; refuses a module that may take another way with other samples."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = torch.jit.trace(module, inputs)
    if any("to a Python" in str(warning.message) for warning in told):
        raise ValueError("its way depends on the values or the shape of a tensor")
    return made


def _refuse_other(made: Any, module: nn.Module, batches: list[Tensor]) -> None:
    for batch in batches:
        with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            if not torch.allclose(made(batch), module(batch), FAR, FAR):
                raise ValueError("it gives other outputs than the model")


def _onnx(trained: Trained) -> bytes:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        fix = 'pip install "fedskip[onnx]"'
        raise InputError("OUT", f"cannot be ONNX: {error.name} is not installed", fix=fix) from None
    module = trained.module()
    first, *_ = trained.batches(module)
    how: dict[str, Any] = {"dynamic_shapes": ({0: torch.export.Dim("batch")},), "verbose": False}
    try:
        with _quiet():
            made: Any = torch.onnx.export(
                module, (first,), dynamo=True, input_names=["input"], output_names=["output"], **how
            )
            content = made.model_proto
        [size, *_] = content.graph.input[0].type.tensor_type.shape.dim
        if not size.dim_param:
            raise ValueError(f"it would take batches of {size.dim_value} samples only")
        return bytes(content.SerializeToString())
    except Exception as error:  # whatever torch says of a user's module
        why = said(error.__cause__ if isinstance(error.__cause__, Exception) else error)
        fix = "let it take a batch of any size, or write .ts or .pt instead"
        raise InputError("model", f"cannot be made ONNX ({why})", type(module).__name__, fix) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """What torch says of its own future, and of packages that nobody asked for, is not for users."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        log.setLevel(level)


KINDS: dict[str, Callable[[Trained], bytes]] = {
    ".pt": _state_dict, ".pth": _state_dict, ".safetensors": _safetensors,
    ".ts": _torchscript, ".torchscript": _torchscript, ".onnx": _onnx,
}  # fmt: skip
