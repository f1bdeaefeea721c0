"""What a module is made of, and the forms in which engines train it: with keyed dropout, or stackable.

torch's own dropout draws from a global generator, so its masks depend on the device, on the rows that
are computed together and on interruptions. Keyed dropout makes a mask a function of a random word and
the layer. An engine gives each row a new 32-bit word at each step: the loop engine writes the `word`
buffer, the stacked engine substitutes it by `functional_call`.
"""

import copy
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from fedskip import rng
from fedskip.errors import InputError, first_line
from fedskip.kernels.patches import PatchConv2d, as_patches, hooked
from fedskip.models.lstm import StackableLSTM

log = logging.getLogger(__name__)

KERNELS = 3  # version of our kernels; another version computes other bits
# torch's dropouts with a keyed form -> whether they drop whole channels
KEYED: dict[type[nn.Module], bool] = {
    nn.Dropout: False, nn.Dropout1d: True, nn.Dropout2d: True, nn.Dropout3d: True,
}  # fmt: skip
# the number of the first dropout; augmentation uses small numbers for the samples of a batch
FIRST = 1 << 31
LAYERS: dict[str, tuple[type[nn.Module], ...]] = {
    "dense": (nn.Linear, nn.Bilinear),
    "convolution": (_ConvNd,),
    "recurrent": (nn.RNNBase, nn.RNNCellBase),
    "attention": (nn.MultiheadAttention,),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
    "normalisation": (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.PReLU),
}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# --- what a module is made of ---------------------------------------------------------------------


def parameter_counts(module: nn.Module) -> Counter[str]:
    """How many parameters the layers of each kind hold; shared weights count once.

    A layer of no known kind goes by the name of its class.

    >>> parameter_counts(nn.Sequential(nn.Linear(60, 5), nn.ReLU(), nn.LayerNorm(5)))
    Counter({'dense': 305, 'normalisation': 10})
    """
    counts: Counter[str] = Counter()
    seen: set[int] = set()
    for layer in module.modules():
        own = [p for p in layer.parameters(recurse=False) if id(p) not in seen]
        seen |= {id(p) for p in own}
        if size := sum(p.numel() for p in own):
            kinds = (kind for kind, classes in LAYERS.items() if isinstance(layer, classes))
            counts[next(kinds, type(layer).__name__)] += size
    return counts


def batch_norms(module: nn.Module) -> list[_NormBase]:
    """The layers whose output or state depends on the other samples in a batch."""
    norms = (layer for layer in module.modules() if isinstance(layer, _NormBase))
    return [norm for norm in norms if isinstance(norm, _BatchNorm) or norm.track_running_stats]


def check_trainable(module: nn.Module) -> None:
    """Raise an `InputError` if no engine can train the module."""
    for path, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.momentum is None:
            # a cumulative average needs the counter `num_batches_tracked`, which is not part of the
            # vector that travels
            field = f"model.{path}.momentum".replace("..", ".")
            raise InputError(field, "of a BatchNorm must be a number", None, "set momentum=0.1")
    floats = [(name, b) for name, b in module.named_buffers() if b.is_floating_point()]
    for name, tensor in [*module.named_parameters(), *floats]:
        if is_lazy(tensor):
            fix = "run the module once on a batch, so that its lazy layers know their shapes"
            raise InputError(f"model.{name}", "has no values yet", fix=fix)
        if tensor.dtype not in FLOATS:
            rule = "must be real numbers of 16, 32 or 64 bits"
            raise InputError(f"model.{name}", rule, tensor.dtype)


# --- keyed dropout --------------------------------------------------------------------------------


class Dropout(nn.Module):
    """Zeroes each element or channel with probability `p` in training, and scales the rest.

    The i-th one is kept if `uniform(mix(word, FIRST + layer), i) >= p`. A layer that is called twice in
    one forward pass draws the same mask twice, so give each place its own layer.
    """

    word: Tensor  # (), int64

    def __init__(self, p: float = 0.5, layer: int = 0, channels: bool = False) -> None:
        super().__init__()
        self.p, self.layer, self.channels = p, layer, channels
        self.register_buffer("word", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        # one draw for each element, or for each channel of a batch (B, C, ...)
        shape = x.shape[:2] + (1,) * (x.dim() - 2) if self.channels else x.shape
        i = torch.arange(prod(shape), device=x.device).reshape(shape)
        keep = rng.uniform(rng.mix(self.word, FIRST + self.layer), i) >= self.p
        scale = 1 / (1 - self.p) if self.p < 1 else 0.0
        return torch.where(keep, x * scale, 0.0)

    def extra_repr(self) -> str:
        return f"p={self.p}, layer={self.layer}, channels={self.channels}"


def key_dropout(module: nn.Module) -> nn.Module:
    """Replace every torch dropout that has a keyed form, in place; returns the module.

    Layers are numbered in the order of `named_modules`, after those that are keyed already.
    """
    taken = [layer.layer for layer in module.modules() if isinstance(layer, Dropout)]
    number = count(max(taken, default=-1) + 1)
    for path, old in list(module.named_modules(remove_duplicate=False)):
        if isinstance(old, _DropoutNd) and type(old) in KEYED:
            new = Dropout(old.p, next(number), KEYED[type(old)]).train(old.training)
            if not path:  # the module itself is a dropout
                return new
            module.set_submodule(path, new)
    return module


def words(module: nn.Module) -> list[str]:
    """The dotted names of the `word` buffers of all keyed dropouts."""
    dropouts = (path for path, part in module.named_modules() if isinstance(part, Dropout))
    return [f"{path}.word".lstrip(".") for path in dropouts]


# --- stackable ------------------------------------------------------------------------------------


def stacking_obstacles(module: nn.Module) -> str | None:
    """Why the stacked engine cannot train the module, or None if it can.

    >>> stacking_obstacles(nn.Sequential(nn.Linear(2, 2), nn.RReLU()))
    "layer '1' (RReLU) draws from torch's global generator"
    """
    try:
        check_trainable(module)
    except InputError as error:
        return str(error)
    stackable = getattr(module, "stackable", None)
    try:
        form = stackable() if callable(stackable) else module
    except Exception as error:  # a user's module may raise anything
        return f"its stackable() fails: {first_line(error)}"
    if not isinstance(form, nn.Module):
        return f"its stackable() must give an nn.Module, and gives {type(form).__name__}"
    for path, layer in form.named_modules():
        where = f"layer {path!r} ({type(layer).__name__})"
        if isinstance(layer, nn.RNNBase):
            return f"{where} cannot be batched over models; give the module a `stackable()` form"
        draws = isinstance(layer, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)
        draws |= isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0
        # AlphaDropout, FeatureAlphaDropout, a user's own kind
        draws |= isinstance(layer, _DropoutNd) and type(layer) not in KEYED
        if draws:
            return f"{where} draws from torch's global generator"
    return None


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
    elif parameter_counts(module).keys() <= {"dense", "normalisation"}:
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
    ours = [layer for layer in form.modules() if isinstance(layer, PatchConv2d | StackableLSTM)]
    layers = [layer for layer in ours if layer.kernels and precision in layer.precisions]
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            wrong = [layer for layer in layers if not layer.try_kernels(device, precision)]
        trouble = f"wrong numbers for {type(wrong[0]).__name__}" if wrong else ""
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
        rule = "must have a method features(x) -> (output, z) for MOON"
        fix = "add it, with z the representation to contrast (B, d)"
        raise InputError("model", rule, type(module).__name__, fix)
    return features
