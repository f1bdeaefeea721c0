"""Exports trained models for other programs: a state_dict, safetensors, TorchScript or ONNX."""

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

from fedskip.errors import InputError, first_line, require
from fedskip.files import refuse_existing, write_bytes
from fedskip.models.construction import initial_model
from fedskip.models.weights import INPUT, load, names_own, packed, read_state

MOST_INPUTS = 1 << 28  # a sample has at most so many numbers
BATCHES = (2, 1, 5)  # batch sizes that an export is tried with; torch traces the first
TOLERANCE = 1e-3  # between outputs: other kernels sum in another order


def export(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    module: nn.Module | str | None = None,
    inputs: Tensor | None = None,
    force: bool = False,
) -> Path:
    """Write a trained model for other programs, in the format of the suffix of `out`.

    `.pt`, `.pth` and `.safetensors` hold a `state_dict`. `.ts` and `.torchscript` (TorchScript) and
    `.onnx` (ONNX, `pip install "fedskip[onnx]"`) compute outputs of a batch of any size.

    Args:
        model: a file in OUT/models.
        out: the file to write.
        module: needed if the study trained your own nn.Module: the module, or its class as
            `MODULE:CLASS`.
        inputs: a batch for the model, if the file does not describe its inputs.
        force: overwrite an existing file.

    Returns:
        The path of the file.

    >>> export("m.safetensors", "m.onnx")  # doctest: +SKIP
    """
    path, to = Path(model), Path(out)
    write = FORMATS.get(to.suffix)
    if write is None or to.is_dir():
        raise InputError("OUT", f"must be a file that ends in {', '.join(FORMATS)}", str(to))
    if to.exists() and path.exists() and to.samefile(path):
        raise InputError("OUT", "must not be the model itself", str(to), "choose another name")
    refuse_existing("OUT", to, force)
    write_bytes(to, write(SavedModel(path, *read_state(path), module, inputs)))
    return to


@dataclass(frozen=True)
class SavedModel:
    """A file of weights, and what is known about their model."""

    path: Path
    weights: Mapping[str, Tensor]
    about: Mapping[str, Any]
    given: nn.Module | str | None
    inputs: Tensor | None

    def module(self) -> nn.Module:
        """The trained model. Only code that the caller names is imported, never what a header names."""
        if not isinstance(self.given, str):
            return load(self.path, self.given)
        written, sample, sizes = self.about.get("model"), self._sample(), dict[str, int]()
        if sample is not None:
            sizes["inputs"] = sample.numel()
        if type(classes := self.about.get("classes")) is int:
            sizes["classes"] = classes
        model = {**(written if isinstance(written, dict) else {}), "name": self.given}
        return load(self.path, initial_model(model, sizes, None, 0, "load"))

    def state(self) -> Mapping[str, Tensor]:
        """The state_dict; if the module is known, with BatchNorm's counters, which a study leaves out."""
        if self.given is None and (not self.about.get("model") or names_own(self.about)):
            return self.weights
        return self.module().state_dict()

    def batches(self, module: nn.Module) -> list[Tensor]:
        """Batches of several sizes, to try an export with."""
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
        except Exception as error:  # a user's module may raise anything
            rule = f"does not take samples of the shape {tuple(sample.shape[1:])} ({first_line(error)})"
            raise InputError("model", rule, type(module).__name__) from error
        return batches

    def _sample(self) -> Tensor | None:
        """A batch of one sample as the file describes it, or None."""
        described = self.about.get(INPUT)
        if described is None:
            return None
        parts: dict[str, Any] = described if isinstance(described, dict) else {}
        shape: Any = parts.get("shape")
        dtype = getattr(torch, str(parts.get("dtype")), None)
        sized = isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape)
        if not sized or math.prod(shape) > MOST_INPUTS or not isinstance(dtype, torch.dtype):
            rule = f"have a header with inputs that cannot be: {described!r:.60}"
            raise InputError("weights", rule, str(self.path))
        if not dtype.is_floating_point:
            return torch.zeros(1, *shape, dtype=dtype)  # every model knows the id 0
        return torch.randn(1, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _state_dict(saved: SavedModel) -> bytes:
    content = io.BytesIO()
    torch.save(dict(saved.state()), content)
    return content.getvalue()


def _safetensors(saved: SavedModel) -> bytes:
    """Tensors that share memory are written once for each name."""
    return packed({name: tensor.clone() for name, tensor in saved.state().items()}, saved.about)


def _torchscript(saved: SavedModel) -> bytes:
    """A scripted module, which keeps every branch; if that fails, a traced one without branches."""
    module = saved.module()
    batches = saved.batches(module)
    why = ""
    for convert in (torch.jit.script, lambda module: _traced(module, batches[0])):
        try:
            with _quiet():
                converted = convert(module)
                _check_outputs(converted, module, batches)
                content = io.BytesIO()
                torch.jit.save(converted, content)
            return content.getvalue()
        except Exception as error:  # torch may raise anything on a user's module
            why = first_line(error)
    fix = "write .onnx or .pt instead"
    raise InputError("model", f"cannot be made TorchScript ({why})", type(module).__name__, fix)


def _traced(module: nn.Module, inputs: Tensor) -> Any:
    """The operations of one pass. Refuses a module whose operations depend on its inputs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = torch.jit.trace(module, inputs)
    if any("to a Python" in str(warning.message) for warning in caught):
        raise ValueError("its operations depend on the values or the shape of a tensor")
    return traced


def _check_outputs(converted: Any, module: nn.Module, batches: list[Tensor]) -> None:
    for batch in batches:
        with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            if not torch.allclose(converted(batch), module(batch), TOLERANCE, TOLERANCE):
                raise ValueError("it gives other outputs than the model")


def _onnx(saved: SavedModel) -> bytes:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        fix = 'pip install "fedskip[onnx]"'
        raise InputError("OUT", f"cannot be ONNX: {error.name} is not installed", fix=fix) from None
    module = saved.module()
    first, *_ = saved.batches(module)
    shapes: Any = ({0: torch.export.Dim("batch")},)
    try:
        with _quiet():
            program: Any = torch.onnx.export(
                module, (first,), dynamo=True, input_names=["input"], output_names=["output"],
                dynamic_shapes=shapes, verbose=False,
            )  # fmt: skip
            content = program.model_proto
        [size, *_] = content.graph.input[0].type.tensor_type.shape.dim
        if not size.dim_param:
            raise ValueError(f"it would take batches of {size.dim_value} samples only")
        return bytes(content.SerializeToString())
    except Exception as error:  # torch may raise anything on a user's module
        why = first_line(error.__cause__ if isinstance(error.__cause__, Exception) else error)
        fix = "let it take a batch of any size, or write .ts or .pt instead"
        rule = f"cannot be made ONNX ({why})"
        raise InputError("model", rule, type(module).__name__, fix) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide torch's warnings about its own future and about packages that are not needed."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        log.setLevel(level)


FORMATS: dict[str, Callable[[SavedModel], bytes]] = {
    ".pt": _state_dict, ".pth": _state_dict, ".safetensors": _safetensors,
    ".ts": _torchscript, ".torchscript": _torchscript, ".onnx": _onnx,
}  # fmt: skip
