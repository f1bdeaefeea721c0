"""Losses by name, and what metrics are made of: one number per sample, so that any batch can be averaged."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from fedskip.input.errors import InputError, require, unknown
from fedskip.input.named import is_own, load

Measure = Callable[[Tensor, Tensor], Tensor]  # (output (B, ...), target (B, ...)) -> (B,)


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Of class scores (B, C) and class numbers (B,)."""
    return F.cross_entropy(output, target.long(), reduction="none")


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The squared distance, averaged over the outputs of a sample."""
    return _mean((output - target.reshape(output.shape)).square())


def binary_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Of one logit for each label (B, C) and 0/1 targets (B, C)."""
    target = target.to(output.dtype).reshape(output.shape)
    return _mean(F.binary_cross_entropy_with_logits(output, target, reduction="none"))


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """1 where the highest score, the first of equals, is the right class."""
    return (output.max(1).indices == target).to(output.dtype)  # argmax is several times slower on a CPU


def label_accuracy(output: Tensor, target: Tensor) -> Tensor:
    """The share of labels that are right, for multi-label tasks."""
    return _mean(((output > 0) == (target.reshape(output.shape) > 0)).to(output.dtype))


def contrast_loss(z: Tensor, received: Tensor, previous: Tensor, temperature: Tensor | float) -> Tensor:
    """MOON's loss of each sample, (B,): -log softmax of (cos(z, received), cos(z, previous)) / T, at 0."""
    near = F.cosine_similarity(z, received, dim=-1)
    far = F.cosine_similarity(z, previous, dim=-1)
    return F.softplus((far - near) / temperature)


def _mean(numbers: Tensor) -> Tensor:
    """Of each sample, (B, ...) → (B,)."""
    return numbers.reshape(len(numbers), -1).mean(1)


LOSSES: dict[str, Measure] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
    "binary_cross_entropy": binary_cross_entropy,
}


def loss(chosen: str | Measure) -> Measure:
    """The loss of that name, one's own as `MODULE:FUNCTION`, or the function itself."""
    if not isinstance(chosen, str):
        return chosen
    if is_own(chosen):
        found: Measure = load(chosen, "loss")
        fix = "write a function that gives one number per sample"
        ok = callable(found) and not isinstance(found, type)
        require(f"loss {chosen}", ok, "must be a function (output, target)", found, fix)
        return found
    if chosen not in LOSSES:
        raise unknown("loss", chosen, LOSSES)
    return LOSSES[chosen]


def per_sample(found: Tensor, samples: int, field: str = "loss") -> Tensor:
    """What a measure has given, if it is one number for each sample; else an error that says so."""
    if not isinstance(found, Tensor) or found.shape != (samples,):
        raise InputError(
            field,
            f"must give one number per sample, a tensor of shape ({samples},)",
            tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__,
            "use reduction='none' and average over all but the first dimension"
            + (
                "; mark one that scores all samples at once with @fedskip.metric(whole=True)"
                * (field == "metric")
            ),
        )
    return found
