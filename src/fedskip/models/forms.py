"""Other forms of a module: one that `torch.func` can take, and one that gives its representation, too."""

import copy
from collections.abc import Callable

from torch import Tensor, nn

from fedskip.input.errors import InputError
from fedskip.models.batchnorm import batch_statistics
from fedskip.models.dense import as_tall
from fedskip.models.layers import is_dense
from fedskip.models.patches import as_patches


def functional(template: nn.Module, patches: bool = False, kernels: bool = False) -> nn.Module:
    """A copy in its stackable form; its BatchNorm has no integer counters.

    Without a form of its own, a module of dense layers has them as `Tall`. Beside others it is not measured.

    `patches`: with convolutions as products of patches, in a layout that BatchNorm does not take under vmap;
    `kernels`: small ones by kernels of our own.
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
    return as_patches(module, kernels) if patches and not normed else module


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
