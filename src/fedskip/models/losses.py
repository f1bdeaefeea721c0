"""Losses by name. Each gives one number per sample, so that any batch can be averaged."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from fedskip.errors import InputError, require, unknown
from fedskip.parsing import is_own, load

Measure = Callable[[Tensor, Tensor], Tensor]  # (output (B, ...), target (B, ...)) -> (B,)


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of class scores (B, C) and class numbers (B,)."""
    return F.cross_entropy(output, target.long(), reduction="none")


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Squared error, averaged over the outputs of a sample."""
    return mean_of_each((output - target.reshape(output.shape)).square())


def binary_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of one logit for each label (B, C) and 0/1 targets (B, C)."""
    target = target.to(output.dtype).reshape(output.shape)
    return mean_of_each(F.binary_cross_entropy_with_logits(output, target, reduction="none"))


def contrast_loss(
    z: Tensor, received: Tensor, previous: Tensor, temperature: Tensor | float
) -> Tensor:
    """MOON's contrastive loss, (B,).

    It is -log softmax of (cos(z, received), cos(z, previous)) / T at its first entry, with the
    representations (B, d) by the model in training, the received one and the previous local one.
    """
    near = F.cosine_similarity(z, received, dim=-1)
    far = F.cosine_similarity(z, previous, dim=-1)
    return F.softplus((far - near) / temperature)


def mean_of_each(numbers: Tensor) -> Tensor:
    """The mean of each sample, (B, ...) -> (B,)."""
    return numbers.reshape(len(numbers), -1).mean(1)


LOSSES: dict[str, Measure] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
    "binary_cross_entropy": binary_cross_entropy,
}


def loss(chosen: str | Measure) -> Measure:
    """The loss of a name in `LOSSES`, of your own code as `MODULE:FUNCTION`, or the function itself."""
    if not isinstance(chosen, str):
        return chosen
    if is_own(chosen):
        function: Measure = load(chosen, "loss")
        fix = "write a function that gives one number per sample"
        ok = callable(function) and not isinstance(function, type)
        require(f"loss {chosen}", ok, "must be a function (output, target)", function, fix)
        return function
    if chosen not in LOSSES:
        raise unknown("loss", chosen, LOSSES)
    return LOSSES[chosen]


def per_sample(result: Tensor, samples: int, field: str = "loss") -> Tensor:
    """The result of a loss or metric, if it is one number per sample; an `InputError` otherwise."""
    if not isinstance(result, Tensor) or result.shape != (samples,):
        given = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        fix = "use reduction='none' and average over all but the first dimension"
        if field == "metric":
            fix += "; mark one that scores all samples at once with @fedskip.metric(whole=True)"
        rule = f"must give one number per sample, a tensor of shape ({samples},)"
        raise InputError(field, rule, given, fix)
    return result
