"""Other forms of a module: one that `torch.func` can take, and one that gives its representation, too."""

import copy
import logging
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from fedskip.input.errors import InputError, said
from fedskip.models.batchnorm import batch_statistics
from fedskip.models.dense import as_tall
from fedskip.models.layers import is_dense
from fedskip.models.lstm import StackableLSTM
from fedskip.models.patches import PatchConv2d, as_patches

log = logging.getLogger(__name__)

KERNELS = 3  # the edition of our own; another has other bits


def functional(template: nn.Module, patches: bool = False, kernels: bool = False) -> nn.Module:
    """A copy in its stackable form; its BatchNorm has no integer counters.

    Without a form of its own, a module of dense layers has them as `Tall`. Beside others it is not measured.

    `patches`: with convolutions as products of patches, in a layout that BatchNorm does not take under vmap;
    `kernels`: small ones, and recurrent layers, by kernels of our own.
    """
    module = copy.deepcopy(template)
    unrolled = getattr(module, "stackable", None)
    if callable(unrolled):
        module = unrolled()
    elif is_dense(module):
        module = as_tall(module)
    normed = batch_statistics(module)
    for part in normed:
        part.num_batches_tracked = None
    for layers in module.modules():
        if isinstance(layers, StackableLSTM):
            layers.kernels = kernels and layers.wants_kernels()
    return as_patches(module, kernels) if patches and not normed else module


def own_kernels(template: nn.Module, precision: str, device: torch.device) -> bool:
    """Whether kernels of our own compute parts of a module, and run here.

    Triton, which comes with torch, also needs a C compiler and Python's headers, and CUDA C++ needs NVIDIA's
    bindings; and a GPU may be too small.
    """
    form = functional(template, patches=True, kernels=True)
    parts = [
        part for part in form.modules() if isinstance(part, PatchConv2d | StackableLSTM) and part.kernels
    ]
    parts = [part for part in parts if precision in part.precisions]
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            wrong = [type(part).__name__ for part in parts if not part.try_kernels(device, precision)]
        trouble = f"wrong numbers for {wrong[0]}" if wrong else ""
    except Exception as error:  # there are many ways in which a compiler may not work
        trouble = said(error)
    if trouble:
        log.warning("kernels of our own do not work here, so steps take much longer: %s", trouble)
    return bool(parts) and not trouble


def in_single_steps(template: nn.Module, precision: str, kernels: bool) -> bool:
    """Whether a module has recurrent layers whose time steps are taken one by one."""
    form = functional(template, kernels=kernels)
    layers = [part for part in form.modules() if isinstance(part, StackableLSTM)]
    return any(not part.kernels or precision not in part.precisions for part in layers)


class WithFeatures(nn.Module):
    """Makes `features` callable through `functional_call`, which only knows `forward`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = features_of(self.inner)(x)
        return found

    @staticmethod
    def named(state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state of the inner module under the names that it has here."""
        return {f"inner.{name}": tensor for name, tensor in state.items()}


def features_of(module: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """`module.features`, which gives (output, z) in one pass."""
    found = getattr(module, "features", None)
    if not callable(found):
        raise InputError(
            "model", "must have a method features(x) -> (output, z) for MOON", type(module).__name__,
            "add it, with z the representation to contrast (B, d)",
        )  # fmt: skip
    features: Callable[[Tensor], tuple[Tensor, Tensor]] = found
    return features
