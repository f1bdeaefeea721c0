"""Forms of a module that engines call: stackable by `torch.func`, or with its representation z."""

import copy
import logging
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskip.errors import InputError, first_line
from fedskip.kernels.patches import PatchConv2d, as_patches, hooked
from fedskip.models.layer_kinds import batch_norms, is_dense
from fedskip.models.lstm import StackableLSTM

log = logging.getLogger(__name__)

KERNELS = 3  # version of our kernels; another version computes other bits


def functional(template: nn.Module, patches: bool = False, kernels: bool = False) -> nn.Module:
    """A copy of a module that `torch.func` can batch over many sets of weights.

    It is the module's own `stackable()` form if it has one. Otherwise a module of dense layers gets
    transposed ones (`Tall`), which are faster when batched. BatchNorm loses its integer counters.

    Args:
        template: the module; it is not changed.
        patches: compute convolutions as products of patches. Ignored with BatchNorm, which does not
            take their memory layout under vmap.
        kernels: compute small convolutions and LSTM layers by our own GPU kernels.
    """
    module = copy.deepcopy(template)
    stackable = getattr(module, "stackable", None)
    if callable(stackable):
        module = stackable()
    elif is_dense(module):
        module = as_tall(module)
    norms = batch_norms(module)
    for norm in norms:
        norm.num_batches_tracked = None
    for layer in module.modules():
        if isinstance(layer, StackableLSTM):
            layer.kernels = kernels and layer.wants_kernels()
    return as_patches(module, kernels) if patches and not norms else module


def own_kernels(template: nn.Module, precision: str, device: torch.device) -> bool:
    """Whether our GPU kernels can compute parts of a module, and give right numbers here.

    They may fail to build: Triton, which comes with torch, also needs a C compiler and Python's
    headers, and CUDA C++ needs NVIDIA's bindings. A GPU may also be too small.
    """
    form = functional(template, patches=True, kernels=True)
    layers = [
        layer
        for layer in form.modules()
        if isinstance(layer, PatchConv2d | StackableLSTM) and layer.kernels
    ]
    layers = [layer for layer in layers if precision in layer.precisions]
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            wrong = [
                type(layer).__name__ for layer in layers if not layer.try_kernels(device, precision)
            ]
        trouble = f"wrong numbers for {wrong[0]}" if wrong else ""
    except Exception as error:  # compilers fail in many ways
        trouble = first_line(error)
    if trouble:
        log.warning("our GPU kernels do not work here, so steps take much longer: %s", trouble)
    return bool(layers) and not trouble


def in_single_steps(template: nn.Module, precision: str, kernels: bool) -> bool:
    """Whether a module has recurrent layers that are computed one time step after another."""
    form = functional(template, kernels=kernels)
    layers = [layer for layer in form.modules() if isinstance(layer, StackableLSTM)]
    return any(not layer.kernels or precision not in layer.precisions for layer in layers)


class Tall(nn.Linear):
    """An `nn.Linear` that computes W xᵀ instead of x Wᵀ: batched over models, it takes half the time.

    It shares the parameters of the layer that it replaces.
    """

    def __init__(self, dense: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(dense.__dict__)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            return F.linear(x, self.weight, self.bias)
        y = self.weight @ x.T  # (O, B)
        return (y if self.bias is None else y + self.bias[:, None]).T


def as_tall(module: nn.Module) -> nn.Module:
    """The module with its dense layers as `Tall`, changed in place unless it is one itself."""
    tall: dict[nn.Module, Tall] = {}
    for path, layer in list(module.named_modules(remove_duplicate=False)):
        if type(layer) is nn.Linear and not hooked(layer):
            tall.setdefault(layer, Tall(layer))
            if not path:
                return tall[layer]
            module.set_submodule(path, tall[layer])
    return module


class WithFeatures(nn.Module):
    """A module whose `forward` is the `features` of another: `functional_call` calls only `forward`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return features_of(self.inner)(x)

    @staticmethod
    def named(state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state of the inner module under the names that it has here."""
        return {f"inner.{name}": tensor for name, tensor in state.items()}


def features_of(module: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The method `module.features`, which gives (output, z) in one pass."""
    features: Callable[[Tensor], tuple[Tensor, Tensor]] | None = getattr(module, "features", None)
    if not callable(features):
        raise InputError(
            "model", "must have a method features(x) -> (output, z) for MOON",
            type(module).__name__, "add it, with z the representation to contrast (B, d)",
        )  # fmt: skip
    return features
